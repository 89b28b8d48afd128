"""Figures of a predictor on entries: all, those with labels seen in training, and the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.errors import DataError
from jointensor.metrics import Metrics
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import CHUNK, JointPredictor
from jointensor.training.fit import Fit


def evaluate(fitted: Fit | JointPredictor | Ensemble, tensor: SparseTensor) -> dict[str, Any]:
    """RMSE, MAE and RFE on the entries of a tensor.

    Returns
    -------
    ``{rmse, mae, rfe, n, warm: {…}, cold: {…}}``; *cold* entries have a label that no training entry had and
    are answered by the additive-bias predictor.
    """
    predictor = fitted.predictor if isinstance(fitted, Fit) else fitted
    if tensor.shape != predictor.shape:
        raise DataError(f"the model was fitted to shape {predictor.shape}, the tensor has {tensor.shape}")
    return evaluate_entries(predictor, tensor.indices, tensor.values)


def evaluate_entries(
    predictor: JointPredictor | Ensemble, indices: NDArray[np.integer], values: ArrayLike
) -> dict[str, Any]:
    """The same for indices and values; an index of -1 is a label the tensor does not have."""
    observed = np.asarray(values)
    every, warm, cold = Metrics(), Metrics(), Metrics()
    for start in range(0, len(indices), CHUNK):
        chunk, truth = indices[start : start + CHUNK], observed[start : start + CHUNK]
        predicted = predictor.predict(chunk)
        unseen = predictor.unseen(chunk)
        every.update(predicted, truth)
        warm.update(predicted[~unseen], truth[~unseen])
        cold.update(predicted[unseen], truth[unseen])
    return every.to_dict() | {"warm": warm.to_dict(), "cold": cold.to_dict()}
