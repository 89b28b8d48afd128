"""Dates and numbers of labels, beside Python's datetime: distances, labels that follow, and what is no date."""

from datetime import date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointensor.data.calendars import CALENDARS, EPOCH_MONDAY, calendar_of
from jointensor.errors import ConfigError

BY_NAME = {calendar.name: calendar for calendar in CALENDARS}
TIMES = st.datetimes(datetime(1700, 1, 1), datetime(2240, 1, 1))
"""Seconds from 1970 on are exact to the microsecond in a float."""


def numbers_of(*labels):
    """Kind and numbers of some labels."""
    calendar = calendar_of(labels)
    return calendar.name, calendar.read(labels)


def after(*labels, count=3):
    """Labels that follow the last one, as far apart as the last two are."""
    calendar = calendar_of(labels)
    before, last = calendar.read(labels)[-2:]
    return [calendar.label(last + k * (last - before), labels[-1]) for k in range(1, count + 1)]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (("2026-Q1", "2025-Q4"), "quarter"),
        (("2026-W01", "2020-W53"), "week"),
        (("2026-01", "2026-12"), "month"),
        (("2026-01-15", "2026-02-15", "2026-03-15"), "month"),
        (("2026-01-28", "2026-02-28", "2026-03-28"), "month"),
        (("2026-01-29", "2026-03-29", "2026-05-29"), "day"),  # February has none
        (("2026-01-15", "2026-02-15"), "day"),  # two may be equal by chance
        (("2026-01-15", "2026-02-15", "2026-03-16"), "day"),
        (("2024-02-29",), "day"),
        (("2026-01-01 10:00", "2026-01-01T10:00:30", "2026-01-01T10:00:30.5"), "time"),
        (("2026", "2027"), "number"),
        (("-1", "+2.5", ".5", "1e3"), "number"),
    ],
)
def test_the_kind_is_that_of_all_labels(labels, kind):
    assert calendar_of(labels).name == kind


@pytest.mark.parametrize(
    "labels",
    [
        ("2026-02-30", "2026-03-01"),
        ("2023-02-29",),
        ("1900-02-29",),
        ("2026-01-31", "2026-02-31", "2026-03-31"),
        ("2026-13", "2026-01"),
        ("2026-00", "2026-01"),
        ("2026-13-01", "2026-01-01", "2026-02-01"),
        ("2026-01-00", "2026-02-00", "2026-03-00"),
        ("0000-01", "0000-02"),
        ("0000-Q1",),
        ("2026-Q5",),
        ("2026-Q0",),
        ("2026-W00",),
        ("2021-W53",),  # 2020 has one
        ("2026-01-01 25:00",),
        ("2026-01-01 10:60",),
        ("2026-01-01 10:00:60",),
        ("2026-02-30 10:00",),
        ("2026-01-01T10:00Z",),
        ("2026-01-01T10:00+01:00",),
        ("2026-01", "2026-01-01"),
        ("2026-01-01", "2026-01-01 10:00"),
        ("2026", "2026-01"),
        ("2026-W01", "2026-Q1"),
        ("20260101T1000",),
        ("1/2/2026",),
        ("2026-1-1",),
        (" 2026-01-01",),
        ("2026-01-01\n",),
        ("nan",),
        ("inf",),
        ("1e400", "1"),
        ("1_000",),
        ("0x10",),
        ("1", ""),
        ("1", "b"),
    ],
)
def test_what_is_no_date_and_what_has_no_common_kind_is_refused(labels):
    assert calendar_of(labels) is None


@given(st.lists(st.dates(), min_size=1, max_size=8))
def test_days_are_as_far_apart_as_dates(days):
    found = BY_NAME["day"].read([day.isoformat() for day in days])
    assert [number - found[0] for number in found] == [(day - days[0]).days for day in days]
    assert [int(number - EPOCH_MONDAY) % 7 for number in found] == [day.weekday() for day in days]


@given(st.lists(TIMES, min_size=1, max_size=8), st.sampled_from([" ", "T"]))
def test_times_are_seconds_since_1970(times, sep):
    kind, found = numbers_of(*(time.isoformat(sep) for time in times))
    assert kind == "time"
    for number, time in zip(found, times, strict=True):
        assert timedelta(seconds=number) == time - datetime(1970, 1, 1)


@given(st.dates(max_value=date(9999, 12, 26)))
def test_a_week_is_the_days_from_its_monday_to_its_sunday(day):
    """Those of the turn of the year, too: 2021-01-03 is in 2020-W53."""
    week = "{:04d}-W{:02d}".format(*day.isocalendar()[:2])
    monday = date.fromordinal(day.toordinal() - day.weekday())
    (number,) = BY_NAME["week"].read([week])
    assert number == (monday - date(1970, 1, 5)).days / 7
    assert BY_NAME["week"].label(number, "2026-W01") == week


@pytest.mark.parametrize("year", range(1990, 2060))
def test_weeks_of_a_year_follow_each_other_into_the_next(year):
    last = date(year, 12, 28).isocalendar().week  # the 28th is in the last week
    weeks = [f"{year}-W{week:02d}" for week in range(1, last + 1)] + [f"{year + 1}-W01"]
    kind, found = numbers_of(*weeks)
    assert (kind, set(np.diff(found))) == ("week", {1.0})
    assert (calendar_of([f"{year}-W53"]) is None) == (last == 52)


@given(st.integers(1, 9999), st.integers(1, 12), st.integers(1, 9999), st.integers(1, 12))
def test_months_and_quarters_are_counted(year, month, other_year, other):
    months = f"{year:04d}-{month:02d}", f"{other_year:04d}-{other:02d}"
    kind, (one, two) = numbers_of(*months)
    first, second = (np.datetime64(text, "M") for text in months)
    assert (kind, two - one) == ("month", (second - first).astype(int))
    quarters = [f"{y:04d}-Q{(m + 2) // 3}" for y, m in ((year, month), (other_year, other))]
    kind, (one, two) = numbers_of(*quarters)
    first, second = (4 * y + (m - 1) // 3 for y, m in ((year, month), (other_year, other)))
    assert (kind, two - one) == ("quarter", second - first)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("2024-02-27", "2024-02-28"), ["2024-02-29", "2024-03-01", "2024-03-02"]),
        (("2023-02-27", "2023-02-28"), ["2023-03-01", "2023-03-02", "2023-03-03"]),
        (("1900-02-27", "1900-02-28"), ["1900-03-01", "1900-03-02", "1900-03-03"]),
        (("2020-W51", "2020-W52"), ["2020-W53", "2021-W01", "2021-W02"]),
        (("2021-W51", "2021-W52"), ["2022-W01", "2022-W02", "2022-W03"]),
        (("2023-10", "2023-11"), ["2023-12", "2024-01", "2024-02"]),
        (("2023-10-28", "2023-11-28", "2023-12-28"), ["2024-01-28", "2024-02-28", "2024-03-28"]),
        (("2023-Q2", "2023-Q3"), ["2023-Q4", "2024-Q1", "2024-Q2"]),
        (("2023-12-31 22:00", "2023-12-31 23:00"), ["2024-01-01 00:00", "2024-01-01 01:00", "2024-01-01 02:00"]),
        (("2024-02-29T23:59:58", "2024-02-29T23:59:59"),
         ["2024-03-01T00:00:00", "2024-03-01T00:00:01", "2024-03-01T00:00:02"]),
        (("2024-01-01 00:00:00.25", "2024-01-01 00:00:00.50"),
         ["2024-01-01 00:00:00.75", "2024-01-01 00:00:01.00", "2024-01-01 00:00:01.25"]),
        (("2019", "2021"), ["2023", "2025", "2027"]),
        (("0.1", "0.2"), ["0.3", "0.4", "0.5"]),
        (("1", "-1"), ["-3", "-5", "-7"]),
        (("1700000000.000", "1700000000.125"), ["1700000000.25", "1700000000.375", "1700000000.5"]),
        (("1700000000000000000", "1700000001000000000"),
         ["1700000002000000000", "1700000003000000000", "1700000004000000000"]),
    ],
)  # fmt: skip
def test_labels_are_continued_in_their_form(labels, expected):
    assert after(*labels) == expected


@pytest.mark.parametrize(
    "labels",
    [
        ("2024-01-01 00:00:00.500000", "2024-01-01 00:00:01"),  # as Python's str() writes them
        ("2024-01-01 00:00:30", "2024-01-01 00:01"),
        ("1700000000.5", "1700000001"),
        ("1700000000.25", "1700000000.5"),
    ],
)
def test_labels_that_follow_are_as_precise_as_their_distance(labels):
    kind, (before, last) = numbers_of(*labels)
    following = after(*labels, count=5)
    assert BY_NAME[kind].read(following) == [last + k * (last - before) for k in range(1, 6)]


def written(time, length):
    """A time in its first characters, to the microsecond at most."""
    return time.isoformat(timespec="microseconds")[:length]


@given(TIMES, st.sampled_from([16, 19, 21, 22, 23, 24, 25, 26]), st.sampled_from([16, 19, 21, 23, 26]))
def test_a_time_that_is_written_is_read_back(time, length, like):
    label = written(time, length)
    (number,) = BY_NAME["time"].read([label])
    assert BY_NAME["time"].label(number, label) == label
    other = BY_NAME["time"].label(number, written(time, like))
    assert datetime.fromisoformat(other) == datetime.fromisoformat(label)
    assert len(other) >= like


@given(st.dates())
def test_days_months_and_quarters_that_are_written_are_read_back(day):
    for name, label in (
        ("day", day.isoformat()),
        ("month", day.isoformat()[:7]),
        ("month", day.isoformat()[:7] + "-28"),
        ("quarter", f"{day.year:04d}-Q{(day.month + 2) // 3}"),
    ):
        (number,) = BY_NAME[name].read([label])
        assert BY_NAME[name].label(number, label) == label


@given(st.integers(-(10**13), 10**13), st.integers(0, 6))
def test_numbers_of_thirteen_digits_are_read_back(digits, decimals):
    label = f"{digits / 10**decimals:.{decimals}f}"
    (number,) = BY_NAME["number"].read([label])
    assert BY_NAME["number"].read([BY_NAME["number"].label(number, label)]) == [number]


@pytest.mark.parametrize("last", ["9999-12-31", "9999-W52", "9999-12", "9999-Q4", "9999-12-31T23:59"])
def test_nothing_comes_after_the_year_9999(last):
    calendar = calendar_of([last])
    (number,) = calendar.read([last])
    assert calendar.label(number, last) == last
    for further in (61, 1e18):
        with pytest.raises(ConfigError, match=f"cannot be continued that far after '{last}': years are 1 to 9999"):
            calendar.label(number + further, last)
