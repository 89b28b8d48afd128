"""Kriging of residuals along an ordered mode, from the nearest observed entries of the same fiber.

A fiber is all entries that agree in every mode but one. Residuals along it are taken as a random process with

    cov(d) = v (a e^{−|d|/ℓ} + b e^{−|d|/L}),   a + b < 1, the rest is noise,

and an entry gets the best linear prediction from its nearest neighbours on both sides. a, b and ℓ are those with the
lowest leave-one-out error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.kernels.numba_kriging import predict_from_neighbours
from jointensor.predictors.base import MAX_CELLS, PREDICTORS, Packed, Predictor, require
from jointensor.predictors.fibers import check_fibers, check_order, fiber_keys, inside, ordered_along

NEIGHBOURS_PER_SIDE = 4
"""Nearest entries of the fiber that are used on each side: more change little, and cost by their cube."""

NEAR_SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
LENGTHS = (0.5, 1.0, 2.0, 4.0, 16.0)
FAR_SHARES = (0.0, 0.05, 0.1, 0.2)
"""Values of a, ℓ (in median steps along the mode) and b that are tried."""

MAX_SHARE = 0.95
"""Largest a + b that is tried: some noise keeps the systems well conditioned."""

FAR_LENGTH = 100.0
"""L, in median steps along the mode."""

MAX_TUNING_ENTRIES = 8000
"""Entries on which a, ℓ and b are tried."""

ABSENT_DISTANCE = 1e18
"""Distance of a neighbour that does not exist, in steps: its covariance with everything is zero."""

ARRAYS = ("coordinates", "ranks", "keys", "residuals")
COVARIANCE = ("period", "near", "length", "far")
"""Numbers that determine the covariance of two entries."""


@PREDICTORS.register("kriging")
@dataclass(frozen=True)
class Kriging(Predictor):
    """Residuals along one mode, and the covariance by which they predict each other."""

    mode: int
    shape: tuple[int, ...]
    coordinates: NDArray[np.float64]
    """Where positions lie along the mode, ascending, in median steps."""
    ranks: NDArray[np.int64]
    """Place of every label of the mode in ``coordinates``."""
    keys: NDArray[np.int64]
    """Cells as numbers, the mode varying fastest; sorted."""
    residuals: NDArray[np.float32]
    period: float
    """After which a cyclic mode begins again, in median steps; 0 where it is not cyclic."""
    near: float = 0.0
    """a."""
    length: float = 1.0
    """ℓ, in median steps."""
    far: float = 0.0
    """b."""

    @classmethod
    def of(
        cls,
        indices: NDArray[np.integer],
        residuals: NDArray[np.floating],
        mode: int,
        along: Mode,
        shape: Sequence[int],
    ) -> Kriging:
        """Residuals of entries with a covariance of zero, which predicts zero; :meth:`tuned` finds the best one."""
        ascending, ranks = ordered_along(along)
        gaps = np.diff(ascending)
        step = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
        coordinates = (ascending - ascending[0]) / step
        period = float(coordinates[-1] + 1) if along.order == "cyclic" else 0.0
        keys = fiber_keys(indices, tuple(shape), mode, ranks)
        sort = np.argsort(keys)
        return cls(mode, tuple(shape), coordinates, ranks, keys[sort], residuals[sort].astype(np.float32), period)

    def tuned(self, seed: int = 0) -> Kriging:
        """The same with the a, ℓ and b that have the lowest leave-one-out error."""
        some = np.random.default_rng(seed).permutation(len(self.keys))[:MAX_TUNING_ENTRIES]
        found = self._neighbours(self.keys[some], itself=True)
        truth = self.residuals[some].astype(np.float64)
        best, lowest = self, float(np.mean(truth**2))
        for near, length, far in product(NEAR_SHARES, LENGTHS, FAR_SHARES):
            if near + far > MAX_SHARE:
                continue
            tried = replace(self, near=near, length=length, far=far)
            error = float(np.mean((truth - tried._predict_from(*found)) ** 2))
            if error < lowest:
                best, lowest = tried, error
        return best

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Residuals predicted from the neighbours; zero where there are none."""
        known = inside(indices, self.shape)
        keys = fiber_keys(np.where(known[:, None], indices, 0), self.shape, self.mode, self.ranks)
        return np.where(known, self._predict_keys(keys, itself=False), 0.0)

    def leave_one_out(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Residuals of the model's own entries, each predicted without itself."""
        return self._predict_keys(fiber_keys(indices, self.shape, self.mode, self.ranks), itself=True)

    def n_parameters(self) -> int:
        """All residuals, and three numbers."""
        return len(self.residuals) + 3

    def supports(self, n_modes: int) -> bool:
        """As many modes as the entries had."""
        return len(self.shape) == n_modes

    def explain(self) -> dict[str, Any]:
        """Along which mode, and the covariance."""
        covariance = {name: float(getattr(self, name)) for name in COVARIANCE}
        return super().explain() | {"mode": self.mode} | covariance

    def pack(self) -> Packed:
        """Residuals and covariance."""
        config = {"mode": self.mode, "shape": list(self.shape)} | {name: getattr(self, name) for name in COVARIANCE}
        return Packed(config, {name: torch.as_tensor(getattr(self, name)) for name in ARRAYS})

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored residuals, if every position is one of the mode."""
        config, (coordinates, ranks, keys, residuals) = packed.config, map(packed.array, ARRAYS)
        shape = check_fibers(config["mode"], config["shape"], keys, residuals)
        check_order(shape[config["mode"]], coordinates, ranks)
        covariance = {name: float(config[name]) for name in COVARIANCE}  # compiled for floats
        require(all(0 <= one < MAX_CELLS for one in covariance.values()) and covariance["length"], "covariance")
        return cls(config["mode"], shape, coordinates, ranks, keys, residuals, **covariance)

    def _predict_keys(self, keys: NDArray[np.int64], *, itself: bool) -> NDArray[np.float64]:
        if self.near + self.far == 0 or not len(self.keys):
            return np.zeros(len(keys))
        observed = (self.keys, self.residuals, self.coordinates, self.shape[self.mode], self.period)
        covariance = (self.near, self.length, self.far, FAR_LENGTH)
        return predict_from_neighbours(keys, *observed, *covariance, NEIGHBOURS_PER_SIDE, int(itself))

    def _neighbours(self, keys: NDArray[np.int64], *, itself: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Residuals of the nearest entries and their distances from an entry, ``(entries, neighbours)`` each."""
        size = self.shape[self.mode]
        fiber, here = keys // size, self.coordinates[keys % size]
        first = np.searchsorted(self.keys, fiber * size)
        count = np.searchsorted(self.keys, (fiber + 1) * size) - first
        place = np.searchsorted(self.keys, keys) - first
        residuals: list[NDArray[np.float64]] = []
        distances: list[NDArray[np.float64]] = []
        for offset in [*range(-NEIGHBOURS_PER_SIDE, 0), *range(int(itself), NEIGHBOURS_PER_SIDE + int(itself))]:
            at = place + offset
            if self.period:  # around the cycle, but no neighbour twice
                others = count - int(itself)
                back = others // 2
                there = (-offset <= back) if offset < 0 else (offset - int(itself) < others - back)
                at = at % np.maximum(count, 1)
            else:
                there = (at >= 0) & (at < count)
            row = np.where(there, first + at, 0)
            gap = self.coordinates[self.keys[row] % size] - here
            if self.period:
                gap = (gap + self.period / 2) % self.period - self.period / 2
            residuals.append(np.where(there, self.residuals[row], 0.0))
            distances.append(np.where(there, gap, ABSENT_DISTANCE * (1 + len(distances))))
        return np.stack(residuals, axis=1), np.stack(distances, axis=1)

    def _predict_from(self, residuals: NDArray[np.float64], gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Best linear prediction from neighbours, ``(entries,)``."""
        apart = gaps[:, :, None] - gaps[:, None, :]
        if self.period:
            wrapped = (apart + self.period / 2) % self.period - self.period / 2
            apart = np.where(np.abs(apart) < ABSENT_DISTANCE / 2, wrapped, apart)
        system = self._covariance(apart)  # (entries, neighbours, neighbours)
        each = np.arange(gaps.shape[1])
        system[:, each, each] = 1.0
        weights = np.linalg.solve(system, self._covariance(gaps)[:, :, None])[:, :, 0]
        return np.einsum("en,en->e", weights, residuals)

    def _covariance(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = np.abs(gap)
        return self.near * np.exp(-distance / self.length) + self.far * np.exp(-distance / FAR_LENGTH)
