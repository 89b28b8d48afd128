"""What neighbours along an ordered mode know: residuals of the nearest observed entries of the same fiber.

A fiber is all entries that agree in every mode but one. Residuals along it are taken as a random process with

    cov(d) = v (a e^{−|d|/ℓ} + b e^{−|d|/L}),   a + b < 1, the rest is noise,

and an entry gets the best linear guess from its nearest neighbours on both sides (kriging). a, b and ℓ are those that
guess entries best that are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.predictors.interpolation import fiber_keys

SIDE = 4
"""Neighbours that are asked on each side."""

NEAR = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
LENGTHS = (0.5, 1.0, 2.0, 4.0, 16.0)
FAR = (0.0, 0.05, 0.1, 0.2)
"""Values of a, ℓ (in usual steps along the mode) and b that are tried."""

LONG = 100.0
"""L, in usual steps."""

SAMPLE = 8000
"""Entries on which they are tried."""

CHUNK = 1 << 16
"""Entries whose systems are solved at a time."""

NOBODY = 1e18
"""Distance of a neighbour that is not there."""


@dataclass(frozen=True)
class Kriging:
    """Residuals along one mode, and how much they say."""

    mode: int
    shape: tuple[int, ...]
    coordinates: NDArray[np.float64]
    """Where positions lie along the mode, ascending, in usual steps."""
    ranks: NDArray[np.int64]
    """Place of every label of the mode in ``coordinates``."""
    keys: NDArray[np.int64]
    """Cells as numbers, the mode varying fastest; sorted."""
    residuals: NDArray[np.float32]
    period: float
    """After which the mode begins again; 0 where it does not."""
    near: float = 0.0
    length: float = 1.0
    far: float = 0.0

    @classmethod
    def of(
        cls,
        indices: NDArray[np.integer],
        residuals: NDArray[np.floating],
        mode: int,
        along: Mode,
        shape: Sequence[int],
    ) -> Kriging:
        """Residuals of entries, ready to be asked; what they say is still open."""
        raw = along.coordinates()
        order = np.argsort(raw, kind="stable")
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        gaps = np.diff(raw[order])
        step = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
        coordinates = (raw[order] - raw[order][0]) / step
        period = float(coordinates[-1] + 1) if along.order == "cyclic" else 0.0
        keys = fiber_keys(indices, tuple(shape), mode, ranks)
        sort = np.argsort(keys)
        return cls(mode, tuple(shape), coordinates, ranks, keys[sort], residuals[sort].astype(np.float32), period)

    def tuned(self, seed: int = 0) -> Kriging:
        """The same with the a, ℓ and b that guess left-out entries best."""
        some = np.random.default_rng(seed).permutation(len(self.keys))[:SAMPLE]
        found = self._neighbours(self.keys[some], itself=True)
        truth = self.residuals[some].astype(np.float64)
        best, lowest = self, float(np.mean(truth**2))
        for near, length, far in product(NEAR, LENGTHS, FAR):
            if near + far > 0.95:
                continue
            tried = replace(self, near=near, length=length, far=far)
            error = float(np.mean((truth - tried._guess(*found)) ** 2))
            if error < lowest:
                best, lowest = tried, error
        return best

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """What neighbours say of entries; zero where there are none."""
        known = np.all((indices >= 0) & (indices < np.array(self.shape)), axis=1)
        keys = fiber_keys(np.where(known[:, None], indices, 0), self.shape, self.mode, self.ranks)
        return np.where(known, self._ask(keys, itself=False), 0.0)

    def left_out(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """What neighbours say of entries that are among them, each without itself."""
        return self._ask(fiber_keys(indices, self.shape, self.mode, self.ranks), itself=True)

    def n_parameters(self) -> int:
        """All residuals, and three numbers."""
        return len(self.residuals) + 3

    def _ask(self, keys: NDArray[np.int64], *, itself: bool) -> NDArray[np.float64]:
        if self.near + self.far == 0 or not len(self.keys):
            return np.zeros(len(keys))
        if find_spec("numba") is not None:
            from jointensor.kernels.numba_kriging import guess_from_neighbours  # noqa: PLC0415 - compiled where used

            known = (self.keys, self.residuals, self.coordinates, self.shape[self.mode], self.period)
            return guess_from_neighbours(keys, *known, self.near, self.length, self.far, LONG, SIDE, int(itself))
        parts = [keys[start : start + CHUNK] for start in range(0, len(keys), CHUNK)]
        return np.concatenate([self._guess(*self._neighbours(part, itself=itself)) for part in parts] or [np.zeros(0)])

    def _neighbours(self, keys: NDArray[np.int64], *, itself: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Residuals of the nearest entries and where they lie, seen from an entry, ``(entries, 2 SIDE)`` each."""
        size = self.shape[self.mode]
        fiber, here = keys // size, self.coordinates[keys % size]
        first = np.searchsorted(self.keys, fiber * size)
        count = np.searchsorted(self.keys, (fiber + 1) * size) - first
        place = np.searchsorted(self.keys, keys) - first
        residuals: list[NDArray[np.float64]] = []
        distances: list[NDArray[np.float64]] = []
        for offset in [*range(-SIDE, 0), *range(int(itself), SIDE + int(itself))]:
            at = place + offset
            if self.period:  # round and round, but nobody twice
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
            distances.append(np.where(there, gap, NOBODY * (1 + len(distances))))
        return np.stack(residuals, axis=1), np.stack(distances, axis=1)

    def _guess(self, residuals: NDArray[np.float64], gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Best linear guess from neighbours, ``(entries,)``."""
        apart = gaps[:, :, None] - gaps[:, None, :]
        if self.period:
            wrapped = (apart + self.period / 2) % self.period - self.period / 2
            apart = np.where(np.abs(apart) < NOBODY / 2, wrapped, apart)
        system = self._covariance(apart)  # (entries, neighbours, neighbours)
        each = np.arange(gaps.shape[1])
        system[:, each, each] = 1.0
        weights = np.linalg.solve(system, self._covariance(gaps)[:, :, None])[:, :, 0]
        return np.einsum("en,en->e", weights, residuals)

    def _covariance(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = np.abs(gap)
        return self.near * np.exp(-distance / self.length) + self.far * np.exp(-distance / LONG)


def numbered(shape: tuple[int, ...]) -> bool:
    """Whether the cells of a tensor can be numbered, so that fibers can be found."""
    return math.prod(shape) < 2**62
