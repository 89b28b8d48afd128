"""Sources read in chunks: a NumPy archive, whose arrays are never unpacked whole.

Tables and ``.tns`` files: see :mod:`jointensor.data.formats.table_chunks`.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.npz import _BROKEN, _first_line, _modes, _read_array, read_array_header
from jointensor.data.formats.reading import check_positions, check_unpacked
from jointensor.data.modes import Mode
from jointensor.data.shard_writer import Chunk
from jointensor.data.tensor import _as_indices, _as_values
from jointensor.data.values import ValueSummary, check_underflow
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

LARGE = ("indices", "values")
"""Arrays that are read in chunks; the others are small."""


@dataclass(frozen=True)
class ChunkedSource:
    """A source whose entries are read in chunks, any number of times."""

    modes: tuple[Mode, ...]
    entries: int
    chunks: Callable[[], Iterator[Chunk]]
    spec: TableSpec | None = None
    notes: tuple[str, ...] = ()


def scan_npz(path: Path, rows: int) -> ChunkedSource:
    """A tensor of an archive, entries in file order, at most ``rows`` at a time."""
    with _opened(path) as archive:
        small, heads = _small_arrays(path, archive)
    for name in LARGE:
        if name not in heads:
            raise DataError(f"{path} has no array '{name}'; it has {', '.join([*heads, *small]) or 'none'}")
    (entries, *more), fortran, dtype = heads["indices"]
    if len(more) != 1 or fortran:
        raise DataError(f"{path}: 'indices' must be (entries, modes), row by row, to be read in chunks")
    if heads["values"][0] != (entries,):
        raise DataError(f"{path}: values have shape {heads['values'][0]}, expected ({entries},)")
    if not entries:
        raise DataError(f"{path} has no entries")
    try:
        if "shape" not in small:
            small["shape"] = _largest(path, rows) + 1
        modes = _modes(small, np.empty((1, more[0]), dtype=dtype))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    check_positions(path, modes, entries)
    return ChunkedSource(modes, entries, lambda: checked(path, _arrays(path, rows, *LARGE), modes))


def count_npz(path: Path) -> tuple[int, int]:
    """Entries and modes of an archive, by the header of its indices."""
    with _opened(path) as archive:
        _, heads = _small_arrays(path, archive)
    shape = heads["indices"][0] if "indices" in heads else ()
    if len(shape) != 2:
        raise DataError(f"{path} has no array 'indices' of shape (entries, modes)")
    return shape[0], shape[1]


class _opened:
    """An archive, with what a damaged one makes zipfile and NumPy raise turned into an error that names it."""

    def __init__(self, path: Path) -> None:
        self.path, self.stack = path, ExitStack()

    def __enter__(self) -> zipfile.ZipFile:
        try:
            return self.stack.enter_context(zipfile.ZipFile(self.path))
        except _BROKEN as error:
            raise self._named(error) from None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stack.close()
        if isinstance(error, _BROKEN) and not isinstance(error, DataError):
            raise self._named(error) from None

    def _named(self, error: Exception) -> DataError:
        return DataError(f"{self.path} cannot be read as a NumPy archive ({_first_line(error)})")


Head = tuple[tuple[int, ...], bool, np.dtype[Any]]


def _small_arrays(path: Path, archive: zipfile.ZipFile) -> tuple[dict[str, NDArray[Any]], dict[str, Head]]:
    """Labels and the like, and the headers of what is large."""
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    check_unpacked(path, sum(member.file_size for member in members))
    small: dict[str, NDArray[Any]] = {}
    heads: dict[str, Head] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in small or name in heads:
            raise DataError(f"{path} has two arrays '{name}'")
        with archive.open(member) as file:
            if name in LARGE:
                heads[name] = shape, _, dtype = read_array_header(file)
                there = member.file_size - file.tell()
                if math.prod(shape) * dtype.itemsize != there:
                    raise ValueError(f"{there:,} bytes for an array of shape {shape} and type {dtype}")
            else:
                small[name] = _read_array(file)
    return small, heads


def _arrays(path: Path, rows: int, *names: str) -> Iterator[list[NDArray[Any]]]:
    """The same rows of some arrays."""
    with _opened(path) as archive, ExitStack() as stack:
        files = [stack.enter_context(archive.open(f"{name}.npy")) for name in names]
        heads = [read_array_header(file) for file in files]
        for start in range(0, heads[0][0][0], rows):
            count = min(rows, heads[0][0][0] - start)
            yield [_rows(file, head, count) for file, head in zip(files, heads, strict=True)]


def _rows(file: IO[bytes], head: Head, count: int) -> NDArray[Any]:
    (_, *more), _, dtype = head
    wanted = count * int(np.prod(more, dtype=np.int64)) * dtype.itemsize
    data = file.read(wanted)
    if len(data) != wanted:
        raise ValueError(f"{len(data):,} bytes where {wanted:,} were promised")
    return np.frombuffer(data, dtype=dtype).reshape(count, *more)


def _largest(path: Path, rows: int) -> NDArray[np.int64]:
    """Largest index of every mode, ``(modes,)``."""
    tops = [indices.max(axis=0) for (indices,) in _arrays(path, rows, "indices")]
    return np.maximum(np.max(tops, axis=0).astype(np.int64), 0)


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
        yield positions.astype(np.int32, copy=False), small
        start += len(values)
    try:
        summary.check_precision()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
