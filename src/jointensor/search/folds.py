"""Which entries are left out together when ``auto`` judges structures, and which only calibrate intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import groups_of
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.dependencies import seen_elsewhere

FOLDS = 5

OPEN, FEWEST = 0.02, 50
"""Share of the entries that others must leave open, and entries in every fold, for structures to be judged by them."""

HOLD_FROM, HELD, MOST_HELD = 400_000, 0.04, 20_000
"""Of tensors with so many entries this share, and no more than so many, only calibrates intervals. Smaller ones have
none to spare: their intervals come from the folds."""


def make_folds(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.int8]:
    """A fold for every entry; entries that share their labels of ``groups`` share their fold."""
    count, member = groups_of(tensor, groups)
    return (np.random.default_rng([seed, 5]).permutation(count) % FOLDS).astype(np.int8)[member]


def settled_by_others(
    tensor: SparseTensor, modes: tuple[int, ...] | None, folds: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """Entries whose value entries of other folds decide: nothing is to be learnt from leaving them out.

    Where hardly any others would be left to judge by, none.
    """
    nothing = np.zeros(len(tensor), dtype=np.bool_)
    if modes is None:
        return nothing
    found = seen_elsewhere(tensor, modes, folds)
    least = np.bincount(folds[~found], minlength=FOLDS).min()
    return found if FOLDS * least >= OPEN * len(tensor) and least >= FEWEST else nothing


def held_out(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Which entries only calibrate intervals."""
    share = min(HELD, MOST_HELD / max(len(tensor), 1)) if len(tensor) >= HOLD_FROM else 0.0
    count, member = groups_of(tensor, groups)
    found: NDArray[np.bool_] = (np.random.default_rng([seed, 9]).random(count) < share)[member]
    return found
