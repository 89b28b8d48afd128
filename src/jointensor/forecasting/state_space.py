"""A level, a damped slope and an autoregression with noise: numbers by maximum likelihood, forecasts by the filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from jointensor.forecasting.rows import Array, Rows
from jointensor.forecasting.seasons import some_series
from jointensor.kernels.numba_kalman import Filtered, kalman_filter


@dataclass(frozen=True)
class StateSpaceSettings:
    """Limits of the search."""

    evaluations: int = 200
    """Of the likelihood, from every start."""
    series: int = 32
    """That common numbers are fitted to, at most."""
    cells: int = 1 << 17
    """Of these series, at most: a likelihood takes some milliseconds."""
    log_variances: tuple[float, float] = (-16.0, 6.0)
    """Of logarithms of variances, relative to that of the noise."""
    damping: tuple[float, float] = (0.5, 0.99)
    """Of φ: a slope of the far future is zero."""
    memory: float = 0.995
    """Largest |ρ|."""


SETTINGS = StateSpaceSettings()

STARTS = np.array([[-4.0, -9.0, 1.0, 0.0, 0.7], [-6.0, -2.0, 3.0, -6.0, 0.0]])
"""Logarithms of variances of level and slope, φ on its scale, logarithm of the variance of a, and artanh of ρ: one that
is mostly an autoregression, and one that is mostly a slope."""


@dataclass(frozen=True)
class StateSpace:
    """Numbers of the filter, in units of the variance of the noise."""

    level: float
    slope: float
    auto: float
    """Variances of η, ζ and ξ."""
    damping: float
    """φ."""
    memory: float
    """ρ."""

    def row(self) -> list[float]:
        """As the filter takes them."""
        stationary = self.auto / (1 - self.memory**2)
        slope = self.slope / (1 - self.damping**2)
        return [self.level, self.slope, self.auto, self.damping, self.memory, 1.0 + stationary, slope]


@dataclass(frozen=True)
class StateSpaceView:
    """Filtered states of some series."""

    models: tuple[StateSpace, ...]
    """One for all series, or one each."""
    states: Array
    """ℓ, b and a, causal, ``(steps, series, 3)``."""

    def at(self, rows: Rows) -> Array:
        """Means of the values ahead."""
        states = self.states[np.maximum(rows.origins - 1, 0), rows.series]
        states = np.where((rows.origins > 0)[..., None], states, 0.0)
        which = rows.series if len(self.models) > 1 else np.zeros(1, dtype=np.int64)
        damping, memory = (numbers[which] for numbers in self._decays())
        slopes = damping * (1 - damping**rows.ahead) / (1 - damping)  # φ + … + φ^h
        return states[..., 0] + slopes * states[..., 1] + memory**rows.ahead * states[..., 2]

    def one_step(self) -> Array:
        """What was expected of every step one step before, ``(steps, series)``; 0 of the first one."""
        damping, memory = self._decays()
        states = self.states[:-1]
        following: Array = states[..., 0] + damping * states[..., 1] + memory * states[..., 2]
        return np.vstack([np.zeros((1, following.shape[1])), following])

    def _decays(self) -> tuple[Array, Array]:
        """φ and ρ of the models, ``(models,)`` each."""
        return np.array([one.damping for one in self.models]), np.array([one.memory for one in self.models])


def filter_series(models: tuple[StateSpace, ...], values: Array) -> StateSpaceView:
    """Filter series, ``(steps, series)``, by one model each, or one for all."""
    rows = np.array([one.row() for one in models])
    numbers = rows if len(models) > 1 else np.repeat(rows, values.shape[1], axis=0)
    return StateSpaceView(models, kalman_filter(np.ascontiguousarray(values), numbers).states)


def log_likelihood(model: StateSpace, values: Array) -> float:
    """Of all series, each with a variance of its own that is the most likely one."""
    return _likelihood(kalman_filter(np.ascontiguousarray(values), np.array([model.row()] * values.shape[1])))


def _likelihood(found: Filtered) -> float:
    counts = found.counts
    informative = (counts > 1) & (found.squares > 0)
    n, squares, logs = counts[informative], found.squares[informative], found.log_variances[informative]
    return float(-0.5 * np.sum(n * (np.log(2 * np.pi * squares / n) + 1) + logs))


def fit_state_space(values: Array, settings: StateSpaceSettings = SETTINGS) -> StateSpace:
    """The most likely model of some series in common, ``(steps, series)``."""
    count = max(1, min(settings.series, settings.cells // len(values)))
    judged = np.ascontiguousarray(some_series(values, count))

    def model_of(x: Array) -> StateSpace:
        low, high = settings.log_variances
        level, slope, auto = np.exp(np.clip(x[[0, 1, 3]], low, high))
        floor, ceiling = settings.damping
        damping = floor + (ceiling - floor) / (1 + np.exp(-np.clip(x[2], -30, 30)))
        return StateSpace(level, slope, auto, float(damping), float(settings.memory * np.tanh(x[4])))

    def cost(x: Array) -> float:
        return -log_likelihood(model_of(x), judged)

    options = {"maxfev": settings.evaluations, "xatol": 0.02, "fatol": 0.05}
    found = [minimize(cost, start, method="Nelder-Mead", options=options) for start in STARTS]
    return model_of(min(found, key=lambda one: one.fun).x)
