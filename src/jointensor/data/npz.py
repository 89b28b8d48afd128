"""NumPy archives: ``indices``, ``values``, ``shape``, ``mode_names`` and ``labels_0, labels_1, …``.

Needs NumPy alone. Nothing is unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode, guess_order
from jointensor.data.sparse import SparseTensor
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
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path} holds a single array, not an archive with 'indices' and 'values'")
            arrays = {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, OSError) as error:
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
    if "shape" in arrays:
        shape = [int(size) for size in np.atleast_1d(arrays["shape"])]
    else:
        shape = [int(top) + 1 for top in indices.max(axis=0)] if len(indices) else []
    n_modes = len(shape)
    names = [str(name) for name in arrays.get("mode_names", [f"mode_{n}" for n in range(n_modes)])]
    if len(names) != n_modes:
        raise DataError(f"{len(names)} mode names for {n_modes} modes")
    orders = [str(order) for order in arrays.get("orders", [])] or [""] * n_modes
    made = []
    for n, (name, size, order) in enumerate(zip(names, shape, orders, strict=True)):
        stored = arrays.get(f"labels_{n}")
        labels = None if stored is None else tuple(str(label) for label in stored)
        made.append(Mode(name, size, labels, order or guess_order(name, labels)))  # type: ignore[arg-type]
    return tuple(made)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
