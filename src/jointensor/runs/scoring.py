"""How good a predictor is, and how far off it may be: figures and intervals from entries it was not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.metrics import Metrics
from jointensor.predictors import Predictor
from jointensor.predictors.conformal import Calibration, HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor

Entries = tuple[NDArray[np.integer], NDArray[Any]]
"""Indices and values; an index of -1 is a label that the tensor does not have."""

MIN_CALIBRATION_ENTRIES = 20
"""Entries without which there are no intervals: a quantile of fewer says nothing about one in ten."""

EVALUATION_CHUNK = 1 << 18
"""Entries that are predicted at a time."""


def score(
    predictor: JointPredictor | Ensemble, baselines: Mapping[str, Predictor], parts: Iterable[Entries]
) -> dict[str, dict[str, Any] | None]:
    """Figures of ``model`` and of every baseline on entries that come in parts; ``None`` where there are none.

    Those of the model are also given for entries whose labels were all seen in training (``warm``), and the others.
    """
    overall, warm, cold = Metrics(), Metrics(), Metrics()
    others = {name: Metrics() for name in baselines}
    for all_indices, all_values in parts:
        for start in range(0, len(all_values), EVALUATION_CHUNK):
            indices = all_indices[start : start + EVALUATION_CHUNK]  # (chunk, modes)
            values = all_values[start : start + EVALUATION_CHUNK]  # (chunk,)
            predicted, unseen = predictor.predict(indices), predictor.unseen(indices)
            overall.update(predicted, values)
            warm.update(predicted[~unseen], values[~unseen])
            cold.update(predicted[unseen], values[unseen])
            for name, baseline in baselines.items():
                others[name].update(baseline.predict(indices), values)
    if not overall.n:
        return dict.fromkeys(["model", *baselines])
    figures: dict[str, Any] = overall.to_dict() | {"warm": warm.to_dict(), "cold": cold.to_dict()}
    return {"model": figures, **{name: one.to_dict() for name, one in others.items()}}


def calibrate_on(predictor: JointPredictor | Ensemble, entries: Entries, shape: tuple[int, ...]) -> Calibration | None:
    """Intervals from entries that the predictor was not trained on; ``None`` where they are too few."""
    indices, values = entries
    known = np.all(indices >= 0, axis=1)
    if known.sum() < MIN_CALIBRATION_ENTRIES:
        return None
    indices, values = indices[known], np.asarray(values)[known]
    predicted = predictor.predict(indices)
    return calibrate(HeldOut(indices, predicted, values - predicted, predictor.unseen(indices)), shape)
