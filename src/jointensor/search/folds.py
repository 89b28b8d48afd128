"""Entries that a cross-validation learns nothing from, because entries of other folds determine their values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.dependencies import seen_elsewhere

OPEN, FEWEST = 0.02, 50
"""Share of the entries that others must leave open, and entries in every fold, for structures to be judged by them."""


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
