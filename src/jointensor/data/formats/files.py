"""Files in any format that is understood: tensors in and out, and queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.npz import read_arrays, read_npz, texts_of, write_npz
from jointensor.data.formats.reading import Reading, check_positions
from jointensor.data.modes import ORDERS, UNSEEN, Mode, Order
from jointensor.data.tensor import SparseTensor, check_whole
from jointensor.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from jointensor.data.frames import TableSpec

# Polars is imported where a table is read or written: archives need NumPy alone.


@dataclass(frozen=True)
class Queries:
    """Entries asked for, in file order."""

    indices: NDArray[np.integer]
    """Shape ``(queries, modes)``, -1 for labels the tensor does not have."""
    values: NDArray[np.floating[Any]] | None
    """Observed values, where they were asked for."""
    frame: pl.DataFrame | None = None
    """The table as it was read, where it was one."""
    given: NDArray[np.integer] | None = None
    """The indices as they were written, where the file has indices."""


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
    check_file(path)
    kind = file_kind(path)
    if kind in ("npz", "tns"):
        if spec is not None:
            raise ConfigError(f"{path} says itself what its modes and values are; leave out the options for tables")
        reading = Reading(read_npz(path) if kind == "npz" else _read_tns(path))
        check_positions(path, reading.tensor.modes, len(reading.tensor))
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
        from jointensor.data.formats.tns import write_tns  # noqa: PLC0415

        write_tns(tensor, path)
    else:
        write_table(tensor.to_frame(), path)


def read_queries(path: Path | str, modes: tuple[Mode, ...], spec: TableSpec | None, *, values: bool) -> Queries:
    """Entries to predict (or, with ``values``, to judge by) in any readable format."""
    path = Path(path)
    check_file(path)
    kind = file_kind(path)
    if kind == "npz":
        arrays = read_arrays(path)
        if values and "values" not in arrays:
            raise DataError(f"{path} has no array 'values' to compare with")
        labels = [texts_of(arrays, f"labels_{n}") for n in range(len(modes))]
        given = arrays["indices"]
        return Queries(_within(given, modes, labels, path), arrays["values"] if values else None, given=given)
    if kind == "tns":
        tensor = _read_tns(path)
        indices = _within(tensor.indices, modes, [mode.labels for mode in tensor.modes], path)
        return Queries(indices, tensor.values if values else None, given=tensor.indices)
    from jointensor.data.frames import encode_frame, query_values  # noqa: PLC0415

    frame = read_table(path, query_spec(path, spec))
    try:
        indices = encode_frame(frame, modes, spec)
        return Queries(indices, query_values(frame, spec) if values else None, frame)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def with_orders(tensor: SparseTensor, orders: Mapping[str, str]) -> SparseTensor:
    """The same tensor with the order of some modes declared."""
    return tensor.over(order_modes(tensor.modes, orders))


def order_modes(modes: tuple[Mode, ...], orders: Mapping[str, str]) -> tuple[Mode, ...]:
    """The same modes with the order of some declared."""
    names = [mode.name for mode in modes]
    for name, order in orders.items():
        if name not in names:
            raise DataError(f"there is no mode '{name}'; the modes are {', '.join(names)}")
        if order not in ORDERS:
            raise ConfigError(f"order '{order}' of mode '{name}' is not one of {', '.join(ORDERS)}")
    return tuple(replace(mode, order=cast(Order, orders.get(mode.name, mode.order))) for mode in modes)


def read_table(path: Path, spec: TableSpec | None = None) -> pl.DataFrame:
    """A table as it is written: every column of a text file is text."""
    import polars as pl  # noqa: PLC0415

    from jointensor.data.formats.arrow import check_arrow  # noqa: PLC0415
    from jointensor.data.formats.delimited import read_text  # noqa: PLC0415
    from jointensor.data.formats.parquet import check_parquet  # noqa: PLC0415

    check_file(path)
    kind = file_kind(path)
    try:
        if kind == "parquet":
            check_parquet(path)
            return pl.read_parquet(path, glob=False)
        if kind == "arrow":
            check_arrow(path)
            return pl.scan_ipc(path, glob=False).collect()
        if kind == "jsonl":
            return pl.read_ndjson(path.read_bytes(), infer_schema_length=None)
        return read_text(path, spec)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError) as error:
        reason = (_wrong_json_line(path) if kind == "jsonl" else None) or str(error).strip() or type(error).__name__
        raise DataError(f"{path} cannot be read as a table: {reason.splitlines()[0]}") from None


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


def check_file(path: Path) -> None:
    """Refuse a path that holds nothing to read."""
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")


def _read_tns(path: Path) -> SparseTensor:
    from jointensor.data.formats.tns import read_tns  # noqa: PLC0415

    return read_tns(path)


def _read_table_tensor(path: Path, spec: TableSpec | None) -> Reading:
    from jointensor.data.frames import frame_to_tensor  # noqa: PLC0415

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


def query_spec(path: Path, spec: TableSpec | None) -> TableSpec | None:
    """The rules for a table of queries: it may have a header where the source had none."""
    if spec is None or file_kind(path) != "text":
        return spec
    from jointensor.data.formats.delimited import fields_of, first_line, guess_separator  # noqa: PLC0415

    line = first_line(path)
    separator = spec.separator if spec.separator and spec.separator in line else guess_separator(path, line)
    spec = replace(spec, separator=separator)
    fields = set(fields_of(line, separator))
    named = all(mode.name in fields or fields.issuperset(mode.columns(fields)) for mode in spec.modes)
    return replace(spec, header=True, columns=None) if named else spec


def _within(
    indices: NDArray[Any], modes: tuple[Mode, ...], labels: Sequence[Sequence[str] | None], path: Path
) -> NDArray[np.int64]:
    """Indices of queries, by label where their file has ``labels``; what the tensor does not have is -1."""
    if indices.ndim != 2 or indices.shape[1] != len(modes):
        raise DataError(f"{path}: queries have shape {indices.shape}, the tensor has {len(modes)} modes")
    try:
        check_whole(indices, [mode.name for mode in modes])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if (indices < 0).any():
        row, n = np.argwhere(indices < 0)[0]
        raise DataError(
            f"{path}: query {row} has index {int(indices[row, n])} for mode '{modes[n].name}'; indices start at 0"
        )
    found = np.full(indices.shape, UNSEEN, dtype=np.int64)  # (queries, modes)
    for n, (mode, own) in enumerate(zip(modes, labels, strict=True)):
        table = None if own is None or mode.labels is None else mode.encode(own)  # (labels of the queries,)
        known = indices[:, n] < (mode.size if table is None else len(table))
        positions = indices[known, n].astype(np.int64)
        found[known, n] = positions if table is None else table[positions]
    return found


def _wrong_json_line(path: Path) -> str | None:
    """Says which line is no JSON object; ``None`` where all are."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip() and not isinstance(json.loads(line), dict):
                    return f"line {number} is not a JSON object"
            except (ValueError, RecursionError):
                return f"line {number} is not JSON (is the file cut off?)"
    return None
