"""Which entries are left out together when ``auto`` judges structures, and which only calibrate intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.sparse import SparseTensor
from jointensor.data.split import groups_of

FOLDS = 5

HOLD_FROM, HELD, MOST_HELD = 400_000, 0.04, 20_000
"""Of tensors with so many entries this share, and no more than so many, only calibrates intervals. Smaller ones have
none to spare: their intervals come from the folds."""


def make_folds(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.int8]:
    """A fold for every entry; entries that share their labels of ``groups`` share their fold."""
    count, member = groups_of(tensor, groups)
    return (np.random.default_rng([seed, 5]).permutation(count) % FOLDS).astype(np.int8)[member]


def held_out(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Which entries only calibrate intervals."""
    share = min(HELD, MOST_HELD / max(len(tensor), 1)) if len(tensor) >= HOLD_FROM else 0.0
    count, member = groups_of(tensor, groups)
    found: NDArray[np.bool_] = (np.random.default_rng([seed, 9]).random(count) < share)[member]
    return found
