"""Kriging of residuals along an axis, from the nearest observed entries of the same fiber.

A fiber is all entries that agree in every mode but those of the axis. Residuals along it are taken as a random process
with

    cov(d) = v (a e^{−|d|/ℓ} + b e^{−|d|/L} + Σ_s c_s e^{−|d|/(k_s·p_s)} e^{−φ_s(d)/w_s}),   a + b + Σ c_s < 1,

the rest is noise. The last terms come back after every lag p_s (a day, a week): φ_s(d) is the distance of d from the
nearest multiple of p_s. An entry gets the best linear prediction from its nearest neighbours on both sides, and from
those one or more lags before and after. The numbers are those with the lowest leave-one-out error, the lags those at
which residuals are most alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.kernels.numba_kriging import (
    Covariance,
    Found,
    find_neighbours,
    lag_products,
    predict_from_neighbours,
)
from jointensor.predictors.axes import Axis, check_entries, pack_axis, unpack_axis
from jointensor.predictors.base import MAX_CELLS, PREDICTORS, Packed, Predictor, is_array, require
from jointensor.predictors.fibers import inside

NEIGHBOURS_PER_SIDE = 4
"""Nearest entries of the fiber that are used on each side: more change little, and cost by their cube."""

NEIGHBOURS_PER_LAG = 2
"""Entries at whole lags that are used on each side, of every season."""

FAR_LENGTH = 100.0
"""L, in median steps along the axis."""

CHUNK = 1 << 18
"""Entries whose neighbours are held at a time: bounds memory."""

SEASON_NUMBERS = ("lag", "share", "cycles", "width")
"""Columns of the seasons: p, c, k and w."""


@dataclass(frozen=True)
class Tuning:
    """Numbers of the search for a covariance; lengths in median steps along the axis."""

    entries: int = 4000
    """By which covariances are judged."""
    passes: int = 3
    """Over all numbers of a covariance, at most."""
    min_pass_gain: float = 0.002
    """Share by which a pass must lower the error for another one to follow."""
    max_share: float = 0.95
    """Largest sum of all shares: some noise keeps the systems well conditioned."""
    smooth: Mapping[str, Sequence[float]] = field(
        default_factory=lambda: {
            "near": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
            "length": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
            "far": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5),
        }
    )
    """Values of a, ℓ and b that are tried."""
    season: Mapping[str, Sequence[float]] = field(
        default_factory=lambda: {
            "share": (0.05, 0.1, 0.2, 0.3, 0.4, 0.6),
            "width": (0.5, 1.0, 2.0, 4.0, 16.0),
            "cycles": (2.0, 4.0, 16.0),
        }
    )
    """Values of c, w and k (in lags) that are tried."""
    seasons: int = 2
    """Of one axis, at most: a day and a week."""
    first_season: tuple[float, float, float] = (0.1, 4.0, 2.0)
    """c, k and w that a new season starts with."""
    room: float = 0.9
    """What the other shares are multiplied by when a season is added."""
    min_season_gain: float = 0.01
    """Share of the leave-one-out error that a season must remove: less is found in noise by chance."""
    min_lag: int = 4
    """Shortest lag: the nearest neighbours cover what is closer."""
    max_lag: int = 1024
    """Longest lag: more would take seconds to try."""
    max_lag_share: float = 0.5
    """Longest lag as a share of the axis: every entry has another one lag away on one side."""
    min_lag_correlation: float = 0.05
    """By which residuals must be more alike at a lag than somewhere on the way to it."""
    min_lag_pairs: int = 100
    """Of entries, that a correlation is taken from; fewer are noise."""
    lags_tried: int = 4
    """Those with the highest correlations."""


TUNING = Tuning()
"""The numbers of every fit."""

ARRAYS = ("keys", "residuals", "seasons")
COVARIANCE = ("near", "length", "far", "scale")
"""Numbers that determine the covariance of two entries, the seasons aside, and the scale."""


@PREDICTORS.register("kriging")
@dataclass(frozen=True)
class Kriging(Predictor):
    """Residuals along an axis, and the covariance by which they predict each other."""

    axis: Axis
    keys: NDArray[np.int64]
    """Cells as numbers (:meth:`~jointensor.predictors.axes.Axis.keys`), sorted."""
    residuals: NDArray[np.float32]
    near: float = 0.0
    """a."""
    length: float = 1.0
    """ℓ, in median steps."""
    far: float = 0.0
    """b."""
    seasons: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    """p, c, k and w of every season, ``(seasons, 4)``."""
    scale: float = 1.0
    """Of the predictions: residuals of new entries may be larger than these, or less alike."""

    @classmethod
    def of(
        cls,
        indices: NDArray[np.integer],
        residuals: NDArray[np.floating],
        modes: Sequence[Mode],
        along: Sequence[int],
    ) -> Kriging:
        """Residuals of entries along some of the tensor's modes, with a covariance of zero, which predicts zero.

        :meth:`tuned` finds the best covariance.
        """
        empty = cls(Axis.of(modes, along), np.empty(0, np.int64), np.empty(0, np.float32))
        return empty.with_residuals(indices, residuals)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.axis.shape

    def with_residuals(self, indices: NDArray[np.integer], residuals: NDArray[np.floating]) -> Kriging:
        """The same covariance with other residuals, ``(entries, modes)`` and ``(entries,)``."""
        keys = self.axis.keys(indices)
        sort = np.argsort(keys)
        return replace(self, keys=keys[sort], residuals=residuals[sort].astype(np.float32))

    def tuned(self, seed: int = 0) -> Kriging:
        """The same with the covariance that has the lowest leave-one-out error."""
        some = np.sort(np.random.default_rng(seed).permutation(len(self.keys))[: TUNING.entries])
        if not len(some):
            return self
        error = float(np.mean(self.residuals[some].astype(np.float64) ** 2))
        tried, lower = _descend(replace(self, near=0.4, length=2.0, far=0.05), some, TUNING.smooth)
        best, error = (tried, lower) if lower < error else (self, error)
        lags = self.likely_lags(some)
        while lags and len(best.seasons) < TUNING.seasons:
            grids = {**TUNING.season, **TUNING.smooth}
            found = [_descend(best._with_season(lag), some, grids, passes=1) for lag in lags]
            tried, _ = min(found, key=lambda one: one[1])
            tried, lower = _descend(tried, some, grids)
            if lower >= (1 - TUNING.min_season_gain) * error:
                break
            best, error = tried, lower
            lags = [lag for lag in lags if lag not in best.seasons[:, 0]]
        return best

    def likely_lags(self, some: NDArray[np.int64]) -> list[int]:
        """Lags at which residuals are more alike than in between; the best ones first.

        Of a lag and its multiples those that are not much better than it are left out.

        Parameters
        ----------
        some
            Places of the entries by which this is judged.
        """
        most = min(int(TUNING.max_lag_share * self.axis.coordinates[-1]), TUNING.max_lag)
        if self.axis.period or most < TUNING.min_lag:
            return []
        alike = np.append(0.0, self._correlations(some, most))
        found: list[int] = []
        for lag in range(TUNING.min_lag, most + 1):
            peak = alike[lag] == alike[max(lag - 1 - lag // 8, 1) : lag + 2 + lag // 8].max()
            least = [alike[lag // 4 + 1 : lag].min(), *(alike[one] for one in found if lag % one == 0)]
            if peak and all(alike[lag] >= one + TUNING.min_lag_correlation for one in least):
                found.append(lag)
        return sorted(found, key=lambda lag: -alike[lag])[: TUNING.lags_tried]

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Residuals predicted from the neighbours; zero where there are none."""
        known = inside(indices, self.shape)
        keys = self.axis.keys(np.where(known[:, None], indices, 0))
        return np.where(known, self._predict_keys(keys, itself=False), 0.0)

    def leave_one_out(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Residuals of the model's own entries, each predicted without itself."""
        return self._predict_keys(self.axis.keys(indices), itself=True)

    def n_parameters(self) -> int:
        """All residuals, four numbers, and four of every season."""
        return len(self.residuals) + 4 + self.seasons.size

    def supports(self, n_modes: int) -> bool:
        """As many modes as the entries had."""
        return len(self.shape) == n_modes

    def explain(self) -> dict[str, Any]:
        """Along which modes, and the covariance."""
        covariance = {"near": self.near, "length": self.length, "far": self.far, "lags": self.seasons[:, 0].tolist()}
        return super().explain() | {"modes": list(self.axis.modes)} | covariance

    def pack(self) -> Packed:
        """Residuals and covariance."""
        packed = pack_axis(self.axis)
        packed.config.update({name: getattr(self, name) for name in COVARIANCE})
        packed.arrays.update({name: torch.as_tensor(getattr(self, name)) for name in ARRAYS})
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored residuals, if every position is one of the axis."""
        axis, (keys, residuals, seasons) = unpack_axis(packed), map(packed.array, ARRAYS)
        numbers = {name: float(packed.config[name]) for name in COVARIANCE}  # compiled for floats
        require(all(0 <= one < MAX_CELLS for one in numbers.values()) and numbers["length"], "covariance")
        check_entries(axis, keys, residuals)
        require(is_array(seasons, np.float64, len(seasons), 4) and len(seasons) <= TUNING.seasons, "seasons")
        require(bool(((seasons > 0) & (seasons < MAX_CELLS)).all() and (seasons[:, 0] >= 1).all()), "seasons")
        return cls(axis, keys, residuals, seasons=seasons, **numbers)

    # --- covariance and neighbours

    def _with_season(self, lag: float) -> Kriging:
        """With one more season, and the other shares a little smaller, so that there is room for it."""
        others = self.seasons * (1, TUNING.room, 1, 1)
        seasons = np.concatenate([others, [[lag, *TUNING.first_season]]])
        return replace(self, near=TUNING.room * self.near, far=TUNING.room * self.far, seasons=seasons)

    def _number(self, number: str) -> float:
        """One number of the covariance; of seasons, that of the last one."""
        season = number in SEASON_NUMBERS
        return float(self.seasons[-1, SEASON_NUMBERS.index(number)] if season else getattr(self, number))

    def _set(self, number: str, value: float) -> Kriging:
        """With another value of one number of the covariance; of seasons, that of the last one."""
        if number not in SEASON_NUMBERS:
            changed: dict[str, Any] = {number: value}
            return replace(self, **changed)
        seasons = self.seasons.copy()
        seasons[-1, SEASON_NUMBERS.index(number)] = value
        return replace(self, seasons=seasons)

    def _share(self) -> float:
        """Of the variance that is not noise."""
        return float(self.near + self.far + self.seasons[:, 1].sum())

    def _correlations(self, some: NDArray[np.int64], most: int) -> NDArray[np.float64]:
        """Of residuals that are lags of 1, 2, …, most apart along a fiber; the first ones at places ``some``."""
        found = lag_products(
            self.keys[some], some, self.keys, self.residuals, self.axis.size, self.axis.coordinates, most
        )
        pairs, one, other, both = found.T
        known = (pairs >= TUNING.min_lag_pairs) & (one * other > 0)
        return np.where(known, both / np.sqrt(np.where(known, one * other, 1.0)), 0.0)

    def _shifts(self, lag: float) -> NDArray[np.int64]:
        """The position a lag after every position, and before it, ``(2, positions)``; -1 where there is none."""
        coordinates = self.axis.coordinates
        shifts = np.empty((2, len(coordinates)), dtype=np.int64)
        for row, sign in zip(shifts, (1, -1), strict=True):
            wanted = coordinates + sign * lag
            at = np.minimum(np.searchsorted(coordinates, wanted - 0.5), len(coordinates) - 1)
            row[:] = np.where(np.abs(coordinates[at] - wanted) < 0.5, at, -1)
        return shifts

    def _neighbours(self, keys: NDArray[np.int64], *, itself: bool) -> Found:
        shifts = [self._shifts(lag) for lag in self.seasons[:, 0]]
        return find_neighbours(
            keys, self.keys, self.axis.size, np.concatenate([np.empty((0, self.axis.size), np.int64), *shifts]),
            sides=(NEIGHBOURS_PER_SIDE, NEIGHBOURS_PER_LAG), cyclic=self.axis.period > 0, itself=itself,
        )  # fmt: skip

    def _predict_from(self, keys: NDArray[np.int64], found: Found) -> NDArray[np.float64]:
        smooth = np.array([[self.near, self.length], [self.far, FAR_LENGTH]])
        covariance = Covariance(self.axis.coordinates, self.axis.period, smooth, self.seasons)
        return predict_from_neighbours(keys, found, self.keys, self.residuals, self.axis.size, covariance)

    def _predict_keys(self, keys: NDArray[np.int64], *, itself: bool) -> NDArray[np.float64]:
        predictions = np.zeros(len(keys))
        if self._share() == 0 or not len(self.keys):
            return predictions
        order = np.argsort(keys)  # cells of one fiber read the same entries
        for start in range(0, len(keys), CHUNK):
            rows = order[start : start + CHUNK]
            predictions[rows] = self._predict_from(keys[rows], self._neighbours(keys[rows], itself=itself))
        return self.scale * predictions


def _descend(
    start: Kriging, some: NDArray[np.integer], grids: Mapping[str, Sequence[float]], passes: int = TUNING.passes
) -> tuple[Kriging, float]:
    """A covariance with a lower leave-one-out error, and that error; one number after the other is changed.

    From its present value a number is raised, then lowered, for as long as the error falls.
    """
    queries, truth = start.keys[some], start.residuals[some].astype(np.float64)
    found = start._neighbours(queries, itself=True)

    def error(model: Kriging) -> float:
        return float(np.mean((truth - model._predict_from(queries, found)) ** 2))

    best, lowest = start, error(start)
    for _ in range(passes):
        before = lowest
        for number, grid in grids.items():
            now = best._number(number)
            for values in (sorted(one for one in grid if one > now), sorted(one for one in grid if one < now)[::-1]):
                for tried in (best._set(number, value) for value in values):
                    if tried._share() > TUNING.max_share or (found_error := error(tried)) >= lowest:
                        break
                    best, lowest = tried, found_error
        if lowest > (1 - TUNING.min_pass_gain) * before:
            break
    return best, lowest
