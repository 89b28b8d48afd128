"""Several models as one: a mean of members, what memory knows of its residuals, and an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.models.joint import JointModel
from jointensor.predictors.conformal import Calibration
from jointensor.predictors.joint import Predictor, interval_of
from jointensor.predictors.knn import KnnResiduals
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.tables import Mean, Table, Tables
from jointensor.predictors.trees import Trees

Part = Predictor | Tables | Trees | Mean
Memory = Kriging | KnnResiduals | Tables

CHUNK = 1 << 18
"""Entries that are on their way at a time."""


@dataclass(frozen=True)
class Member:
    """One structure: the mean of its fits, to all entries or to all but one fold each."""

    name: str
    weight: float
    parts: tuple[Part, ...]

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Mean of the parts' answers, ``(entries,)``."""
        total = np.zeros(len(indices))
        for part in self.parts:
            total += part.predict(indices)
        return total / len(self.parts)


@dataclass(frozen=True)
class Ensemble:
    """What ``auto`` returns."""

    members: tuple[Member, ...]
    memory: tuple[Memory, ...]
    """Fitted to residuals, those of entries that were left out as far as there are some, one after the other."""
    fallback: Tables
    """Additive biases of all entries; knows which labels were seen."""
    low: float
    high: float
    """Smallest and largest value that was seen; answers stay between."""
    calibration: Calibration | None = None
    decided: Table | None = None
    """Values by the labels of some modes, where those decide them."""

    @property
    def returned(self) -> str:
        """What answers."""
        return "auto"

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""
        return tuple(table.sizes[0] for table in self.fallback.tables)

    @property
    def model(self) -> JointModel | None:
        """The joint model of the member that weighs most among those that have one."""
        for member in sorted(self.members, key=lambda one: -one.weight):
            for part in member.parts:
                if isinstance(part, Predictor):
                    return part.model
        return None

    def unseen(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a label that no training entry had (or that is unknown: -1)."""
        found = [table.find(indices) < len(table.keys) for table in self.fallback.tables]
        return ~np.logical_and.reduce(found)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``."""
        indices = np.asarray(indices)
        answer = np.empty(len(indices), dtype=np.float32)
        for start in range(0, len(indices), CHUNK):
            part = indices[start : start + CHUNK]
            value = np.clip(self.mix(part) + self.remember(part), self.low, self.high)
            answer[start : start + CHUNK] = self.settle(part, value)
        return answer

    def interval(self, indices: NDArray[np.integer], level: float) -> NDArray[np.float32]:
        """Lower and upper ends that hold a share ``level`` of such entries, ``(entries, 2)``."""
        return np.clip(interval_of(self, np.asarray(indices), level), self.low, self.high)

    def mix(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """The weighted mean of the members."""
        total = np.zeros(len(indices))
        for member in self.members:
            total += member.weight * member.predict(indices)
        return total

    def settle(self, indices: NDArray[np.integer], value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same, but what is known where labels that decide the value were seen together."""
        if self.decided is None:
            return value
        rows = self.decided.find(indices)
        return np.where(rows < len(self.decided.keys), self.decided.effects[rows], value)

    def knows(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have labels that decide the value, and were seen together."""
        if self.decided is None:
            return np.zeros(len(indices), dtype=np.bool_)
        return self.decided.find(indices) < len(self.decided.keys)

    def remember(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """What the memory adds."""
        total = np.zeros(len(indices))
        for one in self.memory:
            total += one.predict(indices)
        return total

    def enough_memory(self, fresh: SparseTensor) -> tuple[int, float]:
        """How many parts of the memory, the first ones, predict entries best that nothing was learnt from, and their
        squared error.
        """
        said = self.mix(fresh.indices)
        errors = []
        for part in (None, *self.memory):
            said = said if part is None else said + part.predict(fresh.indices)
            settled = self.settle(fresh.indices, np.clip(said, self.low, self.high))
            errors.append(float(np.mean((settled - fresh.values) ** 2)))
        return int(np.argmin(errors)), min(errors)

    def n_parameters(self) -> int:
        """All numbers that were learnt."""
        parts = [part for member in self.members for part in member.parts] + list(self.memory)
        known = 0 if self.decided is None else len(self.decided.keys)
        return known + sum(p.model.n_parameters() if isinstance(p, Predictor) else p.n_parameters() for p in parts)
