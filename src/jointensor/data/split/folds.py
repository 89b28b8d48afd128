"""Groups of entries, the folds of a cross-validation, and the entries that only calibrate intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys

FOLDS = 5

MIN_ENTRIES_TO_HOLD_OUT = 400_000
"""Tensors with fewer entries hold out none for calibration; their intervals come from the folds."""
CALIBRATION_SHARE, MAX_CALIBRATION_ENTRIES = 0.04, 20_000
"""Share of the entries that only calibrates intervals, and the most entries it may be."""


def groups_of(tensor: SparseTensor, columns: Sequence[int]) -> tuple[int, NDArray[np.integer]]:
    """Number of groups of entries that share their labels of some modes, and the group of every entry.

    Without modes every entry is its own group.
    """
    if not columns:
        return len(tensor), np.arange(len(tensor))
    sizes = [tensor.shape[c] for c in columns]
    groups, member = distinct_keys(cell_keys(tensor.indices[:, list(columns)], sizes), math.prod(sizes))
    return len(groups), member


def make_folds(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.int8]:
    """The fold of every entry, ``(entries,)``; entries that share their labels of ``groups`` share their fold."""
    count, member = groups_of(tensor, groups)
    return (np.random.default_rng([seed, 5]).permutation(count) % FOLDS).astype(np.int8)[member]


def held_out(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Marks the entries that only calibrate intervals, ``(entries,)``; whole groups, as in :func:`make_folds`."""
    enough = len(tensor) >= MIN_ENTRIES_TO_HOLD_OUT
    share = min(CALIBRATION_SHARE, MAX_CALIBRATION_ENTRIES / len(tensor)) if enough else 0.0
    count, member = groups_of(tensor, groups)
    held: NDArray[np.bool_] = (np.random.default_rng([seed, 9]).random(count) < share)[member]
    return held
