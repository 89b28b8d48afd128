"""Any source in pieces: archives, ``.tns`` files and tables, by the same rules as when they are read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jointensor.data.files import check_file, file_kind
from jointensor.data.pieces import InPieces, count_npz, npz_in_pieces
from jointensor.errors import ConfigError

ROWS = 1 << 19
"""Entries of a piece."""


def in_pieces(path: Path, table: dict[str, Any] | None, scratch: Path) -> InPieces:
    """A source that is read in pieces.

    Parameters
    ----------
    path
        Any file that :func:`jointensor.data.files.read_tensor` reads.
    table
        How a table becomes a tensor, as :meth:`TableSpec.to_dict` gives it.
    scratch
        A folder for cells of a table while they are sorted.
    """
    check_file(path)
    kind = file_kind(path)
    if kind == "npz":
        return npz_in_pieces(path, ROWS)
    raise ConfigError(f"{path} cannot be read in pieces")


def count_entries(path: Path, table: dict[str, Any] | None) -> tuple[int, int]:
    """Entries (at most) and modes of a source, without reading it."""
    check_file(path)
    return count_npz(path)
