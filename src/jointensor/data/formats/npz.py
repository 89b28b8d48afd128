"""NumPy archives (``.npz``): ``indices``, ``values``, ``shape``, ``mode_names`` and ``labels_0, labels_1, …``.

Needs NumPy alone. Nothing is unpickled.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.base import ChunkedSource, IndexedQueries, check_positions, check_unpacked, checked
from jointensor.data.modes import Mode, guess_order
from jointensor.data.tensor import SparseTensor, check_whole
from jointensor.errors import DataError

CHUNKED_ARRAYS = ("indices", "values")
"""Arrays that are read in chunks; the others are small."""
_NPY = b"\x93NUMPY"
_BROKEN = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, LookupError, OSError, RuntimeError, TypeError, OverflowError,
    SyntaxError, tokenize.TokenError, MemoryError,
)  # fmt: skip
"""What a damaged archive makes zipfile and NumPy raise; the last ones come from reading a header as Python."""


def read(path: Path) -> SparseTensor:
    """A tensor from an archive, entries in file order."""
    arrays = read_arrays(path)
    values = arrays.get("values")
    if values is None:
        raise DataError(f"{path} has no array 'values'; it has {', '.join(arrays) or 'none'}")
    indices = arrays["indices"]
    try:
        return SparseTensor(indices, values, _modes(arrays, indices))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_queries(path: Path, *, values: bool) -> IndexedQueries:
    """Indices of an archive, with their own labels where it has some, and values where they are asked for."""
    arrays = read_arrays(path)
    if values and "values" not in arrays:
        raise DataError(f"{path} has no array 'values' to compare with")
    labels = [texts_of(arrays, f"labels_{n}") for n in range(arrays["indices"].shape[1])]
    return IndexedQueries(arrays["indices"], labels, arrays["values"] if values else None)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an archive; ``indices`` is among them."""
    arrays = read_archive(path)
    if "indices" not in arrays:
        raise DataError(f"{path} has no array 'indices'; it has {', '.join(arrays) or 'none'}")
    if arrays["indices"].ndim != 2:
        raise DataError(f"{path}: 'indices' has shape {arrays['indices'].shape}, expected (entries, modes)")
    return arrays


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an archive. Memory is taken for what is there, not for what a header promises."""
    try:
        with path.open("rb") as start:
            if start.read(len(_NPY)) == _NPY:
                raise DataError(f"{path} holds a single array, not an archive with 'indices' and 'values'")
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            check_unpacked(path, sum(member.file_size for member in members))
            arrays = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise DataError(f"{path} has two arrays '{name}'")
                with archive.open(member) as file:
                    arrays[name] = _read_array(file)
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{path} cannot be read as a NumPy archive ({_first_line(error)})") from None
    return arrays


def read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
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


def _read_array(file: IO[bytes]) -> NDArray[Any]:
    """One array, without pickles; NumPy's own reader takes memory for the shape before it looks at the data."""
    shape, fortran, dtype = read_array_header(file)
    data = file.read()
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data):,} bytes for an array of shape {shape} and type {dtype}")
    flat = np.frombuffer(data, dtype=dtype) if data else np.empty(0, dtype=dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


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
    """A tensor of an archive, entries in file order, at most ``rows`` at a time; arrays are never unpacked whole."""
    with _opened(path) as archive:
        small, heads = _small_arrays(path, archive)
    for name in CHUNKED_ARRAYS:
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
    return ChunkedSource(modes, entries, lambda: checked(path, _arrays(path, rows, *CHUNKED_ARRAYS), modes))


def count(path: Path) -> tuple[int, int]:
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
            if name in CHUNKED_ARRAYS:
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


def _modes(arrays: dict[str, NDArray[Any]], indices: NDArray[Any]) -> tuple[Mode, ...]:
    n_modes = indices.shape[1]
    names = _texts(arrays, "mode_names", n_modes) or tuple(f"mode_{n}" for n in range(n_modes))
    orders = _texts(arrays, "orders", n_modes) or ("",) * n_modes
    made = []
    for n, size in enumerate(_shape(arrays, indices, names)):
        labels = _texts(arrays, f"labels_{n}", size)
        made.append(Mode(names[n], size, labels, orders[n] or guess_order(names[n], labels)))  # type: ignore[arg-type]
    return tuple(made)


def _shape(arrays: dict[str, NDArray[Any]], indices: NDArray[Any], names: Sequence[str]) -> list[int]:
    if "shape" not in arrays:
        if not len(indices):
            raise DataError("there are no entries, and no array 'shape'")
        check_whole(indices, names)
        return [max(int(top) + 1, 1) for top in indices.max(axis=0)]
    shape = np.atleast_1d(arrays["shape"])
    if shape.dtype.kind not in "iu" or shape.shape != (indices.shape[1],):
        raise DataError(f"'shape' is {shape.tolist()}, expected {indices.shape[1]} whole numbers, one per mode")
    return [int(size) for size in shape]


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
