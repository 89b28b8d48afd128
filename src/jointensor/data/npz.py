"""NumPy archives: ``indices``, ``values``, ``shape``, ``mode_names`` and ``labels_0, labels_1, …``.

Needs NumPy alone. Nothing is unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode, guess_order
from jointensor.data.sparse import SparseTensor, check_whole
from jointensor.errors import DataError


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
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path} holds a single array, not an archive with 'indices' and 'values'")
            arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, OSError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read as a NumPy archive ({_first_line(error)})") from None
    if "indices" not in arrays:
        raise DataError(f"{path} has no array 'indices'; it has {', '.join(arrays) or 'none'}")
    if arrays["indices"].ndim != 2:
        raise DataError(f"{path}: 'indices' has shape {arrays['indices'].shape}, expected (entries, modes)")
    return arrays


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
    return tuple(str(text) for text in (np.char.decode(stored, "utf-8") if stored.dtype.kind == "S" else stored))


def _first_line(error: Exception) -> str:
    if "pickle" in str(error):
        return "it is not made of plain arrays alone, and nothing is unpickled"
    return (str(error).splitlines() or [type(error).__name__])[0]
