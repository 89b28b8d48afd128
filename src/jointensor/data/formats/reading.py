"""What reading a source gives back, and how much a packed file may unpack to."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec


@dataclass(frozen=True)
class Reading:
    """A tensor, the rules of its table as they were resolved, and what the user should know."""

    tensor: SparseTensor
    spec: TableSpec | None = None
    notes: tuple[str, ...] = ()


SMALL, RATIO = 1 << 28, 200
"""Bytes that any packed file may unpack to, and how many times its own size: text and indices pack three- to
twentyfold, files that are made to fill a memory a thousandfold."""
_BLOCK = 1 << 24

MAX_POSITIONS, MAX_POSITIONS_PER_ENTRY = 10_000_000, 100
"""Positions of a mode without labels that any source may have, and how many times its entries. A model has parameters
for every position: 10⁷ positions take 800 MB at 20 components."""


def check_positions(path: Path, modes: Sequence[Mode], entries: int) -> None:
    """Refuse a mode whose positions are so large that a model over them would fill the memory with empty rows."""
    for mode in modes:
        if mode.labels is None and mode.size > max(MAX_POSITIONS, MAX_POSITIONS_PER_ENTRY * entries):
            raise DataError(
                f"{path}: mode '{mode.name}' goes up to position {mode.size:,} with {entries:,} entries, and a model "
                "has parameters for every position; number the positions that occur without gaps, or give a table, "
                "whose labels may be any text"
            )


def check_unpacked(path: Path, unpacked: int) -> None:
    """Refuse a packed file that becomes far larger than data do."""
    if unpacked > max(SMALL, RATIO * path.stat().st_size):
        raise DataError(
            f"{path} unpacks to {unpacked:,} bytes or more, over {RATIO} times its size; if that is right, unpack it "
            "yourself and give the unpacked file"
        )


def unpack_gzip(path: Path) -> bytes:
    """The contents of a gzipped file; one that never ends is not read to its end."""
    data = bytearray()
    try:
        with gzip.open(path) as file:
            while block := file.read(_BLOCK):
                data += block
                check_unpacked(path, len(data))
    except (OSError, EOFError, zlib.error) as error:
        reason = "the end of file comes too early" if isinstance(error, EOFError) else error
        raise DataError(f"{path} cannot be unpacked: {reason} (is the file cut off?)") from None
    return bytes(data)
