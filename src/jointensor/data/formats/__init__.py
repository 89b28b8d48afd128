"""File formats: one module each, found by the suffix of a file's name.

A module of tables has ``scan`` (in chunks), ``sink`` (writes a lazy table) and ``count``; a module of tensors has
``read``, ``scan``, ``write``, ``count`` and ``read_queries``. A new format is a module and a line in :data:`FORMATS`.
Modules are imported when a file of theirs is read or written: archives need NumPy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jointensor.data.formats.base import ALL_ROWS, ChunkedSource, Reading
from jointensor.data.modes import ORDERS, Mode, Order, find_mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from jointensor.data.frames import TableSpec

CHUNK_ROWS = 1 << 19
"""Rows or entries of a chunk."""


@dataclass(frozen=True)
class Format:
    """A file format."""

    name: str
    suffixes: tuple[str, ...]
    tensor: bool
    """Whether a file holds a tensor, with modes and positions; otherwise it holds a table."""
    functions: Any = None
    """An object with the functions of a format's module, for formats from outside of this package."""

    @property
    def module(self) -> Any:
        """The module that reads and writes it."""
        return import_module(f"{__name__}.{self.name}") if self.functions is None else self.functions


FORMATS = [
    Format("npz", (".npz",), tensor=True),
    Format("tns", (".tns", ".tns.gz"), tensor=True),
    Format("parquet", (".parquet", ".pq"), tensor=False),
    Format("arrow", (".arrow", ".feather", ".ipc"), tensor=False),
    Format("jsonl", (".jsonl", ".ndjson"), tensor=False),
    Format("delimited", (), tensor=False),
]
"""All formats; the last one takes files of any other name."""


def register_format(new: Format) -> None:
    """Add a format; it takes precedence over formats of the same suffix."""
    if not new.suffixes:
        raise ConfigError(f"format '{new.name}' needs a suffix such as '.{new.name}'")
    FORMATS.insert(0, new)


def format_of(path: Path) -> Format:
    """The format of a file, by its name."""
    name = path.name.lower()
    return next((one for one in FORMATS if name.endswith(one.suffixes)), FORMATS[-1])


def check_file(path: Path) -> None:
    """Refuse a path without content to read."""
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")


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
    kind = format_of(path)
    if kind.tensor:
        if spec is not None:
            raise ConfigError(f"{path} has its own modes and values; leave out the options for tables")
        reading = Reading(kind.module.read(path))
    else:
        reading = _table_to_tensor(path, spec)
    return replace(reading, tensor=with_orders(reading.tensor, orders or {}))


def scan_source(path: Path, table: dict[str, Any] | None, scratch: Path) -> ChunkedSource:
    """A tensor whose entries are read in chunks, the same entries as :func:`read_tensor` gives.

    Parameters
    ----------
    path
        Any file that :func:`read_tensor` reads.
    table
        How a table becomes a tensor, as :meth:`TableSpec.to_dict` gives it.
    scratch
        A folder for cells of a table while they are sorted.
    """
    check_file(path)
    kind = format_of(path)
    if kind.tensor:
        source = cast(ChunkedSource, kind.module.scan(path, CHUNK_ROWS))
        if not source.entries:
            raise DataError(f"{path} has no entries")
        return source
    if table is None or not table["modes"]:
        raise ConfigError(f"{path} is a table: name its modes and its value, for example --modes a,b,c --value v")
    from jointensor.data.frames import TableSpec  # noqa: PLC0415
    from jointensor.data.table_source import scan_table_source  # noqa: PLC0415

    return scan_table_source(path, TableSpec.from_dict(table), CHUNK_ROWS, scratch)


def count_entries(path: Path, table: dict[str, Any] | None) -> tuple[int, int]:
    """Entries, at most, and modes of a source, without reading all of it."""
    check_file(path)
    kind = format_of(path)
    if kind.tensor:
        return cast(tuple[int, int], kind.module.count(path))
    import polars as pl  # noqa: PLC0415

    modes = 2 if table is None else max(len(table["modes"]), 1)
    try:
        return int(kind.module.count(path, modes + 1)), modes
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return 0, modes  # the reader says what is wrong


def write_tensor(tensor: SparseTensor, path: Path | str) -> None:
    """Write a tensor in the format of the file's name."""
    path = Path(path)
    kind = format_of(path)
    if kind.tensor:
        kind.module.write(tensor, path)
    else:
        write_table(tensor.to_frame(), path)


def read_table(path: Path, spec: TableSpec | None = None) -> pl.DataFrame:
    """A table as it is written: every column of a text file is text."""
    import polars as pl  # noqa: PLC0415

    return pl.concat(scan_table(path, spec, ALL_ROWS))


def scan_table(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """The same table, at most ``rows`` at a time; the first chunk is empty and has the columns."""
    import polars as pl  # noqa: PLC0415

    check_file(path)
    module = _table_format(path).module
    try:
        yield from module.scan(path, spec, rows)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError) as error:
        reason = (module.explain(path, spec) if hasattr(module, "explain") else None) or str(error).strip()
        raise DataError(
            f"{path} cannot be read as a table: {(reason or type(error).__name__).splitlines()[0]}"
        ) from None


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of the file's name; ``.csv`` and unknown names get commas."""
    _table_format(path).module.sink(frame.lazy(), path)


def with_orders(tensor: SparseTensor, orders: Mapping[str, str]) -> SparseTensor:
    """The same tensor with the order of some modes declared."""
    return tensor.over(order_modes(tensor.modes, orders))


def order_modes(modes: tuple[Mode, ...], orders: Mapping[str, str]) -> tuple[Mode, ...]:
    """The same modes with the order of some declared."""
    for name, order in orders.items():
        find_mode(modes, name)
        if order not in ORDERS:
            raise ConfigError(f"order '{order}' of mode '{name}' is not one of {', '.join(ORDERS)}")
    return tuple(replace(mode, order=cast(Order, orders.get(mode.name, mode.order))) for mode in modes)


def _table_format(path: Path) -> Format:
    kind = format_of(path)
    return FORMATS[-1] if kind.tensor else kind


def _table_to_tensor(path: Path, spec: TableSpec | None) -> Reading:
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
