"""Forecasts that any other has to be ahead of: last value, seasonal value, seasonal mean and drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.forecasting.rows import Array, Rows
from jointensor.forecasting.seasons import latest, phase_sums, rows_before


@dataclass(frozen=True)
class SeasonalValue:
    """The last observed value of the same phase; with a period of 1 the last value."""

    period: int
    found: Array
    """Causal, ``(steps, series)``."""

    def at(self, rows: Rows) -> Array:
        """NaN where nothing was observed before the origin."""
        before = rows_before(rows.origins, rows.ahead, self.period)
        return np.where(before >= 0, self.found[np.maximum(before, 0), rows.series], np.nan)


@dataclass(frozen=True)
class SeasonalMean:
    """The mean of all values of the same phase."""

    period: int
    sums: tuple[Array, Array]
    """Causal sums of values and numbers of them, ``(steps, series)`` each."""

    def at(self, rows: Rows) -> Array:
        """NaN where nothing was observed before the origin."""
        before = rows_before(rows.origins, rows.ahead, self.period)
        total, count = (one[np.maximum(before, 0), rows.series] for one in self.sums)
        known = (before >= 0) & (count > 0)
        return np.where(known, total / np.maximum(count, 1.0), np.nan)


@dataclass(frozen=True)
class Drift:
    """The line through the first and the last observed value."""

    last: Array
    """Causal, as all of these."""
    last_step: NDArray[np.int64]
    first: Array
    """First value of every series, ``(series,)``."""
    first_step: NDArray[np.int64]

    def at(self, rows: Rows) -> Array:
        """NaN where nothing was observed before the origin."""
        row = np.maximum(rows.origins - 1, 0)
        value, step = self.last[row, rows.series], self.last_step[row, rows.series]
        begin = self.first_step[rows.series]
        slope = (value - self.first[rows.series]) / np.maximum(step - begin, 1)
        return np.where(rows.origins > 0, value + slope * (rows.targets - step), np.nan)


def simple_forecasts(values: Array, seasons: Sequence[int]) -> dict[str, SeasonalValue | SeasonalMean | Drift]:
    """The simple forecasts of some values by name, ``(steps, series)``."""
    last = latest(values, 1)
    seen = np.isfinite(values)
    steps = np.maximum.accumulate(np.where(seen, np.arange(len(values))[:, None], 0), axis=0)
    first_step = seen.argmax(axis=0)
    first = values[first_step, np.arange(values.shape[1])]
    found: dict[str, SeasonalValue | SeasonalMean | Drift] = {"last": SeasonalValue(1, last)}
    for period in seasons:
        found[f"seasonal_{period}"] = SeasonalValue(period, latest(values, period))
    longest = max(seasons, default=1)
    found["mean" if longest == 1 else f"seasonal_mean_{longest}"] = SeasonalMean(
        longest, phase_sums(values, longest, 1.0)
    )
    return found | {"drift": Drift(last, steps, first, first_step)}
