"""Intervals: how far observed values are from forecasts, on rolling origins.

    forecast ± size(series, phase) · quantile(steps ahead)

``size`` is a seasonal profile of the absolute one-step errors of the state-space models: wide at rush hours, narrow at
night. The quantile is that of
|error| / size on rolling origins, and never falls with the steps ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.forecasting.mixing import bucket_of, bucket_starts
from jointensor.forecasting.profile import Profile, fit_profile
from jointensor.forecasting.rows import Array, Rows


@dataclass(frozen=True)
class SpreadSettings:
    """Of the intervals."""

    quantiles: int = 401
    """That are kept of every group of steps ahead."""
    min_rows: int = 100
    """Errors from which the quantiles of a group are taken; fewer take those of all."""
    floor: float = 0.02
    """Smallest size, as a share of the mean one: a series that never moved may move."""


SETTINGS = SpreadSettings()


@dataclass(frozen=True)
class Spread:
    """Sizes of one-step errors, and quantiles of errors in their units."""

    profile: Profile
    """Of absolute one-step errors."""
    floor: float
    centres: Array
    """Logarithms of the mean steps ahead of every group, ``(groups,)``."""
    quantiles: Array
    """Evenly spaced from 0 to 1, ``(groups, quantiles)``; they grow with the group."""

    def sizes(self, changes: Array, rows: Rows) -> Array:
        """Sizes of errors, ``(rows,)``, from one-step errors before the origins."""
        return np.maximum(self.profile.over(np.abs(changes)).at(rows), self.floor)

    def half_widths(self, changes: Array, rows: Rows, level: float) -> Array:
        """Half the widths of intervals that hold a share ``level``, ``(rows,)``."""
        grid = np.linspace(0, 1, self.quantiles.shape[1])
        by_group = np.array([np.interp(level, grid, one) for one in self.quantiles])
        return self.sizes(changes, rows) * np.interp(np.log(rows.ahead), self.centres, by_group)


def fit_spread(changes: Array, cut: int, errors: Array, rows: Rows, seasons: Sequence[int]) -> Spread:
    """Intervals from absolute errors of rolling origins.

    Parameters
    ----------
    changes
        One-step errors, ``(steps, series)``.
    cut
        The step before which the sizes are learnt; the first origin.
    errors
        Absolute ones, ``(rows,)``.
    rows
        What was forecast.
    seasons
        Of the profile.
    """
    past = np.abs(changes[:cut])
    profile = fit_profile(past, seasons)
    floor = max(SETTINGS.floor * float(np.nanmean(past)), 1e-12)
    starts = bucket_starts(int(rows.ahead.max()))
    found = Spread(profile, floor, np.zeros(0), np.zeros((0, 0)))
    ratios = errors / found.sizes(changes, rows)
    group = bucket_of(rows.ahead, starts)
    centres = [float(np.log(rows.ahead[group == k]).mean()) if (group == k).any() else np.log(starts[k]) for k in
               range(len(starts))]  # fmt: skip
    quantiles = [_quantiles(ratios[group == k] if (group == k).sum() >= SETTINGS.min_rows else ratios) for k in
                 range(len(starts))]  # fmt: skip
    return Spread(profile, floor, np.array(centres), np.maximum.accumulate(np.array(quantiles), axis=0))


def _quantiles(ratios: NDArray[np.float64]) -> Array:
    """Of finitely many errors the largest is not the largest there can be: each quantile is one error higher."""
    levels = np.linspace(0, 1, SETTINGS.quantiles) * (1 + 1 / len(ratios))
    return np.quantile(ratios, np.minimum(levels, 1.0))
