"""How good a fitted model is, and how far off it may be: figures and intervals from entries it was not trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import Split
from jointensor.evaluation.evaluate import evaluate_entries
from jointensor.metrics import measure
from jointensor.predictors import Baseline
from jointensor.predictors.conformal import Calibration, HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import Predictor

Entries = tuple[NDArray[np.integer], NDArray[Any]]
"""Indices and values; an index of -1 is a label that the tensor does not have."""

FEWEST = 20
"""Entries without which there are no intervals."""


def figures_of(
    predictor: Predictor | Ensemble, baselines: dict[str, Baseline], parts: Split, test: Entries
) -> dict[str, Any]:
    """What ``metrics.json`` holds of the model and of the baselines, on test and validation entries."""

    def judged(entries: Entries) -> dict[str, Any] | None:
        return evaluate_entries(predictor, *entries) if len(entries[1]) else None

    def judged_baseline(baseline: Baseline, entries: Entries) -> dict[str, Any] | None:
        return measure(baseline.predict(entries[0]), entries[1]).to_dict() if len(entries[1]) else None

    valid = parts.valid.indices, parts.valid.values
    return {
        "test": judged(test),
        "valid": judged(valid),
        "baselines": {
            name: {"test": judged_baseline(one, test), "valid": judged_baseline(one, valid)}
            for name, one in baselines.items()
        },
    }


def calibrate_on(predictor: Predictor | Ensemble, parts: Split, test: Entries) -> Calibration | None:
    """Intervals from the test entries, which nothing was learnt from; validation entries where there are no others."""
    return calibrate_entries(
        predictor, test if len(test[1]) else (parts.valid.indices, parts.valid.values), parts.train.shape
    )


def calibrate_entries(predictor: Predictor | Ensemble, entries: Entries, shape: tuple[int, ...]) -> Calibration | None:
    """Intervals from entries that the model was not trained on."""
    indices, values = entries
    known = np.all(indices >= 0, axis=1)
    if known.sum() < FEWEST:
        return None
    indices, values = indices[known], np.asarray(values)[known]
    predicted = predictor.predict(indices)
    left_out = HeldOut(indices, predicted, values - predicted, predictor.unseen(indices))
    return calibrate(left_out, shape)
