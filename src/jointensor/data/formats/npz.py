"""NumPy archives (``.npz``): ``indices``, ``values``, ``shape``, ``mode_names`` and ``labels_0, labels_1, …``.

Needs NumPy alone. Nothing is unpickled.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.base import (
    ALL_ROWS,
    ChunkedSource,
    IndexedQueries,
    check_positions,
    check_unpacked,
    checked,
)
from jointensor.data.modes import Mode, guess_order
from jointensor.data.tensor import SparseTensor, check_whole
from jointensor.errors import DataError

CHUNKED_ARRAYS = ("indices", "values")
"""Arrays that are read in chunks; the others are small."""
Head = tuple[tuple[int, ...], bool, np.dtype[Any]]
"""Shape, whether columns come first, and type of an array."""
_NPY = b"\x93NUMPY"
_BROKEN = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, LookupError, OSError, RuntimeError, TypeError, OverflowError,
    SyntaxError, tokenize.TokenError, MemoryError,
)  # fmt: skip
"""What a damaged archive makes zipfile and NumPy raise; the last ones come from reading a header as Python."""


def read(path: Path) -> SparseTensor:
    """A tensor from an archive, entries in file order."""
    source = scan(path, ALL_ROWS)
    ((indices, values),) = source.chunks()
    try:
        return SparseTensor.part(indices, values, source.modes)  # refuses duplicate cells
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_queries(path: Path, *, values: bool) -> IndexedQueries:
    """Indices of an archive, with their own labels where it has some, and values where they are asked for."""
    small, heads = _small_arrays(path)
    wanted = ("indices", "values") if values else ("indices",)
    shape = _entries_and_modes(path, small, heads, wanted)
    ((indices, *more),) = _arrays(path, ALL_ROWS, *wanted)
    return IndexedQueries(indices, [texts_of(small, f"labels_{n}") for n in range(shape[1])], more[0] if more else None)


def read_array_header(file: IO[bytes]) -> Head:
    """Shape, whether columns come first, and type of the array that follows; refuses pickles and fields."""
    version = np.lib.format.read_magic(file)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in headers:
        raise ValueError(f"version {version} of the format is for structured arrays only")
    shape, fortran, dtype = headers[version](file)
    if dtype.hasobject:
        raise ValueError("pickle")
    if dtype.kind == "V":
        raise ValueError("arrays with fields are not understood")
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    return shape, fortran, dtype


def write(tensor: SparseTensor, path: Path) -> None:
    """Write a tensor with all it carries."""
    arrays: dict[str, NDArray[Any]] = {
        "indices": tensor.indices,
        "values": tensor.values,
        "shape": np.array(tensor.shape, dtype=np.int64),
        "mode_names": np.array(tensor.mode_names),
        "orders": np.array([mode.order for mode in tensor.modes]),
    }
    arrays |= {f"labels_{n}": np.array(mode.labels) for n, mode in enumerate(tensor.modes) if mode.labels is not None}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def scan(path: Path, rows: int) -> ChunkedSource:
    """A tensor of an archive, entries in file order, at most ``rows`` at a time."""
    small, heads = _small_arrays(path)
    entries, n_modes = _entries_and_modes(path, small, heads, CHUNKED_ARRAYS)
    if heads["indices"][1] and rows < entries:
        raise DataError(f"{path}: 'indices' must be stored row by row (C order) to be read in chunks")
    if heads["values"][0] != (entries,):
        raise DataError(f"{path}: values have shape {heads['values'][0]}, expected ({entries},)")
    try:
        sizes = _stored_sizes(small["shape"], n_modes) if "shape" in small else _smallest_sizes(path, rows, entries)
        modes = _modes(small, sizes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    check_positions(path, modes, entries)
    return ChunkedSource(modes, entries, lambda: checked(path, _arrays(path, rows, *CHUNKED_ARRAYS), modes))


def count(path: Path) -> tuple[int, int]:
    """Entries and modes of an archive, by the header of its indices."""
    return _entries_and_modes(path, *_small_arrays(path), ("indices",))


def _entries_and_modes(
    path: Path, small: dict[str, NDArray[Any]], heads: dict[str, Head], wanted: tuple[str, ...]
) -> tuple[int, int]:
    """Shape of the indices; refuses an archive that lacks one of the ``wanted`` arrays."""
    for name in wanted:
        if name not in heads:
            raise DataError(f"{path} has no array '{name}'; it has {', '.join([*heads, *small]) or 'none'}")
    shape = heads["indices"][0]
    if len(shape) != 2:
        raise DataError(f"{path}: 'indices' has shape {shape}, expected (entries, modes)")
    return shape[0], shape[1]


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive; exceptions that a damaged one causes become an error that names it."""
    try:
        with path.open("rb") as start:
            if start.read(len(_NPY)) == _NPY:
                raise DataError(f"{path} holds a single array, not an archive with 'indices' and 'values'")
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{path} cannot be read as a NumPy archive ({_first_line(error)})") from None


def _small_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Head]]:
    """Labels and other small arrays, and the headers of indices and values."""
    small: dict[str, NDArray[Any]] = {}
    heads: dict[str, Head] = {}
    with _opened(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        check_unpacked(path, sum(member.file_size for member in members))
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in small or name in heads:
                raise DataError(f"{path} has two arrays '{name}'")
            with archive.open(member) as file:
                head = read_array_header(file)
                size, expected = member.file_size - file.tell(), math.prod(head[0]) * head[2].itemsize
                if size != expected:
                    raise ValueError(f"{size:,} bytes for an array of shape {head[0]} and type {head[2]}")
                if name in CHUNKED_ARRAYS:
                    heads[name] = head
                else:
                    small[name] = _rows(file, head, head[0][0] if head[0] else 1)
    return small, heads


def _arrays(path: Path, rows: int, *names: str) -> Iterator[list[NDArray[Any]]]:
    """The same rows of some arrays; one empty chunk if there are none."""
    with _opened(path) as archive, ExitStack() as stack:
        files = [stack.enter_context(archive.open(f"{name}.npy")) for name in names]
        heads = [read_array_header(file) for file in files]
        entries = heads[0][0][0]
        for start in range(0, max(entries, 1), rows):
            count = min(rows, entries - start)
            yield [_rows(file, head, count) for file, head in zip(files, heads, strict=True)]


def _rows(file: IO[bytes], head: Head, count: int) -> NDArray[Any]:
    """The next ``count`` rows of an array; NumPy's own reader takes memory for the shape before it reads the data."""
    shape, fortran, dtype = head
    shape = (count, *shape[1:]) if shape else ()
    size = math.prod(shape) * dtype.itemsize
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{len(data):,} bytes where {size:,} were promised")
    flat = np.frombuffer(data, dtype=dtype) if data else np.empty(0, dtype=dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _stored_sizes(stored: NDArray[Any], n_modes: int) -> list[int]:
    shape = np.atleast_1d(stored)
    if shape.dtype.kind not in "iu" or shape.shape != (n_modes,):
        raise DataError(f"'shape' is {shape.tolist()}, expected {n_modes} whole numbers, one per mode")
    return [int(size) for size in shape]


def _smallest_sizes(path: Path, rows: int, entries: int) -> list[int]:
    """Sizes of modes that have room for all indices."""
    if not entries:
        raise DataError("there are no entries, and no array 'shape'")
    tops = []
    for (indices,) in _arrays(path, rows, "indices"):
        check_whole(indices, [f"mode_{n}" for n in range(indices.shape[1])])
        tops.append(indices.max(axis=0))
    return [max(int(top) + 1, 1) for top in np.max(tops, axis=0)]


def _modes(arrays: dict[str, NDArray[Any]], sizes: list[int]) -> tuple[Mode, ...]:
    names = _texts(arrays, "mode_names", len(sizes)) or tuple(f"mode_{n}" for n in range(len(sizes)))
    orders = _texts(arrays, "orders", len(sizes)) or ("",) * len(sizes)
    made = []
    for n, size in enumerate(sizes):
        labels = _texts(arrays, f"labels_{n}", size)
        made.append(Mode(names[n], size, labels, orders[n] or guess_order(names[n], labels)))  # type: ignore[arg-type]
    return tuple(made)


def _texts(arrays: dict[str, NDArray[Any]], key: str, count: int) -> tuple[str, ...] | None:
    if key in arrays and arrays[key].shape != (count,):
        raise DataError(f"'{key}' has shape {arrays[key].shape}, expected ({count},)")
    return texts_of(arrays, key)


def texts_of(arrays: dict[str, NDArray[Any]], key: str) -> tuple[str, ...] | None:
    """A stored array of texts; ``None`` where there is none."""
    if key not in arrays:
        return None
    stored = arrays[key].ravel()
    try:
        texts = tuple(str(text) for text in (np.char.decode(stored, "utf-8") if stored.dtype.kind == "S" else stored))
        "".join(texts).encode()
    except (ValueError, SystemError):  # numbers that are no characters, halves of characters
        raise DataError(f"'{key}' holds text that is not Unicode") from None
    return texts


def _first_line(error: Exception) -> str:
    if "pickle" in str(error):
        return "it is not made of plain arrays alone, and nothing is unpickled"
    return (str(error).splitlines() or [type(error).__name__])[0]
