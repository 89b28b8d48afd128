"""Dates and times as people write them, and the short forms that turn them into mode labels.

``day(col)``, ``hour(col)`` and the like read a column of dates, texts or Unix times. How a text column is
written is found once, from the whole column, and stored with the run, so that three queries are read
the same way as a million training rows. Times with a zone are taken in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import polars as pl

from jointensor.data.modes import Order
from jointensor.errors import DataError

_DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%d.%m.%Y",
    "%d.%m.%y",
    "%m-%d-%Y",
    "%d-%m-%Y",
)
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", "T%H:%M:%S%.f", "T%H:%M", " %I:%M:%S %p", " %I:%M %p")
FORMATS = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M%#z",
    "%Y-%m-%d %H:%M:%S%.f UTC",
    *(date + clock for date, clock in product(_DATES, _CLOCKS)),
    "%Y%m%d",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%d %B %Y",
    "%B %d, %Y",
    "%Y-%m",
)
"""Text formats that are tried, in this order; month before day where both fit."""

_UNITS = (("unix s", 1e11), ("unix ms", 1e14), ("unix us", 1e17), ("unix ns", float("inf")))
_PER_MICROSECOND = {"unix s": 1e6, "unix ms": 1e3, "unix us": 1.0, "unix ns": 1e-3}

_PER_SECOND = {"ms": Fraction(10**3), "us": Fraction(10**6), "ns": Fraction(10**9)}

YEAR_1, YEAR_1000, YEAR_10000 = -62_135_596_800, -30_610_224_000, 253_402_300_800
"""Unix times of the beginnings of these years, in seconds."""

SHORT_FORMS: dict[str, tuple[Callable[[pl.Series], pl.Series], Order]] = {
    "day": (lambda t: t.dt.strftime("%Y-%m-%d"), "ordered"),
    "week": (lambda t: t.dt.strftime("%G-W%V"), "ordered"),
    "month": (lambda t: t.dt.strftime("%Y-%m"), "ordered"),
    "quarter": (lambda t: t.dt.strftime("%Y") + "-Q" + t.dt.quarter().cast(pl.String), "ordered"),
    "year": (lambda t: t.dt.strftime("%Y"), "ordered"),
    "hour": (lambda t: t.dt.hour().cast(pl.String), "cyclic"),
    "minute": (lambda t: t.dt.minute().cast(pl.String), "cyclic"),
    "weekday": (lambda t: t.dt.weekday().cast(pl.String), "cyclic"),
}
"""Short forms and the order of the mode they make; ``weekday`` counts from 1, Monday."""


def read_times(column: pl.Series, format_: str | None = None) -> tuple[pl.Series, str]:
    """A column as times in UTC, and the format it was read by.

    Parameters
    ----------
    column
        Dates, times, text or Unix times (seconds to nanoseconds, told apart by their size).
    format_
        The format to use, where it is known; another is looked for only if it does not fit.
    """
    if isinstance(column.dtype, pl.Date | pl.Datetime):
        check_calendar(column)
        return (column.cast(pl.Datetime("us")), "date") if column.dtype == pl.Date else (_in_utc(column), "time")
    column = _plain(column)
    for candidate in filter(None, (format_, *_candidates(column))):
        times = _parse(column, candidate)
        if times is not None and times.null_count() == column.null_count():
            return times, candidate
    raise DataError(_complaint(column))


def check_calendar(column: pl.Series) -> None:
    """Refuse dates and times outside the years 1 to 9999, for which some operations of polars panic."""
    outside = _outside(column.to_physical(), column.dtype, YEAR_1)
    if outside.any():
        row = int(outside.arg_max() or 0)
        raise DataError(f"row {row + 1}: the date or time in column '{column.name}' is not in the years 1 to 9999")


def _outside(numbers: pl.Series, dtype: pl.DataType, first: int) -> pl.Series:
    """Whether physical numbers of dates or times are before second ``first`` or after the year 9999."""
    per_second = Fraction(1, 86400) if dtype == pl.Date else _PER_SECOND[getattr(dtype, "time_unit", None) or "us"]
    low, high = (max(min(int(second * per_second), 2**63 - 1), -(2**63)) for second in (first, YEAR_10000))
    return (numbers < low) | (numbers >= high)


def also_day_first(column: pl.Series, format_: str) -> bool:
    """Whether a column read month first could as well be read day first."""
    column = _plain(column)
    if not format_.startswith(("%m/%d", "%m-%d")) or column.dtype != pl.String:
        return False
    times = _parse(column, "%d" + format_[2] + "%m" + format_[5:])
    return times is not None and times.null_count() == column.null_count()


def _plain(column: pl.Series) -> pl.Series:
    """Categories and whole numbers (Unix times, or dates like 20140401) as text, NaN as missing."""
    if column.dtype.is_integer() or column.dtype in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    return column.fill_nan(None) if column.dtype.is_float() else column


def _candidates(column: pl.Series) -> list[str]:
    if column.dtype != pl.String:
        return [_unix_unit(column.cast(pl.Float64, strict=False))] if column.dtype.is_numeric() else []
    sample = column.drop_nulls().head(1000)
    fitting = [f for f in FORMATS if (t := _parse(sample, f)) is not None and not t.null_count()]
    numbers = sample.cast(pl.Float64, strict=False)
    if not len(numbers) or numbers.null_count():
        return fitting
    compact = sample.str.len_chars().eq(8).all() and "%Y%m%d" in fitting
    return (["%Y%m%d"] if compact else []) + [_unix_unit(column.cast(pl.Float64, strict=False))]


def _unix_unit(numbers: pl.Series) -> str:
    size = abs(float(numbers.abs().median() or 0.0))  # type: ignore[arg-type]
    return next((unit for unit, limit in _UNITS if size < limit), _UNITS[-1][0])  # infinite, or no number


def _parse(column: pl.Series, format_: str) -> pl.Series | None:
    if format_ in _PER_MICROSECOND:
        if column.dtype != pl.String and not column.dtype.is_numeric():
            return None
        exact = column.cast(pl.Float64, strict=False) * _PER_MICROSECOND[format_]
        numbers = exact.floor().cast(pl.Int64, strict=False)
        return numbers.set(_outside(numbers, pl.Datetime("us"), YEAR_1), None).cast(pl.Datetime("us"))
    if column.dtype != pl.String:
        return None
    try:
        times = column.str.to_datetime(format_, time_unit="us", strict=False)
    except pl.exceptions.PolarsError:
        return None
    # %Y reads 14 as the year 14
    return _in_utc(times.set(_outside(times.to_physical(), times.dtype, YEAR_1000), None))


def _in_utc(times: pl.Series) -> pl.Series:
    zone = getattr(times.dtype, "time_zone", None)
    return times.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else times


def _complaint(column: pl.Series) -> str:
    best, fewest = None, len(column) + 1
    for format_ in (*FORMATS, "unix s"):
        times = _parse(column, format_)
        if times is not None and times.null_count() < min(fewest, len(column)):
            best, fewest = times, times.null_count()
    given = column.is_not_null()
    row = int((given if best is None else best.is_null() & given).arg_max() or 0)
    return f"row {row + 1}: '{column[row]}' in column '{column.name}' is not a date or time that can be read"
