"""Labels that are numbers or ISO dates, as numbers: equal distances in time are equal distances of these."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

EPOCH_MONDAY = date(1970, 1, 5).toordinal()
"""A Monday: days of the week are counted from it."""


class Calendar(NamedTuple):
    """How labels of one kind are read and written."""

    name: str
    pattern: re.Pattern[str]
    number: Callable[[re.Match[str]], float]
    """Of a label; equal distances in time are equal distances here."""
    label: Callable[[float, str], str]
    """Of a number, in the form of another label."""

    def read(self, labels: Sequence[str]) -> list[float] | None:
        """Numbers of labels; ``None`` where one is of another kind, or no date at all."""
        found = [self.pattern.fullmatch(label) for label in labels]
        try:
            return [float(self.number(one)) for one in found] if all(found) else None  # type: ignore[arg-type]
        except ValueError:  # 2026-02-30
            return None


def _month_label(number: float, like: str) -> str:
    year, month = divmod(round(number), 12)
    return f"{year:04d}-{month + 1:02d}" + like[7:]


def _quarter_label(number: float, like: str) -> str:
    year, quarter = divmod(round(number), 4)
    return f"{year:04d}-Q{quarter + 1}"


def _week_label(number: float, like: str) -> str:
    year, week, _ = date.fromordinal(EPOCH_MONDAY + 7 * round(number)).isocalendar()
    return f"{year:04d}-W{week:02d}"


def _time_label(number: float, like: str) -> str:
    told = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    precision = "minutes" if len(like) <= len("2026-01-01T00:00") else "seconds" if "." not in like else "microseconds"
    return told.replace(tzinfo=None).isoformat(sep=like[10], timespec=precision)


def _number_label(number: float, like: str) -> str:
    return str(round(number)) if math.isclose(number, round(number)) and "." not in like else f"{number:.12g}"


def _of_week(found: re.Match[str]) -> float:
    monday = date.fromisocalendar(int(found[1]), int(found[2]), 1)
    return (monday.toordinal() - EPOCH_MONDAY) // 7


def _of_time(found: re.Match[str]) -> float:
    return datetime.fromisoformat(found[0]).replace(tzinfo=UTC).timestamp()


CALENDARS = (
    Calendar("quarter", re.compile(r"(\d{4})-Q([1-4])"), lambda m: int(m[1]) * 4 + int(m[2]) - 1, _quarter_label),
    Calendar("week", re.compile(r"(\d{4})-W(\d{2})"), _of_week, _week_label),
    Calendar("month", re.compile(r"(\d{4})-(\d{2})(-\d{2})?"), lambda m: int(m[1]) * 12 + int(m[2]) - 1, _month_label),
    Calendar(
        "day", re.compile(r"\d{4}-\d{2}-\d{2}"), lambda m: date.fromisoformat(m[0]).toordinal(),
        lambda number, like: date.fromordinal(round(number)).isoformat(),
    ),
    Calendar("time", re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"), _of_time, _time_label),
    Calendar(
        "number", re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"), lambda m: float(m[0]), _number_label
    ),
)  # fmt: skip
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
