"""The seasonal profile: what a series usually is at a phase of its seasons.

A weighted mean of the values of the same phase of the longest season, shrunk to that of the next shorter one, that to
the level of the series, and that to the mean of all:

    p = (Σ decay^k y_k + prior · parent) / (Σ decay^k + prior)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jointensor.forecasting.rows import Array, Rows
from jointensor.forecasting.seasons import first_judged, judging_series, mean_square, phase_sums, rows_before


@dataclass(frozen=True)
class ProfileSettings:
    """What is tried."""

    decays: tuple[float, ...] = (1.0, 0.85, 0.6, 0.35)
    """Weights of a season before, relative to the season after it."""
    level_memories: tuple[float, ...] = (float("inf"), 16.0, 4.0, 1.0)
    """Shortest seasons (steps, if there are none) after which the weight of the level has fallen to 1/e."""
    priors: tuple[float, ...] = (0.1, 0.4, 1.5, 6.0, 25.0)
    """Observations that the parent counts as."""
    passes: int = 2
    """Over all numbers; each in turn is set to its best value."""


SETTINGS = ProfileSettings()


@dataclass(frozen=True)
class Layer:
    """One sum over phases."""

    period: int
    """1: the level."""
    decay: float
    """Per cycle of the period."""
    prior: float


@dataclass(frozen=True)
class Profile:
    """Layers from the level to the longest season."""

    layers: tuple[Layer, ...]
    mean: float
    """Of all values."""

    @property
    def shortest(self) -> int:
        """Steps of the shortest season; 1 if there are none."""
        return self.layers[1].period if len(self.layers) > 1 else 1

    def over(self, values: Array) -> ProfileView:
        """The profile of some values."""
        return ProfileView(self, tuple(phase_sums(values, layer.period, layer.decay) for layer in self.layers))


Sums = tuple[Array, Array]
"""Causal sums of values, and numbers of them, ``(steps, series)`` each."""


@dataclass(frozen=True)
class ProfileView:
    """A profile with causal sums."""

    profile: Profile
    sums: tuple[Sums, ...]
    """For every layer."""

    def at(self, rows: Rows) -> Array:
        """The profile at the steps that are asked for, as known at the origins, rounded down to whole seasons."""
        found: Array = np.full(np.broadcast_shapes(*(one.shape for one in rows)), self.profile.mean)
        for layer, (sums, counts) in zip(self.profile.layers, self.sums, strict=True):
            period = layer.period if layer.period > 1 else self.profile.shortest
            before = rows_before(rows.origins, rows.ahead, period)
            known, place = before >= 0, np.maximum(before, 0)
            total = np.where(known, sums[place, rows.series], 0.0)
            count = np.where(known, counts[place, rows.series], 0.0)
            found = (total + layer.prior * found) / (count + layer.prior)
        return found

    def deviations(self, values: Array) -> Array:
        """Values less what the profile was one shortest season before them, ``(steps, series)``."""
        return values - one_behind(self.profile, self.sums, values.shape)


def one_behind(profile: Profile, sums: Sequence[Sums], shape: tuple[int, ...]) -> Array:
    """What the profile was one shortest season before every step: :meth:`ProfileView.at` one step ahead, but faster."""
    found: Array = np.full(shape, profile.mean)
    for layer, (total, count) in zip(profile.layers, sums, strict=True):
        lag = layer.period if layer.period > 1 else profile.shortest
        found[lag:] = (total[:-lag] + layer.prior * found[lag:]) / (count[:-lag] + layer.prior)
    return found


def fit_profile(values: Array, seasons: Sequence[int], settings: ProfileSettings = SETTINGS) -> Profile:
    """The decays and priors that predict best, of values of a training part, ``(steps, series)``."""
    judged = judging_series(values)
    layers = [Layer(1, 1.0, 1.0), *(Layer(period, 1.0, 1.0) for period in seasons)]
    found = Profile(tuple(layers), float(np.nanmean(values)))
    first = first_judged(len(values), max(seasons, default=1))
    made: dict[tuple[int, float], Sums] = {}

    def sums_of(layer: Layer) -> Sums:
        key = layer.period, layer.decay
        if key not in made:
            made[key] = phase_sums(judged, *key)
        return made[key]

    def error_of(profile: Profile) -> float:
        past = one_behind(profile, [sums_of(layer) for layer in profile.layers], judged.shape)
        return mean_square((judged - past)[first:])

    best = error_of(found)
    shortest = found.shortest
    for _ in range(settings.passes):
        before = best
        for n, layer in enumerate(found.layers):
            memories = [float(np.exp(-1 / (m * shortest))) for m in settings.level_memories]
            tried = [replace(layer, decay=decay) for decay in (settings.decays if n else memories)]
            tried += [replace(layer, prior=prior) for prior in settings.priors]
            for one in tried:
                other = replace(found, layers=(*found.layers[:n], one, *found.layers[n + 1 :]))
                error = error_of(other)
                if error < best:
                    found, best = other, error
        if best == before:
            break
    return found
