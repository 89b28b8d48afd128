"""Labels that are numbers or ISO dates, as numbers: equal distances in time are equal distances of these."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from jointensor.errors import ConfigError

EPOCH_MONDAY = date(1970, 1, 5).toordinal()
"""A Monday: days of the week are counted from it."""

TIME_LENGTHS = (len("2026-01-01T00:00"), len("2026-01-01T00:00:00"), len("2026-01-01T00:00:00.000000"))
"""Of labels to the minute, the second and the microsecond."""


class Calendar(NamedTuple):
    """How labels of one kind are read and written."""

    name: str
    pattern: re.Pattern[str]
    number: Callable[[re.Match[str]], float]
    """Of a label; equal distances in time are equal distances here."""
    write: Callable[[float, str], str]
    """The label of a number, in the form of another label."""

    def read(self, labels: Sequence[str]) -> list[float] | None:
        """Numbers of labels; ``None`` where one is of another kind, or no date at all."""
        found = [self.pattern.fullmatch(label) for label in labels]
        try:
            return [float(self.number(one)) for one in found] if all(found) else None  # type: ignore[arg-type]
        except ValueError:  # 2026-02-30
            return None

    def label(self, number: float, like: str) -> str:
        """The label of a number, in the form of another label.

        Raises
        ------
        ConfigError
            If it is after the last year that dates have.
        """
        try:
            return self.write(number, like)
        except (ValueError, OverflowError):
            raise ConfigError(f"labels cannot be continued that far after '{like}': years are 1 to 9999") from None


def _of_quarter(found: re.Match[str]) -> float:
    return date(int(found[1]), 1, 1).year * 4 + int(found[2]) - 1


def _quarter_label(number: float, like: str) -> str:
    year, quarter = divmod(round(number), 4)
    return f"{date(year, 1, 1).year:04d}-Q{quarter + 1}"


def _of_week(found: re.Match[str]) -> float:
    monday = date.fromisocalendar(int(found[1]), int(found[2]), 1)
    return (monday.toordinal() - EPOCH_MONDAY) // 7


def _week_label(number: float, like: str) -> str:
    year, week, _ = date.fromordinal(EPOCH_MONDAY + 7 * round(number)).isocalendar()
    return f"{year:04d}-W{week:02d}"


def _of_month(found: re.Match[str]) -> float:
    first = date(int(found[1]), int(found[2]), int(found[3] or 1))
    return first.year * 12 + first.month - 1


def _month_label(number: float, like: str) -> str:
    year, month = divmod(round(number), 12)
    return date(year, month + 1, 1).isoformat()[:7] + like[7:]


def _of_day(found: re.Match[str]) -> float:
    return date.fromisoformat(found[0]).toordinal()


def _day_label(number: float, like: str) -> str:
    return date.fromordinal(round(number)).isoformat()


def _of_time(found: re.Match[str]) -> float:
    return datetime.fromisoformat(found[0]).replace(tzinfo=UTC).timestamp()


def _time_label(number: float, like: str) -> str:
    """As precise as the other label, and more where the time is: two times never have the same label."""
    told = datetime(1970, 1, 1) + timedelta(seconds=number)
    whole = told.isoformat(sep=like[10], timespec="microseconds")
    lengths = [len(like), *(length for length in TIME_LENGTHS if length > len(like))]
    return next(whole[:length] for length in lengths if datetime.fromisoformat(whole[:length]) == told)


def _of_number(found: re.Match[str]) -> float:
    number = float(found[0])
    if math.isinf(number):  # 1e400
        raise ValueError
    return number


def _number_label(number: float, like: str) -> str:
    if "." not in like and number == round(number):
        return str(round(number))
    return f"{number:.14g}"  # Unix times to the millisecond, but no errors of sums of floats


CALENDARS = (
    Calendar("quarter", re.compile(r"(\d{4})-Q([1-4])"), _of_quarter, _quarter_label),
    Calendar("week", re.compile(r"(\d{4})-W(\d{2})"), _of_week, _week_label),
    Calendar("month", re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?"), _of_month, _month_label),
    Calendar("day", re.compile(r"\d{4}-\d{2}-\d{2}"), _of_day, _day_label),
    Calendar("time", re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"), _of_time, _time_label),
    Calendar("number", re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"), _of_number, _number_label),
)
"""Kinds of labels, the first that fits all of them; months with the same day in each are months."""


def _fits(calendar: Calendar, labels: Sequence[str]) -> bool:
    if calendar.name == "month":  # 2024-01-31, 2024-02-07 are days
        days = {label[7:] for label in labels}
        if len(days) > 1 or (days != {""} and (len(labels) < 3 or next(iter(days)) > "-28")):
            return False
    return calendar.read(labels) is not None


def calendar_of(labels: Sequence[str]) -> Calendar | None:
    """The kind of some labels; ``None`` where they are neither numbers nor ISO dates of one kind."""
    return next((one for one in CALENDARS if _fits(one, labels)), None)
