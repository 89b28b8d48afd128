"""Groups of entries, the folds of a cross-validation, and the entries that only calibrate intervals."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys

FOLDS = 5

MIN_ENTRIES_TO_HOLD_OUT = 400_000
"""Tensors with fewer entries hold out none for calibration; their intervals come from the folds."""
CALIBRATION_SHARE, MAX_CALIBRATION_ENTRIES = 0.04, 20_000
"""Share of the entries that only calibrates intervals, and the most entries it may be."""


Groups = tuple[int | tuple[int, int], ...]
"""Entries that stay together: those with the same labels of some modes; ``(mode, n)`` counts n neighbouring labels as
one. Without modes every entry is on its own."""


def blocks_of(groups: Groups) -> list[tuple[int, int]]:
    """Modes with the number of neighbouring labels that count as one."""
    return [(one, 1) if isinstance(one, int) else one for one in groups]


def new_modes(groups: Groups) -> tuple[int, ...]:
    """Modes whose labels, taken together, are new where a group is left out; none where blocks have neighbours."""
    return tuple(n for n, _ in blocks_of(groups)) if all(isinstance(one, int) for one in groups) else ()


def places_of(mode: Mode) -> NDArray[np.int64]:
    """Place of every label in the order of its mode, ``(size,)``."""
    return np.argsort(np.argsort(mode.coordinates(), kind="stable"), kind="stable")


def groups_of(tensor: SparseTensor, groups: Groups) -> tuple[int, NDArray[np.integer]]:
    """Number of groups, and the group of every entry."""
    if not groups:
        return len(tensor), np.arange(len(tensor))
    columns, sizes = [], []
    for n, size in blocks_of(groups):
        column = tensor.indices[:, n]
        columns.append(column if size == 1 else places_of(tensor.modes[n])[column] // size)
        sizes.append(-(-tensor.shape[n] // size))
    found, member = distinct_keys(cell_keys(np.column_stack(columns), sizes), math.prod(sizes))
    return len(found), member


def make_folds(tensor: SparseTensor, groups: Groups, seed: int) -> NDArray[np.int8]:
    """The fold of every entry, ``(entries,)``; entries of a group share their fold."""
    count, member = groups_of(tensor, groups)
    return (np.random.default_rng([seed, 5]).permutation(count) % FOLDS).astype(np.int8)[member]


def held_out(tensor: SparseTensor, groups: Groups, seed: int) -> NDArray[np.bool_]:
    """Marks the entries that only calibrate intervals, ``(entries,)``; whole groups, as in :func:`make_folds`."""
    enough = len(tensor) >= MIN_ENTRIES_TO_HOLD_OUT
    share = min(CALIBRATION_SHARE, MAX_CALIBRATION_ENTRIES / len(tensor)) if enough else 0.0
    count, member = groups_of(tensor, groups)
    held: NDArray[np.bool_] = (np.random.default_rng([seed, 9]).random(count) < share)[member]
    return held
