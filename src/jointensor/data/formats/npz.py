"""NumPy archives: ``indices``, ``values``, ``shape``, ``mode_names`` and ``labels_0, labels_1, …``.

Needs NumPy alone. Nothing is unpickled.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.reading import check_unpacked
from jointensor.data.modes import Mode, guess_order
from jointensor.data.tensor import SparseTensor, check_whole
from jointensor.errors import DataError

_NPY = b"\x93NUMPY"
_BROKEN = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, LookupError, OSError, RuntimeError, TypeError, OverflowError,
    SyntaxError, tokenize.TokenError, MemoryError,
)  # fmt: skip
"""What a damaged archive makes zipfile and NumPy raise; the last ones come from reading a header as Python."""


def read_npz(path: Path) -> SparseTensor:
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


def write_npz(tensor: SparseTensor, path: Path) -> None:
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
