"""The tensor: observed entries in coordinate form. A cell that was not observed is unknown, not zero.

Nothing here allocates anything of size ``prod(shape)``, so a tensor of 10⁶ × 10⁶ × 10⁶ is as
cheap as its entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jointensor.data.modes import Mode, find_mode
from jointensor.data.values import ValueSummary, check_underflow
from jointensor.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import spmatrix


@dataclass(frozen=True, eq=False, repr=False)
class SparseTensor:
    """Observed entries of an N-way tensor.

    Parameters
    ----------
    indices
        Positions, shape ``(entries, modes)``, zero-based, each cell at most once.
    values
        One finite number per entry. Stored in 32 bits; values whose differences are lost in 32 bits are refused.
    modes
        The axes, as :class:`~jointensor.data.modes.Mode` objects or simply as the shape.

    Examples
    --------
    >>> SparseTensor([[0, 0, 1], [1, 2, 0]], [3.0, 5.0], (2, 3, 2))
    SparseTensor 2 x 3 x 2 (mode_0, mode_1, mode_2): 2 entries, density 0.167, values 3 to 5
    """

    indices: NDArray[np.integer]
    values: NDArray[np.float32]
    modes: tuple[Mode, ...]

    def __init__(self, indices: ArrayLike, values: ArrayLike, modes: Sequence[int | Mode]) -> None:
        object.__setattr__(self, "modes", _as_modes(modes))
        object.__setattr__(self, "indices", _as_indices(indices, self.modes))
        given = _as_array(values, "values")
        object.__setattr__(self, "values", _as_values(given, len(self.indices)))
        _check_rounding(given, self.values)
        _refuse_duplicates(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each mode."""
        return tuple(mode.size for mode in self.modes)

    @property
    def mode_names(self) -> tuple[str, ...]:
        """Name of each mode."""
        return tuple(mode.name for mode in self.modes)

    @property
    def n_modes(self) -> int:
        """Number of modes, N in the paper."""
        return len(self.modes)

    @property
    def density(self) -> float:
        """Share of all cells that was observed."""
        return len(self) / math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        span = f"values {self.values.min():g} to {self.values.max():g}" if len(self) else "no values"
        names = ", ".join(self.mode_names)
        return f"SparseTensor {sizes} ({names}): {len(self):,} entries, density {self.density:.3g}, {span}"

    def mode(self, name: str) -> int:
        """Position of the mode called ``name``."""
        return find_mode(self.modes, name)

    def take(self, positions: NDArray[np.integer]) -> SparseTensor:
        """The entries at ``positions``, in that order, over the same modes."""
        return _checked(self.indices[positions], self.values[positions], self.modes)

    def with_values(self, values: NDArray[np.floating]) -> SparseTensor:
        """The same cells with other values."""
        return _checked(self.indices, _as_values(values, len(self.indices)), self.modes)

    def over(self, modes: tuple[Mode, ...]) -> SparseTensor:
        """The same entries over modes of the same sizes."""
        if tuple(mode.size for mode in modes) != self.shape:
            raise DataError(f"modes of sizes {[mode.size for mode in modes]} for a tensor of shape {self.shape}")
        return _checked(self.indices, self.values, modes)

    @classmethod
    def part(cls, indices: ArrayLike, values: ArrayLike, modes: Sequence[int | Mode]) -> SparseTensor:
        """Some entries of a larger tensor: as the constructor, but their spread alone need not fit 32 bits."""
        axes = _as_modes(modes)
        positions = _as_indices(indices, axes)
        tensor = _checked(positions, _as_values(values, len(positions)), axes)
        _refuse_duplicates(tensor)
        return tensor

    @classmethod
    def from_dense(cls, array: ArrayLike, modes: Sequence[int | Mode] | None = None) -> SparseTensor:
        """Entries of a NumPy array; NaN, or a mask, marks missing cells."""
        try:
            dense = np.ma.filled(np.ma.asarray(array).astype(np.float64), np.nan)  # masked is missing too
        except (TypeError, ValueError) as error:
            raise DataError(f"from_dense takes an array of numbers: {error}") from None
        known = ~np.isnan(dense)
        return cls(np.argwhere(known), dense[known], dense.shape if modes is None else modes)

    @classmethod
    def from_scipy(cls, matrix: spmatrix | Any, modes: Sequence[int | Mode] | None = None) -> SparseTensor:
        """Stored entries of a SciPy (or any ``coords``/``data``) sparse array; stored zeros count."""
        if not hasattr(matrix, "tocoo") and not hasattr(matrix, "coords"):
            raise DataError(f"from_scipy takes a sparse array, not {type(matrix).__name__}")
        coo = matrix.tocoo() if hasattr(matrix, "tocoo") else matrix
        coords = coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)
        return cls(np.stack(coords, axis=1), coo.data, coo.shape if modes is None else modes)

    @classmethod
    def from_frame(cls, frame: Any, modes: Any, value: str, *, duplicates: str = "error") -> SparseTensor:
        """Entries of a pandas, polars or pyarrow frame; see :func:`jointensor.data.frames.frame_to_tensor`."""
        from jointensor.data.frames import TableSpec, frame_to_tensor  # noqa: PLC0415 - polars only when needed

        return frame_to_tensor(frame, TableSpec.of(modes, value, duplicates=duplicates)).tensor

    def to_frame(self, value: str = "value") -> Any:
        """A polars frame: one column of labels per mode, then the values."""
        from jointensor.data.frames import tensor_to_frame  # noqa: PLC0415 - polars only when needed

        return tensor_to_frame(self, value)


def _checked(indices: NDArray[Any], values: NDArray[Any], modes: tuple[Mode, ...]) -> SparseTensor:
    """A tensor of entries that were checked already."""
    tensor = object.__new__(SparseTensor)
    object.__setattr__(tensor, "indices", _frozen(indices))
    object.__setattr__(tensor, "values", _frozen(values))
    object.__setattr__(tensor, "modes", modes)
    return tensor


def _as_modes(modes: Sequence[int | Mode]) -> tuple[Mode, ...]:
    made = tuple(mode if isinstance(mode, Mode) else Mode(f"mode_{n}", int(mode)) for n, mode in enumerate(modes))
    if len(made) < 2:
        raise DataError(f"a tensor has at least two modes, this one has {len(made)}: name another mode")
    names = [mode.name for mode in made]
    if len(set(names)) != len(names):
        raise DataError(f"mode names must differ, got {', '.join(names)}")
    return made


def _as_indices(indices: ArrayLike, modes: tuple[Mode, ...]) -> NDArray[np.integer]:
    array = _as_array(indices, "indices")
    if array.size == 0:
        array = array.reshape(0, len(modes)).astype(np.int64)
    if array.ndim != 2 or array.shape[1] != len(modes):
        raise DataError(f"indices have shape {array.shape}, expected (entries, {len(modes)}) for {len(modes)} modes")
    check_whole(array, [mode.name for mode in modes])
    for n, mode in enumerate(modes):
        wrong = (array[:, n] < 0) | (array[:, n] >= mode.size)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"entry {row}: mode '{mode.name}' has index {int(array[row, n])}, "
                f"allowed are 0 to {mode.size - 1} ({mode.size} labels)"
            )
    wide = max(mode.size for mode in modes) > np.iinfo(np.int32).max
    return _frozen(np.ascontiguousarray(array, dtype=np.int64 if wide else np.int32))


def check_whole(array: NDArray[Any], names: Sequence[str]) -> None:
    """Refuse indices ``(entries, modes)`` that are not whole numbers; 3.0 is one."""
    if array.dtype.kind in "iu":
        return
    if array.dtype.kind != "f":
        raise DataError(f"indices must be whole numbers, got {array.dtype}")
    wrong = ~np.isfinite(array) | (array != np.floor(array))
    if wrong.any():
        row, n = np.argwhere(wrong)[0]
        raise DataError(f"entry {row}: mode '{names[n]}' has index {array[row, n]}, which is not a whole number")


def _as_array(numbers: ArrayLike, what: str) -> NDArray[Any]:
    try:
        return np.asarray(numbers)
    except ValueError:
        raise DataError(f"{what} are not a regular array: their rows differ in length") from None


def _as_values(values: ArrayLike, entries: int) -> NDArray[np.float32]:
    array = _as_array(values, "values")
    if array.dtype.kind not in "iufb":
        raise DataError(f"values must be numbers, got {array.dtype}")
    if array.shape != (entries,):
        raise DataError(f"values have shape {array.shape}, expected ({entries},): one number per entry")
    with np.errstate(over="ignore"):
        small = np.ascontiguousarray(array, dtype=np.float32)
    wrong = ~np.isfinite(small)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"entry {row} has the value {array[row]}, which is not a finite 32-bit number")
    return _frozen(small)


def _check_rounding(given: NDArray[Any], values: NDArray[np.float32]) -> None:
    """Refuse values that 32 bits turn into zero or cannot tell apart."""
    check_underflow(given, values)
    summary = ValueSummary()
    summary.update(given)
    summary.check_precision()


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


MAX_MARKED_KEYS = 20_000_000
"""Possible keys up to which a mark for each is cheaper than sorting."""


def cell_keys(indices: NDArray[np.integer], shape: Sequence[int]) -> NDArray[np.int64]:
    """One number per cell, the same for equal cells; any shape, even where ``prod(shape)`` overflows.

    Where ``prod(shape)`` is 2⁶² or more, numbers from one call mean nothing in another.
    """
    if math.prod(shape) < 2**62:
        return np.ravel_multi_index(tuple(indices.T.astype(np.int64)), tuple(shape)).astype(np.int64)
    key = np.zeros(len(indices), dtype=np.int64)
    size = 1
    for n, length in enumerate(shape):
        if size * length >= 2**62:  # replace the keys so far by dense codes first
            distinct, key = np.unique(key, return_inverse=True)
            size = len(distinct)
        key = key * length + indices[:, n]
        size *= length
    return key


def distinct_keys(keys: NDArray[np.integer], total: int) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Keys that occur, in order, and which of them every key is: ``np.unique``, without sorting where keys are small.

    Parameters
    ----------
    keys
        Whole numbers from 0 on, ``(entries,)``.
    total
        One more than the largest that is possible.
    """
    if total > MAX_MARKED_KEYS:
        found, place = np.unique(keys, return_inverse=True)
        return found.astype(np.int64), place
    there = np.zeros(total, dtype=np.bool_)
    there[keys] = True
    place = np.cumsum(there, dtype=np.intp) - 1
    return np.flatnonzero(there).astype(np.int64), place[keys]


def join(first: SparseTensor, second: SparseTensor) -> SparseTensor:
    """The entries of two parts of one tensor."""
    return _checked(
        np.concatenate([first.indices, second.indices]), np.concatenate([first.values, second.values]), first.modes
    )


def replace_cells(tensor: SparseTensor, more: SparseTensor) -> SparseTensor:
    """Entries with others beside them, which replace those of the same cells; over the modes of the others.

    The modes of ``more`` begin with the labels of the tensor and go on with new ones.
    """
    keys = cell_keys(np.concatenate([tensor.indices, more.indices]), more.shape)
    kept = np.flatnonzero(~np.isin(keys[: len(tensor)], keys[len(tensor) :]))
    return join(more, tensor.take(kept))


def _refuse_duplicates(tensor: SparseTensor) -> None:
    keys = cell_keys(tensor.indices, tensor.shape)
    if np.all(np.diff(np.sort(keys))):  # much faster than locating the duplicates
        return
    order = np.argsort(keys, kind="stable")
    repeats = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if len(repeats):
        first, second = sorted(order[repeats[0] : repeats[0] + 2])
        cell = ", ".join(
            f"{m.name}={m.label(int(i))}" for m, i in zip(tensor.modes, tensor.indices[first], strict=True)
        )
        raise DataError(
            f"{len(repeats):,} entries repeat a cell, the first cell at entries {first} and {second} ({cell}); "
            "choose a rule for them (duplicates='sum', 'mean', 'count' or 'last')"
        )
