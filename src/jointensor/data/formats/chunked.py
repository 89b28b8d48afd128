"""Any source in chunks: archives, ``.tns`` files and tables, by the same rules as when they are read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jointensor.data.formats.files import check_file, file_kind
from jointensor.data.formats.npz_chunks import ChunkedSource, count_npz, scan_npz
from jointensor.errors import ConfigError

# Polars is imported where a table is read: archives need NumPy alone.

ROWS = 1 << 19
"""Entries of a piece."""

PACKED = 20
"""How many times its size a packed file may be expected to unpack to."""


def scan_source(path: Path, table: dict[str, Any] | None, scratch: Path) -> ChunkedSource:
    """A source that is read in chunks.

    Parameters
    ----------
    path
        Any file that :func:`jointensor.data.formats.files.read_tensor` reads.
    table
        How a table becomes a tensor, as :meth:`TableSpec.to_dict` gives it.
    scratch
        A folder for cells of a table while they are sorted.
    """
    check_file(path)
    kind = file_kind(path)
    if kind == "npz":
        return scan_npz(path, ROWS)
    from jointensor.data.formats.table_chunks import scan_table, scan_tns  # noqa: PLC0415

    if kind == "tns":
        return scan_tns(path)
    if table is None or not table["modes"]:
        raise ConfigError(f"{path} is a table: name its modes and its value, for example --modes a,b,c --value v")
    from jointensor.data.frames import TableSpec  # noqa: PLC0415

    return scan_table(path, TableSpec.from_dict(table), ROWS, scratch)


def count_entries(path: Path, table: dict[str, Any] | None) -> tuple[int, int]:
    """Entries, at most, and modes of a source, without reading all of it."""
    check_file(path)
    kind, size = file_kind(path), path.stat().st_size
    if kind == "npz":
        return count_npz(path)
    given = 2 if table is None else max(len(table["modes"]), 1)
    modes = _tns_modes(path) if kind == "tns" else given
    if kind in ("parquet", "arrow"):
        import polars as pl  # noqa: PLC0415

        from jointensor.data.formats.arrow import check_arrow  # noqa: PLC0415
        from jointensor.data.formats.parquet import check_parquet  # noqa: PLC0415

        check, scan = (check_parquet, pl.scan_parquet) if kind == "parquet" else (check_arrow, pl.scan_ipc)
        check(path)
        try:
            return int(scan(path, glob=False).select(pl.len()).collect().item()), modes
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return 0, modes  # whoever reads it says what is wrong
    packed = path.suffix == ".gz"
    return size * (PACKED if packed else 1) // (2 * (modes + 1)), modes  # a character and a separator per field


def _tns_modes(path: Path) -> int:
    from jointensor.data.formats.delimited import first_line  # noqa: PLC0415

    return max(len(first_line(path).split()) - 1, 1)
