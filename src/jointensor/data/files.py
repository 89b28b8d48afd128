"""Files in any format that is understood: tensors in and out, and queries."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import ORDERS, UNSEEN, Mode
from jointensor.data.npz import read_arrays, read_npz, write_npz
from jointensor.data.reading import Reading
from jointensor.data.sparse import SparseTensor
from jointensor.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from jointensor.data.tables import TableSpec

# Polars is imported where a table is read or written: archives need NumPy alone.


@dataclass(frozen=True)
class Queries:
    """Entries asked for, in file order."""

    indices: NDArray[np.integer]
    """Shape ``(queries, modes)``, -1 for labels the tensor does not have."""
    values: NDArray[np.floating[Any]] | None
    """Observed values, where they were asked for."""
    frame: pl.DataFrame | None
    """The table as it was read, where it was one."""


def file_kind(path: Path) -> str:
    """``npz``, ``tns``, ``parquet``, ``arrow``, ``jsonl`` or ``text``, by the file's name."""
    name = path.name.lower()
    endings = {
        "npz": (".npz",),
        "tns": (".tns", ".tns.gz"),
        "parquet": (".parquet", ".pq"),
        "arrow": (".arrow", ".feather", ".ipc"),
        "jsonl": (".jsonl", ".ndjson"),
    }
    return next((kind for kind, suffixes in endings.items() if name.endswith(suffixes)), "text")


def read_tensor(path: Path | str, spec: TableSpec | None = None, orders: Mapping[str, str] | None = None) -> Reading:
    """A tensor from a file.

    Parameters
    ----------
    path
        ``.npz``, ``.tns``, ``.tns.gz``, ``.parquet``, ``.arrow``, ``.jsonl``, or delimited text of any name.
    spec
        How a table becomes a tensor; needed for tables only.
    orders
        ``none``, ``ordered`` or ``cyclic`` for modes whose order should not be guessed.
    """
    path = Path(path)
    _check_file(path)
    kind = file_kind(path)
    if kind in ("npz", "tns"):
        if spec is not None:
            raise ConfigError(f"{path} says itself what its modes and values are; leave out the options for tables")
        reading = Reading(read_npz(path) if kind == "npz" else _read_tns(path))
    else:
        reading = _read_table_tensor(path, spec)
    return replace(reading, tensor=with_orders(reading.tensor, orders or {}))


def write_tensor(tensor: SparseTensor, path: Path | str) -> None:
    """Write a tensor in the format that the file's name asks for."""
    path = Path(path)
    kind = file_kind(path)
    if kind == "npz":
        write_npz(tensor, path)
    elif kind == "tns":
        from jointensor.data.tns import write_tns  # noqa: PLC0415

        write_tns(tensor, path)
    else:
        write_table(tensor.to_frame(), path)


def read_queries(path: Path | str, modes: tuple[Mode, ...], spec: TableSpec | None, *, values: bool) -> Queries:
    """Entries to predict (or, with ``values``, to judge by) in any readable format."""
    path = Path(path)
    _check_file(path)
    kind = file_kind(path)
    if kind == "npz":
        arrays = read_arrays(path)
        if values and "values" not in arrays:
            raise DataError(f"{path} has no array 'values' to compare with")
        return Queries(_within(arrays["indices"], modes, path), arrays["values"] if values else None, None)
    if kind == "tns":
        tensor = _read_tns(path)
        return Queries(_within(tensor.indices, modes, path), tensor.values if values else None, None)
    from jointensor.data.tables import encode_frame, query_values  # noqa: PLC0415

    frame = read_table(path, spec)
    try:
        indices = encode_frame(frame, modes, spec)
        return Queries(indices, query_values(frame, spec) if values else None, frame)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def with_orders(tensor: SparseTensor, orders: Mapping[str, str]) -> SparseTensor:
    """The same tensor with the order of some modes declared."""
    for name, order in orders.items():
        tensor.mode(name)
        if order not in ORDERS:
            raise ConfigError(f"order '{order}' of mode '{name}' is not one of {', '.join(ORDERS)}")
    modes = tuple(replace(mode, order=orders.get(mode.name, mode.order)) for mode in tensor.modes)
    return tensor.over(modes)


def read_table(path: Path, spec: TableSpec | None = None) -> pl.DataFrame:
    """A table as it is written: every column of a text file is text."""
    import polars as pl  # noqa: PLC0415

    kind = file_kind(path)
    try:
        if kind == "parquet":
            return pl.read_parquet(path)
        if kind == "arrow":
            return pl.read_ipc(path)
        if kind == "jsonl":
            return pl.read_ndjson(path, infer_schema_length=None)
        return _read_text(path, spec)
    except (pl.exceptions.PolarsError, OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read as a table: {_reason(error)}") from None


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format that the file's name asks for; ``.csv`` and unknown names get commas."""
    kind = file_kind(path)
    if kind == "parquet":
        frame.write_parquet(path)
    elif kind == "arrow":
        frame.write_ipc(path)
    elif kind == "jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")


def _check_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")


def _read_tns(path: Path) -> SparseTensor:
    from jointensor.data.tns import read_tns  # noqa: PLC0415

    return read_tns(path)


def _read_table_tensor(path: Path, spec: TableSpec | None) -> Reading:
    from jointensor.data.tables import frame_to_tensor  # noqa: PLC0415

    frame = read_table(path, spec)
    if spec is None or not spec.modes:
        raise ConfigError(
            f"{path} is a table: name its modes and its value, for example --modes a,b,c --value v; "
            f"the columns are {', '.join(frame.columns)}"
        )
    try:
        return frame_to_tensor(frame, spec)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _read_text(path: Path, spec: TableSpec | None) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415

    header = spec is None or spec.header
    separator = (spec.separator if spec is not None else None) or _guess_separator(path)
    frame = pl.read_csv(path, separator=separator, has_header=header, infer_schema=False)
    if spec is not None and spec.columns is not None:
        if len(spec.columns) != frame.width:
            raise DataError(f"{path} has {frame.width} columns, but --columns names {len(spec.columns)}")
        frame.columns = list(spec.columns)
    return frame


def _guess_separator(path: Path) -> str:
    """The separator of delimited text, from its first line."""
    if path.suffix in (".csv", ".tsv"):
        return "," if path.suffix == ".csv" else "\t"
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline()
    try:
        return csv.Sniffer().sniff(line, delimiters="\t,;|").delimiter
    except csv.Error:
        return ","


def _within(indices: NDArray[Any], modes: tuple[Mode, ...], path: Path) -> NDArray[np.int64]:
    """Indices of queries; those beyond the tensor are labels it does not have."""
    if indices.ndim != 2 or indices.shape[1] != len(modes):
        raise DataError(f"{path}: queries have shape {indices.shape}, the tensor has {len(modes)} modes")
    if indices.dtype.kind not in "iu":
        raise DataError(f"{path}: indices must be whole numbers, got {indices.dtype}")
    whole = indices.astype(np.int64)
    if (whole < 0).any():
        row, n = np.argwhere(whole < 0)[0]
        raise DataError(f"{path}: query {row} has index {whole[row, n]} for mode '{modes[n].name}'; indices start at 0")
    return np.where(whole < [mode.size for mode in modes], whole, UNSEEN)


def _reason(error: Exception) -> str:
    text = str(error)
    if "more fields than defined" in text:
        return "a row has more fields than the first one"
    if "properly escaped" in text:
        return "a quoted field does not end (is the file cut off?)"
    return (text.strip().splitlines() or [type(error).__name__])[0]
