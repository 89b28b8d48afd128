"""The forecaster: simple forecasts, profile, state-space model and trees, mixed by rolling origins, with intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.errors import DataError
from jointensor.forecasting.factors import Factors, fit_factors
from jointensor.forecasting.mixing import bucket_of, bucket_starts, fit_weights, second_moments
from jointensor.forecasting.panel import Panel
from jointensor.forecasting.profile import Profile, fit_profile
from jointensor.forecasting.rows import Array, Rows, View
from jointensor.forecasting.seasons import find_seasons
from jointensor.forecasting.simple import simple_forecasts
from jointensor.forecasting.spread import Spread, fit_spread
from jointensor.forecasting.trees import BoostedLags, Evidence, draw_rows, fit_trees, scales_of


@dataclass(frozen=True)
class ForecastSettings:
    """Of the rolling origins in the training part."""

    valid_share: float = 0.2
    """Share of the steps, the last ones, by which members are mixed; one horizon at least."""
    valid_rows: int = 200_000
    """Values by which they are mixed, at most."""
    min_steps: int = 4
    """That are needed to forecast at all."""
    chunk: int = 1 << 18
    """Rows that are forecast at a time: bounds memory."""


SETTINGS = ForecastSettings()


@dataclass(frozen=True)
class Models:
    """What was fitted to the values before a step."""

    seasons: tuple[int, ...]
    profile: Profile
    factors: Factors
    trees: BoostedLags | None

    def views(self, values: Array, codes: NDArray[np.int64]) -> dict[str, View]:
        """Members by name, ready to forecast from values, ``(steps, series)``."""
        evidence = self.evidence(values, codes)
        members: dict[str, View] = dict(simple_forecasts(values, self.seasons))
        members["profile"] = evidence.profile
        members["state_space"] = _OnProfile(evidence)
        if self.trees is not None:
            members["trees"] = self.trees.over(evidence)
        return members

    def one_step_errors(self, values: Array) -> Array:
        """Values less what the state-space models expected one step before, ``(steps, series)``."""
        deviations = self.profile.over(values).deviations(values)
        found: Array = deviations - self.factors.over(deviations).one_step()
        return found

    def evidence(self, values: Array, codes: NDArray[np.int64]) -> Evidence:
        """What is known of values."""
        profile = self.profile.over(values)
        factors = self.factors.over(profile.deviations(values))
        return Evidence.of(values, profile, factors, codes, self.seasons)


@dataclass(frozen=True)
class _OnProfile:
    """The profile, and the deviations from it that the state-space models expect."""

    evidence: Evidence

    def at(self, rows: Rows) -> Array:
        return self.evidence.profile.at(rows) + self.evidence.factors.at(rows)


@dataclass(frozen=True)
class Forecaster:
    """Members with weights for every group of steps ahead."""

    models: Models
    horizon: int
    names: tuple[str, ...]
    """Of the members."""
    starts: NDArray[np.int64]
    """Steps ahead at which groups begin."""
    weights: Array
    """``(groups, members)``."""
    spread: Spread
    lowest: float
    """Forecasts are not below it: 0 where no value is negative."""
    validated: dict[str, float]
    """RMSE on the rolling origins of the training part, of every member and of the mixture."""

    def members(self, panel_values: Array, codes: NDArray[np.int64], rows: Rows) -> dict[str, Array]:
        """Forecasts of all members and of the mixture (``forecast``), by name."""
        views = self.models.views(panel_values, codes)
        found = {name: np.empty(len(rows.series)) for name in ("forecast", *views)}
        for start in range(0, len(rows.series), SETTINGS.chunk):
            part = slice(start, start + SETTINGS.chunk)
            some = rows.take(part)
            every = _all_members(views, some)
            for name, column in zip(views, every.T, strict=True):
                found[name][part] = column
            found["forecast"][part] = self.mix(every, some)
        return found

    def weights_by_step(self) -> dict[str, dict[str, float]]:
        """Weights of the members that have one, by the steps ahead at which they begin to hold."""
        return {
            str(start): {name: round(float(one), 4) for name, one in zip(self.names, row, strict=True) if one > 0}
            for start, row in zip(self.starts, self.weights, strict=True)
        }

    def mix(self, forecasts: Array, rows: Rows) -> Array:
        """The mixture of forecasts ``(rows, members)``."""
        found = np.einsum("rm,rm->r", forecasts, self.weights[bucket_of(rows.ahead, self.starts)])
        return np.maximum(found, self.lowest)

    def interval(self, values: Array, forecasts: Array, rows: Rows, level: float) -> Array:
        """Lower and upper ends around forecasts from values ``(steps, series)``; ``(rows, 2)``."""
        half = self.spread.half_widths(self.models.one_step_errors(values), rows, level)
        return np.maximum(np.stack([forecasts - half, forecasts + half], axis=1), self.lowest)


def fit_forecaster(panel: Panel, horizon: int, *, seed: int = 0, end: int | None = None) -> Forecaster:
    """A forecaster for some steps ahead, of the steps of a panel before ``end``."""
    values = panel.values[:end]
    steps = len(values)
    if steps < max(SETTINGS.min_steps, horizon + 2):
        raise DataError(
            f"{steps} steps along {panel.timeline.name} are too few to forecast {horizon} more; give a shorter horizon"
        )
    codes, lowest = panel.series, 0.0 if np.nanmin(values) >= 0 else -np.inf
    judged, cut = _rolling(values, horizon, seed)
    seasons = tuple(one for one in find_seasons(values, panel.timeline.clock_size) if one < cut)
    before = _fit(values, cut, seasons, horizon, codes, seed, judged)
    views = before.views(values, codes)
    forecasts, observed = _all_members(views, judged), values[judged.targets, judged.series]
    starts = bucket_starts(horizon)
    group = bucket_of(judged.ahead, starts)
    weights = fit_weights(second_moments(forecasts - observed[:, None], group, len(starts)))
    mixed = np.maximum(np.einsum("rm,rm->r", forecasts, weights[group]), lowest)
    validated = {name: _rmse(column, observed) for name, column in zip(views, forecasts.T, strict=True)}
    validated["forecast"] = _rmse(mixed, observed)
    spread = fit_spread(before.one_step_errors(values), cut, np.abs(mixed - observed), judged, seasons)
    rounds = None if before.trees is None else max(before.trees.booster.best_iteration, 1)
    models = _fit(values, steps, seasons, horizon, codes, seed, rounds=rounds)
    return Forecaster(models, horizon, tuple(views), starts, weights, spread, lowest, validated)


def _rolling(values: Array, horizon: int, seed: int) -> tuple[Rows, int]:
    """Rows of rolling origins at the end of values, and the step of the first origin."""
    steps = len(values)
    held = max(horizon, min(round(SETTINGS.valid_share * steps), steps // 2))
    rng = np.random.default_rng(seed)
    while held <= steps - 2:
        rows = draw_rows(values, (steps - held, steps), horizon, SETTINGS.valid_rows, rng)
        rows = rows.take(rows.origins >= steps - held)
        if len(rows.series) and np.isfinite(values[: steps - held]).any():
            return rows, steps - held
        held += 1
    raise DataError("there are too few entries to forecast from: none is left to validate by")


def _fit(
    values: Array, end: int, seasons: tuple[int, ...], horizon: int, codes: NDArray[np.int64], seed: int,
    judged: Rows | None = None, rounds: int | None = None,
) -> Models:  # fmt: skip
    """All models, of the steps before ``end``."""
    past = values[:end]
    profile = fit_profile(past, seasons)
    first = _first_full(end, seasons)
    factors = fit_factors(profile.over(past).deviations(past)[first:])
    models = Models(seasons, profile, factors, None)
    evidence = models.evidence(values, codes)
    scales = scales_of(past, evidence.deviations[:end])
    if rounds is None and judged is None:  # there were too few rows before
        return models
    trees = fit_trees(evidence, scales, (first, end), horizon, valid=judged, rounds=rounds, seed=seed)
    return Models(seasons, profile, factors, trees)


def _first_full(steps: int, seasons: tuple[int, ...]) -> int:
    """The first step with a whole season before it, if there are enough after it."""
    return next((one for one in sorted(seasons, reverse=True) if one <= steps // 2), 0)


def _all_members(views: dict[str, View], rows: Rows) -> Array:
    """Forecasts of all members, ``(rows, members)``; those that know nothing take the profile's."""
    found = np.column_stack([view.at(rows) for view in views.values()])
    profile = found[:, list(views).index("profile")]
    return np.where(np.isfinite(found), found, profile[:, None])


def simple_names(names: Iterable[str]) -> list[str]:
    """Of members, those that are simple forecasts."""
    return [name for name in names if name in ("last", "mean", "drift") or name.startswith("seasonal_")]


def _rmse(predicted: Array, observed: Array) -> float:
    return float(np.sqrt(np.mean((predicted - observed) ** 2)))
