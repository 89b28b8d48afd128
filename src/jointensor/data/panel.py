"""Several series over the same time stamps, as a tensor: series × time, or series × date × time of the day.

Series are measured in standard deviations from their means: they may have different units, and each of them counts as
much as the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.expressions import as_labels
from jointensor.data.modes import UNSEEN, Mode, Order, sort_labels
from jointensor.data.tensor import SparseTensor
from jointensor.data.times import check_calendar, read_times
from jointensor.errors import DataError

SERIES, TIME, DATE = "series", "time", "date"
"""Names of modes. The time of the day is called ``time``, too: kriging knows it by that name."""

MIN_CLOCK_SHARE = 0.5
"""Share of the combinations of a date and a time of the day that have to be time stamps: a series that is measured at
the same times every day has nearly all of them, one with irregular time stamps has few."""
MIN_DATES = 3
"""Dates from which the time of the day repeats."""
MIN_CODED = 10_000_000
"""Whole numbers of at least this size are dates like 20140401 or Unix times, smaller ones are only numbers."""
MAX_NAMED = 3
"""Time stamps, or series, that an error or a note names."""

ROUNDING = 1e-12
"""Standard deviation, relative to the mean, that rounding causes in numbers that are all the same."""

_DAY = 86_400_000_000
"""Microseconds of a day."""


@dataclass(frozen=True)
class TimeStamps:
    """Distinct points in time, one per row of a table."""

    modes: tuple[Mode, ...]
    """One, or a date and a time of the day."""
    positions: NDArray[np.int64]
    """Of every row in these modes, ``(rows, modes)``."""

    @classmethod
    def of(cls, column: pl.Series, taken: Sequence[str] = ()) -> TimeStamps:
        """Dates, times, texts of them, or numbers.

        Parameters
        ----------
        column
            None of them missing, and none twice.
        taken
            Names that other modes have.
        """
        _refuse_missing(column)
        points = _as_points(column)
        _refuse_repeats(column, points)
        if points.dtype.is_numeric():
            return cls._along([as_labels(points)], [TIME], ["ordered"], taken)
        micros = points.to_physical().to_numpy()
        if _on_a_clock(micros):
            clock = (points - points.dt.truncate("1d")).to_physical().to_numpy()
            whole_day = _is_even(np.append(np.unique(clock), _DAY + clock.min()))
            labels = [points.dt.strftime("%Y-%m-%d"), _clock_labels(points)]
            return cls._along(labels, [DATE, TIME], ["ordered", "cyclic" if whole_day else "ordered"], taken)
        dates = points.dt.date() if not (micros % _DAY).any() else points
        return cls._along([as_labels(dates)], [TIME], ["ordered"], taken)

    @classmethod
    def _along(
        cls, labels: Sequence[pl.Series], names: Sequence[str], orders: Sequence[Order], taken: Sequence[str]
    ) -> TimeStamps:
        modes: list[Mode] = []
        positions = []
        for column, name, order in zip(labels, names, orders, strict=True):
            distinct = tuple(sort_labels(column.unique().to_list()))
            modes.append(
                Mode(free_name(name, [*taken, *(mode.name for mode in modes)]), len(distinct), distinct, order)
            )
            positions.append(modes[-1].encode(column.to_list()))
        return cls(tuple(modes), np.stack(positions, axis=1))


@dataclass(frozen=True)
class Panel:
    """Numbers of several series at the same time stamps, some of them missing.

    Parameters
    ----------
    numbers
        ``(time stamps, series)``, NaN where one is missing.
    names
        Of every series: one text, or several if series are combinations of labels.
    stamps
        Of every row.
    levels
        Names of the modes of the series.
    """

    numbers: NDArray[np.float64]
    names: Sequence[tuple[str, ...]]
    stamps: TimeStamps
    levels: Sequence[str] = (SERIES,)
    _of_series: tuple[Mode, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        distinct = [tuple(dict.fromkeys(labels)) for labels in zip(*self.names, strict=True)]
        modes = (Mode(name, len(own), own) for name, own in zip(self.levels, distinct, strict=True))
        object.__setattr__(self, "_of_series", tuple(modes))
        if not self.seen.any():
            raise DataError("no series has a single value: there is nothing to fill in by")

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Those of the series, then those of time."""
        return self._of_series + self.stamps.modes

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Which numbers there are, ``(time stamps, series)``."""
        return ~np.isnan(self.numbers)

    @cached_property
    def gaps(self) -> NDArray[np.int64]:
        """Row and column of every missing number, ``(gaps, 2)``."""
        return np.argwhere(~self.seen)

    @property
    def empty(self) -> list[str]:
        """Names of the series without a value."""
        return [" / ".join(self.names[n]) for n in np.flatnonzero(~self.seen.any(axis=0)).tolist()]

    def tensor(self) -> SparseTensor:
        """The numbers that there are, in standard deviations from the means of their series."""
        cells = np.argwhere(self.seen)
        mean, spread = self._units
        column = cells[:, 1]
        values = (self.numbers[tuple(cells.T)] - mean[column]) / np.where(spread > 0, spread, 1.0)[column]  # (entries,)
        return SparseTensor.part(self._indices(cells), values, self.modes)

    def queries(self) -> NDArray[np.int64]:
        """Indices of the gaps, ``(gaps, modes)``; labels of series without any number are unseen."""
        indices = self._indices(self.gaps)
        for n in range(len(self._of_series)):
            known = np.unique(self._columns[self.seen.any(axis=0), n])
            indices[~np.isin(indices[:, n], known), n] = UNSEEN
        return indices

    def in_units(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Predictions of the gaps, or ends of their intervals, in the units of their series."""
        column = self.gaps[:, 1].reshape(-1, *(1,) * (values.ndim - 1))
        mean, spread = self._units
        return values.astype(np.float64) * spread[column] + mean[column]

    @cached_property
    def _columns(self) -> NDArray[np.int64]:
        """Positions of every series in the modes of series, ``(series, modes)``."""
        return np.stack(
            [mode.encode(labels) for mode, labels in zip(self._of_series, zip(*self.names, strict=True), strict=True)],
            axis=1,
        )

    def _indices(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([self._columns[cells[:, 1]], self.stamps.positions[cells[:, 0]]], axis=1)

    @cached_property
    def _units(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of every series; of one without a number, means of those of the others.

        A deviation that is only rounding error is 0: a series that is always the same is filled in by the same.
        """
        mean, spread = np.zeros(len(self.names)), np.zeros(len(self.names))  # (series,)
        known = self.seen.any(axis=0)
        mean[known], spread[known] = (
            np.nanmean(self.numbers[:, known], axis=0),
            np.nanstd(self.numbers[:, known], axis=0),
        )
        mean[~known], spread[~known] = mean[known].mean(), spread[known].mean()
        return mean, np.where(spread > ROUNDING * np.abs(mean), spread, 0.0)


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name that is not taken: the one that is given, with underscores if need be."""
    while name in taken:
        name += "_"
    return name


def some(names: Sequence[Any]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(f"'{name}'" for name in names[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _as_points(column: pl.Series) -> pl.Series:
    """Times in UTC, or numbers."""
    if column.dtype.is_temporal():
        if isinstance(column.dtype, pl.Duration):
            return column.cast(pl.Duration("us")).to_physical().cast(pl.Float64) / _DAY
        if not isinstance(column.dtype, pl.Date | pl.Datetime):
            raise DataError(f"the time stamps '{column.name}' are of type {column.dtype}; give dates, times or numbers")
        check_calendar(column)
        return read_times(column)[0]
    numbers = column.cast(pl.Float64, strict=False)
    if numbers.null_count() or (numbers.abs().median() or 0.0) >= MIN_CODED:  # type: ignore[operator]
        try:
            return read_times(column)[0]
        except DataError as error:
            raise DataError(f"{error}; time stamps are dates, times, or numbers such as those of the rows") from None
    if not numbers.is_finite().all():
        raise DataError(f"the time stamps '{column.name}' must be finite numbers")
    return numbers


def _refuse_missing(column: pl.Series) -> None:
    missing = column.is_null() | column.is_nan() if column.dtype.is_float() else column.is_null()
    if missing.any():
        row = int(missing.arg_max() or 0)
        raise DataError(f"row {row + 1} has no time stamp in '{column.name}'; fill it in or drop the row")


def _refuse_repeats(column: pl.Series, points: pl.Series) -> None:
    repeated = points.is_duplicated()
    if repeated.any():
        given = list(dict.fromkeys(map(str, column.filter(repeated).to_list())))
        raise DataError(
            f"{int(repeated.sum()):,} rows share their time stamp in '{column.name}' with another row: {some(given)}; "
            "give every time one row"
        )


def _on_a_clock(micros: NDArray[np.int64]) -> bool:
    """Whether time stamps are at the same times of every day."""
    dates, clock = len(np.unique(micros // _DAY)), len(np.unique(micros % _DAY))
    return clock > 1 and dates >= MIN_DATES and len(micros) >= MIN_CLOCK_SHARE * dates * clock


def _is_even(ascending: NDArray[np.int64]) -> bool:
    return len(np.unique(np.diff(ascending))) <= 1


def _clock_labels(points: pl.Series) -> pl.Series:
    """Times of the day, with as many digits as they need."""
    micros = points.to_physical().to_numpy()
    for unit, form in ((60_000_000, "%H:%M"), (1_000_000, "%H:%M:%S")):
        if not (micros % unit).any():
            return points.dt.strftime(form)
    return points.dt.strftime("%H:%M:%S%.6f")
