"""What the readers of all formats share: their results, limits of packed files and positions, checks of entries."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor, _as_indices, _as_values
from jointensor.data.values import ValueSummary, check_underflow
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec


Chunk = tuple[NDArray[Any], NDArray[np.float32]]
"""Indices ``(entries, modes)`` and values ``(entries,)`` of consecutive entries; indices have 32 bits, or 64 where a
mode needs them."""


@dataclass(frozen=True)
class Reading:
    """A tensor that was read whole."""

    tensor: SparseTensor
    spec: TableSpec | None = None
    """The rules of its table with their expressions resolved."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""


@dataclass(frozen=True)
class ChunkedSource:
    """A source whose entries are read in chunks, any number of times."""

    modes: tuple[Mode, ...]
    entries: int
    chunks: Callable[[], Iterator[Chunk]]
    spec: TableSpec | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class IndexedQueries:
    """Queries of a file that has indices instead of labels."""

    indices: NDArray[Any]
    """As they were written, ``(queries, modes)``, counted from 0."""
    labels: Sequence[Sequence[str] | None]
    """Labels of every mode, where the file has some."""
    values: NDArray[Any] | None


MAX_UNPACKED, MAX_UNPACKED_RATIO = 1 << 28, 200
"""Bytes that any packed file may unpack to, and how many times its own size: text and indices pack three- to
twentyfold, files that are made to fill a memory a thousandfold."""
BLOCK = 1 << 24
"""Bytes of a text file that are read at a time."""
MAX_LINE = 1 << 25
"""Bytes of a line of text, or of a row with line ends in quotes."""
GZIP = b"\x1f\x8b"

ALL_ROWS = 1 << 62
"""Rows of a chunk that is a whole table, or entries of one that has all of them."""

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
    """Refuse a packed file that unpacks to far more than data do."""
    if unpacked > max(MAX_UNPACKED, MAX_UNPACKED_RATIO * path.stat().st_size):
        raise DataError(
            f"{path} unpacks to {unpacked:,} bytes or more, over {MAX_UNPACKED_RATIO} times its size; if that is "
            "right, unpack it yourself and give the unpacked file"
        )


def unpack_gzip(path: Path) -> bytes:
    """The contents of a gzipped file; one that never ends is not read to its end."""
    data = bytearray()
    try:
        with gzip.open(path) as file:
            while block := file.read(BLOCK):
                data += block
                check_unpacked(path, len(data))
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None
    return bytes(data)


def _damaged(path: Path, error: Exception) -> DataError:
    reason = "the end of file comes too early" if isinstance(error, EOFError) else error
    return DataError(f"{path} cannot be {'unpacked' if is_gzip(path) else 'read'}: {reason} (is the file cut off?)")


def is_gzip(path: Path) -> bool:
    """Whether a file begins like a gzipped one."""
    with path.open("rb") as file:
        return file.read(2) == GZIP


def first_bytes(path: Path, count: int) -> bytes:
    """The beginning of a file, unpacked where it is gzipped."""
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            return file.read(count)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None


def line_chunks(path: Path, *, quoted: bool = False) -> Iterator[bytes]:
    """Whole lines of a text file, plain or gzipped, in blocks of bytes.

    Parameters
    ----------
    path
        The file.
    quoted
        Whether fields in quotes may hold line ends.

    Raises
    ------
    DataError
        If a line is longer than :data:`MAX_LINE`, or the file is damaged.
    """
    rest, size = b"", 0
    packed = is_gzip(path)
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            while block := file.read(BLOCK):
                size += len(block)
                if packed:
                    check_unpacked(path, size)
                data = rest + block
                cut = _end_of_line(data, quoted=quoted)
                if len(data) - cut > MAX_LINE:
                    raise DataError(
                        f"{path} has a line, or a field in quotes, over {MAX_LINE:,} bytes (does a quote not end?)"
                    )
                rest = data[cut:]
                if cut:
                    yield data[:cut]
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None
    if rest:
        yield rest


def _end_of_line(data: bytes, *, quoted: bool) -> int:
    """End of the last whole line; with ``quoted``, the last line end that is not within quotes."""
    cut = data.rfind(b"\n") + 1
    quotes = data.count(b'"', 0, cut) if quoted else 0
    while quotes % 2:  # there is one before ``cut``
        before = data.rfind(b"\n", 0, cut - 1) + 1
        quotes -= data.count(b'"', before, cut)
        cut = before
    return cut


def checked(path: Path, entries: Iterable[Sequence[NDArray[Any]]], modes: tuple[Mode, ...]) -> Iterator[Chunk]:
    """Chunks as they are stored on disk; the same checks as for :class:`SparseTensor`, except for duplicate cells.

    Parameters
    ----------
    path
        The file, for messages.
    entries
        Indices ``(entries, modes)`` and values of consecutive entries, as they were read.
    modes
        The modes of the tensor.
    """
    start, summary = 0, ValueSummary()
    for indices, values in entries:
        try:
            positions, small = _as_indices(indices, modes), _as_values(values, len(indices))
            check_underflow(values, small)
        except DataError as error:
            where = f" (counted from entry {start:,} on)" if start else ""
            raise DataError(f"{path}: {error}{where}") from None
        summary.update(values)
        yield positions, small
        start += len(values)
    try:
        summary.check_precision()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


UNPACKING = 20
"""How many times its size a packed text file is expected to unpack to."""


def max_rows(path: Path, fields: int) -> int:
    """Rows that a text file can have at most: a character and a separator per field."""
    return path.stat().st_size * (UNPACKING if is_gzip(path) else 1) // (2 * fields)
