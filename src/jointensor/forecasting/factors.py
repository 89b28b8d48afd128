"""Deviations from the profile as a few components that all series share, and what is left of each series.

    d_ts = Σ_k f_tk v_sk + e_ts

The loadings v are those of probabilistic principal components, by expectation maximisation over the observed cells.
Components and remainders are continued in time by state-space models: each component has its own, the remainders one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointensor.forecasting.rows import Array, Rows
from jointensor.forecasting.seasons import some_series
from jointensor.forecasting.state_space import StateSpace, StateSpaceView, filter_series, fit_state_space


@dataclass(frozen=True)
class FactorSettings:
    """Limits of the components."""

    rank: int = 8
    """Components, at most: a quarter of the series, and of the steps, if that is less."""
    rounds: int = 20
    """Of expectation maximisation."""
    series: int = 4096
    """That loadings start from; all of them are fitted."""


SETTINGS = FactorSettings()


@dataclass(frozen=True)
class Factors:
    """Loadings, and the models of the components and of the remainders."""

    loadings: Array
    """``(series, components)``; the components have unit variance."""
    noise: float
    """Variance of the remainders."""
    models: tuple[StateSpace, ...]
    """Of the components."""
    remainder: StateSpace

    def over(self, deviations: Array) -> FactorView:
        """The components of some deviations, ``(steps, series)``."""
        scores = _scores(deviations, self.loadings, self.noise)[0]
        left = deviations - scores @ self.loadings.T
        components = filter_series(self.models, scores) if self.models else None
        return FactorView(self.loadings, scores, components, filter_series((self.remainder,), left))


@dataclass(frozen=True)
class FactorView:
    """Filtered components and remainders."""

    loadings: Array
    scores: Array
    """Of the steps by themselves, ``(steps, components)``; NaN where nothing was observed."""
    components: StateSpaceView | None
    remainders: StateSpaceView

    def shared(self, rows: Rows) -> Array:
        """What the components say of the deviations ahead."""
        found = np.zeros(rows.series.shape)
        if self.components is not None:
            for k in range(self.loadings.shape[1]):
                one = Rows(rows.origins, rows.ahead, np.full_like(rows.series, k))
                found += self.components.at(one) * self.loadings[rows.series, k]
        return found

    def one_step(self) -> Array:
        """Deviations that were expected one step before, ``(steps, series)``."""
        found = self.remainders.one_step()
        return found if self.components is None else found + self.components.one_step() @ self.loadings.T

    def at(self, rows: Rows) -> Array:
        """Deviations ahead."""
        return self.shared(rows) + self.remainders.at(rows)


def fit_factors(deviations: Array, settings: FactorSettings = SETTINGS) -> Factors:
    """Components of deviations of a training part, ``(steps, series)``."""
    rank = min(settings.rank, *(size // 4 for size in deviations.shape))
    loadings, noise = _loadings(deviations, rank, settings)
    scores = _scores(deviations, loadings, noise)[0]
    models = tuple(fit_state_space(scores[:, k : k + 1]) for k in range(loadings.shape[1]))
    return Factors(loadings, noise, models, fit_state_space(deviations - scores @ loadings.T))


def _loadings(deviations: Array, rank: int, settings: FactorSettings) -> tuple[Array, float]:
    seen = np.isfinite(deviations)
    filled = np.where(seen, deviations, 0.0)
    variance = float((filled**2).sum() / max(seen.sum(), 1))
    if rank < 1 or variance == 0.0:
        return np.zeros((deviations.shape[1], 0)), max(variance, 1e-12)
    start = some_series(filled, settings.series)
    left, strengths, _ = np.linalg.svd(start, full_matrices=False)
    scores = left[:, :rank] * np.sqrt(len(filled))
    loadings = filled.T @ scores / np.maximum(seen.T @ (scores**2), 1.0)  # (series, rank)
    noise = max(variance - float((strengths[:rank] ** 2).sum() / max(seen.sum(), 1)), 0.05 * variance)
    mask = seen.astype(np.float64)
    for _ in range(settings.rounds):
        scores, covariances = _scores(deviations, loadings, noise)
        scores = np.where(np.isfinite(scores), scores, 0.0)
        second = scores[:, :, None] * scores[:, None, :] + covariances  # (steps, rank, rank)
        systems = (mask.T @ second.reshape(len(second), -1)).reshape(-1, rank, rank)
        systems += 1e-6 * np.eye(rank) * len(second)
        loadings = np.linalg.solve(systems, (filled.T @ scores)[..., None])[..., 0]
        errors = np.where(seen, filled - scores @ loadings.T, 0.0)
        spread = ((mask @ (loadings[:, :, None] * loadings[:, None, :]).reshape(len(loadings), -1))
                  * covariances.reshape(len(second), -1)).sum()  # fmt: skip
        noise = max(float(((errors**2).sum() + spread) / seen.sum()), 1e-9 * variance)
    return loadings, noise


def _scores(deviations: Array, loadings: Array, noise: float) -> tuple[Array, Array]:
    """Means and covariances of the components of every step by itself; means are NaN where nothing was observed."""
    steps, rank = len(deviations), loadings.shape[1]
    if rank == 0:
        return np.zeros((steps, 0)), np.zeros((steps, 0, 0))
    seen = np.isfinite(deviations)
    products = (loadings[:, :, None] * loadings[:, None, :]).reshape(-1, rank * rank)
    systems = (seen.astype(np.float64) @ products).reshape(steps, rank, rank) + noise * np.eye(rank)
    inverses = np.linalg.inv(systems).astype(np.float64, copy=False)
    means = np.einsum("tij,tj->ti", inverses, np.where(seen, deviations, 0.0) @ loadings)
    means[~seen.any(axis=1)] = np.nan
    return means, noise * inverses
