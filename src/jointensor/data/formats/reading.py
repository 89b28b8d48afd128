"""What reading a source gives back, and how much a packed file may unpack to."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
