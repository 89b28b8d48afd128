"""A trained model that answers for every entry, those with labels it never saw included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.errors import ConfigError, RunError
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.predictors.conformal import Calibration
from jointensor.predictors.tables import Tables

CHUNK = 1 << 18
"""Entries that are on their way through the model at a time."""


@dataclass(frozen=True)
class Predictor:
    """A joint model and the additive-bias predictor that stands in for it on unseen labels.

    The factor rows of a label without training entries are whatever they started as, so an entry with such a label is
    answered by the bias predictor, to which the unseen label adds nothing; unless rows were drawn, which gives a label
    without entries the rows that labels have on average.
    """

    model: JointModel
    fallback: Tables
    returned: Literal["joint", "bias"] = "joint"
    """Which of the two answers for labels that were seen."""
    calibration: Calibration | None = None
    """How far values lie from predictions; ``None`` where there were too few entries to say."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""
        return self.model.shape

    def unseen(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a label that no training entry had (or that is unknown: -1)."""
        found = [table.find(indices) < len(table.keys) for table in self.fallback.tables]
        return ~np.logical_and.reduce(found)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``; memory does not grow with the answer."""
        indices = np.asarray(indices)
        answer = np.empty(len(indices), dtype=np.float32)
        device = next(self.model.parameters()).device
        for start in range(0, len(indices), CHUNK):
            chunk = indices[start : start + CHUNK]
            cold = self.not_for_the_model(chunk, self.unseen(chunk))
            part = answer[start : start + CHUNK]
            part[cold] = self.fallback.predict(chunk[cold])
            warm = torch.as_tensor(np.ascontiguousarray(chunk[~cold]), device=device)
            part[~cold] = evaluate_in_batches(self.model, warm, 1 << 15).cpu().numpy()
        return answer

    def not_for_the_model(self, indices: NDArray[np.integer], unseen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Entries that the bias predictor answers, by which of them are unseen.

        Rows that are drawn are drawn for labels without entries too, from what the others are like: such a model only
        cannot answer for labels that it has no row for.
        """
        if self.returned != "joint":
            return np.ones(len(indices), dtype=np.bool_)
        g = self.model.multilinear
        if self.model.nonlinear is None and g is not None and len(g.draws):
            return np.any((indices < 0) | (indices >= np.array(self.model.shape)), axis=1)
        return unseen

    def interval(self, indices: NDArray[np.integer], level: float) -> NDArray[np.float32]:
        """Lower and upper ends that hold a share ``level`` of such entries, ``(entries, 2)``."""
        return interval_of(self, np.asarray(indices), level)


def interval_of(predictor: Any, indices: NDArray[np.integer], level: float) -> NDArray[np.float32]:
    """Intervals of whatever predicts and is calibrated."""
    if not 0 < level < 1:
        raise ConfigError(f"an interval of {level:g} is not possible; give a share between 0 and 1, such as 0.9")
    if predictor.calibration is None:
        raise RunError("this model has no intervals: there were too few entries that it was not trained on; fit again")
    centre = predictor.predict(indices)
    ends = predictor.calibration.interval(indices, centre, level, predictor.unseen(indices))
    return ends.astype(np.float32)
