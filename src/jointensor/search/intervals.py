"""Intervals of an ensemble, calibrated on predictions for entries that were left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.search.folds import Folds
from jointensor.search.settings import SETTINGS, SearchSettings


def calibrated(
    data: Folds,
    predictor: Ensemble,
    positions: NDArray[np.int64],
    predictions: NDArray[np.float32],
    seed: int,
    settings: SearchSettings = SETTINGS,
) -> Ensemble:
    """The ensemble with intervals.

    Parameters
    ----------
    data
        The entries in folds.
    predictor
        Without intervals.
    positions
        Of entries in the tensor, ``(entries,)``.
    predictions
        Out-of-fold predictions for them, ``(entries,)``.
    seed
        Of what is random in it.
    settings
        Numbers of the search.
    """
    entries, bounds = data.tensor.take(positions), (predictor.low, predictor.high)
    left_out = HeldOut(entries.indices, predictions, entries.values - predictions, cold_entries(data, positions))
    left_out = _thinned(left_out, data.dependent[positions], seed, settings)
    fresh = _untouched(data, predictor, seed, settings)
    return replace(predictor, calibration=calibrate(left_out, data.tensor.shape, fresh, seed, bounds))


def cold_entries(data: Folds, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which entries have a label that the fits to the other folds did not see, ``(entries,)``."""
    cells, folds, scored = data.tensor.indices[positions], data.fold[positions], data.scored
    cold = np.zeros(len(positions), dtype=np.bool_)
    for n, size in enumerate(data.tensor.shape):
        column = data.tensor.indices[:, n]
        whole = np.bincount(column, minlength=size)
        for fold in np.unique(folds):
            own = np.bincount(column[scored == fold], minlength=size)  # entries that its fits did not see
            mine = folds == fold
            cold[mine] |= (whole - own)[cells[mine, n]] == 0
    return cold


def _untouched(data: Folds, predictor: Ensemble, seed: int, settings: SearchSettings) -> HeldOut | None:
    """Untouched entries with their predictions."""
    if not len(data.untouched):
        return None
    cells = data.untouched.indices
    predictions = predictor.predict(cells)
    fresh = HeldOut(cells, predictions, data.untouched.values - predictions, predictor.unseen(cells))
    return _thinned(fresh, predictor.determined(cells), seed, settings)


def _thinned(entries: HeldOut, known: NDArray[np.bool_], seed: int, settings: SearchSettings) -> HeldOut:
    """Fewer of the entries whose value is given: they never miss, and all misses would fall on the others."""
    others, most = np.flatnonzero(~known), round((settings.max_miss_ratio - 1) * (~known).sum())
    if not 0 < most < known.sum():
        return entries
    some = np.random.default_rng([seed, 11]).permutation(np.flatnonzero(known))[:most]
    return entries.at(np.sort(np.append(others, some)))
