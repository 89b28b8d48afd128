"""Figures and intervals of a predictor, from entries that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.errors import DataError
from jointensor.metrics import Metrics
from jointensor.predictors import Predictor
from jointensor.predictors.base import CHUNK
from jointensor.predictors.conformal import Calibration, HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.training.fit import Fit

Entries = tuple[NDArray[np.integer], NDArray[Any]]
"""Indices and values; an index of -1 is a label that the tensor does not have."""

MIN_CALIBRATION_ENTRIES = 20
"""Entries without which there are no intervals: a quantile of fewer says nothing about one in ten."""


def evaluate(fitted: Fit | JointPredictor | Ensemble, tensor: SparseTensor) -> dict[str, Any]:
    """RMSE, MAE and RFE on the entries of a tensor.

    Returns
    -------
    ``{rmse, mae, rfe, n, warm: {…}, cold: {…}}``; *cold* entries have a label that no training entry had and
    are predicted from the additive biases.
    """
    predictor = fitted.predictor if isinstance(fitted, Fit) else fitted
    if tensor.shape != predictor.shape:
        raise DataError(f"the model was fitted to shape {predictor.shape}, the tensor has {tensor.shape}")
    return evaluate_entries(predictor, tensor.indices, tensor.values)


def evaluate_entries(
    predictor: JointPredictor | Ensemble, indices: NDArray[np.integer], values: ArrayLike
) -> dict[str, Any]:
    """The same for indices and values; an index of -1 is a label the tensor does not have."""
    return score(predictor, [(indices, np.asarray(values))])["model"]


def score(
    predictor: JointPredictor | Ensemble, parts: Iterable[Entries], baselines: Mapping[str, Predictor] | None = None
) -> dict[str, dict[str, Any]]:
    """Figures of ``model`` and of every baseline on entries that come in parts; without entries, they are ``None``.

    Those of the model are also given for entries whose labels were all seen in training (``warm``), and the others.
    """
    overall, warm, cold = Metrics(), Metrics(), Metrics()
    others = {name: (baseline, Metrics()) for name, baseline in (baselines or {}).items()}
    for all_indices, all_values in parts:
        for start in range(0, len(all_values), CHUNK):
            indices, values = all_indices[start : start + CHUNK], all_values[start : start + CHUNK]  # (chunk, modes)
            predicted, unseen = predictor.predict(indices), predictor.unseen(indices)
            overall.update(predicted, values)
            warm.update(predicted[~unseen], values[~unseen])
            cold.update(predicted[unseen], values[unseen])
            for baseline, one in others.values():
                one.update(baseline.predict(indices), values)
    figures: dict[str, Any] = overall.to_dict() | {"warm": warm.to_dict(), "cold": cold.to_dict()}
    return {"model": figures, **{name: one.to_dict() for name, (_, one) in others.items()}}


def calibrate_on(
    predictor: JointPredictor | Ensemble,
    entries: Entries,
    shape: tuple[int, ...],
    together: NDArray[np.integer] | None = None,
) -> Calibration | None:
    """Intervals from entries that the predictor was not trained on; ``None`` where they are too few.

    ``together`` is the group of every entry, where they were left out in groups.
    """
    indices, values = entries
    known = np.all(indices >= 0, axis=1)
    if known.sum() < MIN_CALIBRATION_ENTRIES:
        return None
    indices, values = indices[known], np.asarray(values)[known]
    predicted = predictor.predict(indices)
    together = None if together is None else together[known]
    held_out = HeldOut(indices, predicted, values - predicted, predictor.unseen(indices), together)
    return calibrate(held_out.thinned(predictor.determined(indices), seed=0), shape)
