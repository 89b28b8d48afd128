"""Intervals of an ensemble, calibrated on predictions for entries that were left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import groups_of
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.search.folds import Folds, LeftOut


def calibrated(
    data: Folds,
    predictor: Ensemble,
    left_out: LeftOut,
    own: LeftOut | None,
    seed: int,
) -> Ensemble:
    """The ensemble with intervals.

    Parameters
    ----------
    data
        The entries in folds.
    predictor
        Without intervals.
    left_out
        Positions of entries in the tensor, and predictions for them by models that did not see them.
    own
        The same for entries whose errors are those of the predictor, if errors of ``left_out`` only are in proportion
        to them. Without untouched entries, quantiles are theirs.
    seed
        Of what is random in it.
    """
    fresh = _untouched(data, predictor, seed)
    if fresh is None and own is not None:
        fresh = _held_out(data, own, seed)
    bounds = predictor.low, predictor.high
    calibration = calibrate(_held_out(data, left_out, seed), data.tensor.shape, fresh, seed, bounds)
    return replace(predictor, calibration=calibration)


def _held_out(data: Folds, left_out: LeftOut, seed: int) -> HeldOut:
    """Left-out entries with their predictions."""
    positions, predictions = left_out
    entries = data.tensor.take(positions)
    together = groups_of(entries, data.together)[1] if data.together else None
    cold = cold_entries(data, positions)
    found = HeldOut(entries.indices, predictions, entries.values - predictions, cold, together)
    return found.thinned(data.dependent[positions], seed)


def cold_entries(data: Folds, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which entries have a label that the fits to the other folds did not see, ``(entries,)``."""
    cells, folds = data.tensor.indices[positions], data.fold[positions]
    cold = np.zeros(len(positions), dtype=np.bool_)
    for n, size in enumerate(data.tensor.shape):
        column = data.tensor.indices[:, n]
        for fold in np.unique(folds):
            seen = np.bincount(column[data.learnt_from(int(fold))], minlength=size)  # by its fits
            mine = folds == fold
            cold[mine] |= seen[cells[mine, n]] == 0
    return cold


def _untouched(data: Folds, predictor: Ensemble, seed: int) -> HeldOut | None:
    """Untouched entries with their predictions."""
    if not len(data.untouched):
        return None
    cells = data.untouched.indices
    predictions = predictor.predict(cells)
    together = groups_of(data.untouched, data.together)[1] if data.together else None
    fresh = HeldOut(cells, predictions, data.untouched.values - predictions, predictor.unseen(cells), together)
    return fresh.thinned(predictor.determined(cells), seed)
