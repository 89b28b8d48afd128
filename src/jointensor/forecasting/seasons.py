"""Seasons: sums over the same phase, and which lengths the data have.

An array over steps and series that is *causal* has in row t what is known once step t is. Forecasts read causal arrays
at rows before their origin, never after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeasonSettings:
    """Limits of the search for seasons."""

    lengths: tuple[int, ...] = (4, 7, 12, 24, 48, 52, 96, 144, 168, 288, 336, 364, 365, 672, 1008, 2016, 8760)
    """Steps of common seasons: quarters, days of a week, months, hours, half hours, weeks, quarter hours, ten and five
    minutes, days; and weeks of these."""
    found: int = 4
    """Lengths with the highest autocorrelation that are tried beside them."""
    min_correlation: float = 0.1
    """Of a length that is tried for its autocorrelation."""
    min_cycles: float = 2.0
    """Repetitions in the data that a season needs."""
    most: int = 3
    """Seasons at the same time: a day, a week, a year."""
    min_gain: float = 0.01
    """Share of the squared error that a season must remove: less is found in noise."""
    part_gain: float = 0.9
    """Share of the gain of a season that a part of it must have to be taken instead: one week, not two."""
    apart: int = 8
    """Times as long as another one a season must be that is no multiple of it: weeks and years."""
    series: int = 256
    """By which seasons are judged, at most."""
    cells: int = 1 << 20
    """Of these series, at most: two arrays are held of every length, 8 MB each."""
    priors: tuple[float, ...] = (0.3, 1.0, 4.0)
    """Observations that the mean of the shorter season counts as; the best is taken."""
    judged_share: float = 1 / 3
    """Share of the steps, the last ones, by which everything is judged: there the past is longest."""


SETTINGS = SeasonSettings()


def phase_sums(values: Array, period: int, decay: float) -> tuple[Array, Array]:
    """Causal sums of values and numbers of observations of the same phase, ``(steps, series)`` each.

    Every later cycle multiplies what was before by ``decay``.
    """
    cycles = _in_cycles(values, period)
    seen = np.isfinite(cycles)
    recursion = [1.0], [1.0, -decay]
    sums = lfilter(*recursion, np.where(seen, cycles, 0.0), axis=0)
    counts = lfilter(*recursion, seen.astype(np.float64), axis=0)
    return tuple(one.reshape(-1, values.shape[1])[: len(values)] for one in (sums, counts))


def latest(values: Array, period: int) -> Array:
    """The last observed value of the same phase, causal; NaN before the first one."""
    cycles = _in_cycles(values, period)
    rows = np.where(np.isfinite(cycles), np.arange(len(cycles))[:, None], 0)
    found: Array = np.take_along_axis(cycles, np.maximum.accumulate(rows, axis=0), axis=0)
    return found.reshape(-1, values.shape[1])[: len(values)]


def _in_cycles(values: Array, period: int) -> Array:
    """Whole cycles, a row each, ``(cycles, period · series)``; NaN after the last step."""
    steps, series = values.shape
    missing = -steps % period
    padded = np.vstack([values, np.full((missing, series), np.nan)]) if missing else values
    return padded.reshape(-1, period * series)


def mean_square(errors: Array) -> float:
    """Of those that are known; infinite if none is."""
    seen = np.isfinite(errors)
    return float(np.sum(errors[seen] ** 2) / seen.sum()) if seen.any() else float("inf")


def rows_before(origins: NDArray[np.integer], ahead: NDArray[np.integer], period: int) -> NDArray[np.int64]:
    """The last step of the same phase that is known at the origins, for steps ``ahead`` of them (1 is the first)."""
    return origins - 1 + ahead - -(-ahead // period) * period


def candidates(values: Array, clock: int = 1, settings: SeasonSettings = SETTINGS) -> list[int]:
    """Lengths of seasons that may be there, ascending.

    Parameters
    ----------
    values
        ``(steps, series)``.
    clock
        Steps of the clock, where the timeline has one: a day. A week of it is tried, too.
    settings
        Limits.
    """
    most = int(len(values) / settings.min_cycles)
    common = [clock, 7 * clock, *settings.lengths] if clock > 1 else [*settings.lengths]
    return sorted({m for m in (*common, *_alike(values, most, settings)) if 2 <= m <= most})


def _alike(values: Array, most: int, settings: SeasonSettings) -> list[int]:
    """Lags at which series resemble themselves most, among local maxima."""
    seen = np.isfinite(values)
    means = np.where(seen, values, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    centred = np.where(seen, values - means, 0.0)
    size = 1 << (2 * len(values) - 1).bit_length()
    power = np.zeros(size // 2 + 1)
    for column in centred.T:  # (steps,)
        power += np.abs(np.fft.rfft(column, size)) ** 2
    correlation = np.fft.irfft(power)[: most + 2]
    if len(correlation) < 4 or correlation[0] <= 0:
        return []
    correlation /= correlation[0]
    inner = correlation[1:-1]
    peaks = 1 + np.flatnonzero((inner > correlation[:-2]) & (inner >= correlation[2:]))
    peaks = peaks[(correlation[peaks] > settings.min_correlation) & (peaks > 1)]
    return [int(lag) for lag in peaks[np.argsort(-correlation[peaks])][: settings.found]]


def find_seasons(values: Array, clock: int = 1, settings: SeasonSettings = SETTINGS) -> tuple[int, ...]:
    """Lengths of the seasons whose means predict values best, ascending; empty where none helps.

    Added one by one; every value is predicted from those at least one shortest season before.
    """
    values = judging_series(values, settings)
    tried = candidates(values, clock, settings)
    if not tried:
        return ()
    sums = {m: phase_sums(values, m, 1.0) for m in (1, *tried)}
    chosen: tuple[int, ...] = ()
    first = first_judged(len(values), max(tried), settings)
    error = _error(values, sums, (), first, settings)
    while len(chosen) < settings.most:
        fitting = [m for m in tried if all(_nested(m, other, settings) for other in chosen)]
        errors = {m: _error(values, sums, (*chosen, m), first, settings) for m in fitting}
        best = min(errors, key=lambda m: (errors[m], m), default=None)
        if best is None or errors[best] > (1 - settings.min_gain) * error:
            break
        enough = settings.part_gain * (error - errors[best])
        best = min(m for m in errors if best % m == 0 and error - errors[m] >= enough)
        chosen, error = (*chosen, best), errors[best]
    return tuple(sorted(chosen))


def _nested(one: int, other: int, settings: SeasonSettings) -> bool:
    """Whether two seasons can be there together: hours of a day and days of a week, not 48 weeks and 52."""
    shorter, longer = sorted((one, other))
    return longer > shorter and (longer % shorter == 0 or longer >= settings.apart * shorter)


def first_judged(steps: int, longest: int, settings: SeasonSettings = SETTINGS) -> int:
    """The step from which on forecasts are judged: the last third, a whole season at least."""
    return max(min(steps - longest, round((1 - settings.judged_share) * steps)), steps // 2)


def judging_series(values: Array, settings: SeasonSettings = SETTINGS) -> Array:
    """Series by which seasons and profiles are judged."""
    return some_series(values, max(1, min(settings.series, settings.cells // len(values))))


def some_series(values: Array, most: int) -> Array:
    """Series to judge by: those with the largest spread, since squared errors are theirs; all if they are few."""
    if values.shape[1] <= most:
        return values
    seen = np.isfinite(values)
    filled = np.where(seen, values, 0.0)
    spread = (filled**2).sum(axis=0) - filled.sum(axis=0) ** 2 / np.maximum(seen.sum(axis=0), 1)
    return values[:, np.sort(np.argsort(-spread, kind="stable")[:most])]


def _error(
    values: Array,
    sums: dict[int, tuple[Array, Array]],
    seasons: Sequence[int],
    first: int,
    settings: SeasonSettings,
) -> float:
    """Mean squared error of the means of the same phase, shrunk to those of the next shorter season."""
    steps = np.arange(first, len(values))
    predicted = np.zeros((len(steps), values.shape[1]))
    lowest = float("inf")
    for period in (1, *sorted(seasons)):
        rows = steps - (period if period > 1 else min(seasons, default=1))
        known = (rows >= 0)[:, None]
        total, count = (np.where(known, one[np.maximum(rows, 0)], 0.0) for one in sums[period])
        tried = [
            (total + prior * predicted) / (count + prior) for prior in (settings.priors if period > 1 else (1e-9,))
        ]
        errors = [mean_square(one - values[first:]) for one in tried]
        predicted, lowest = tried[int(np.argmin(errors))], min(errors)
    return lowest
