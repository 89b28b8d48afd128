"""Labels as steps: distances in time, what comes next, and what cannot be continued."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointensor.data.modes import Mode
from jointensor.errors import ConfigError
from jointensor.forecasting import Timeline, choose_modes, time_modes
from jointensor.forecasting.timeline import Grid
from tests.forecasting.planted import days


def mode(*labels, name="when", order="ordered"):
    return Mode(name, len(labels), tuple(map(str, labels)), order)


def following(one, count=3):
    """Labels after the last one."""
    line = Timeline.of([one], (0,))
    return [line.labels_at(int(step))[0] for step in line.following(line.size, count)]


@pytest.mark.parametrize(
    ("labels", "steps", "next_ones"),
    [
        (("2024-02-27", "2024-02-28"), [0, 1], ["2024-02-29", "2024-03-01", "2024-03-02"]),
        (("2024-01-05", "2024-01-12", "2024-01-26"), [0, 1, 3], ["2024-02-02", "2024-02-09", "2024-02-16"]),
        (("2023-11", "2023-12"), [0, 1], ["2024-01", "2024-02", "2024-03"]),
        (("2023-10-01", "2023-11-01", "2023-12-01"), [0, 1, 2], ["2024-01-01", "2024-02-01", "2024-03-01"]),
        (("2020-W52", "2020-W53"), [0, 1], ["2021-W01", "2021-W02", "2021-W03"]),
        (("2023-Q3", "2023-Q4"), [0, 1], ["2024-Q1", "2024-Q2", "2024-Q3"]),
        (("2019", "2020", "2022"), [0, 1, 3], ["2023", "2024", "2025"]),
        (("7.5", "8.0", "8.5"), [0, 1, 2], ["9", "9.5", "10"]),
        (("2024-01-01T22:00", "2024-01-01T23:00"), [0, 1],
         ["2024-01-02T00:00", "2024-01-02T01:00", "2024-01-02T02:00"]),
        (("2024-01-01 23:59:59", "2024-01-02 00:00:00"), [0, 1],
         ["2024-01-02 00:00:01", "2024-01-02 00:00:02", "2024-01-02 00:00:03"]),
        (("3", "1", "2"), [2, 0, 1], ["4", "5", "6"]),
    ],
)  # fmt: skip
def test_labels_are_placed_by_their_distance_and_continued(labels, steps, next_ones):
    assert Grid.of(mode(*labels)).steps.tolist() == steps
    assert following(mode(*labels)) == next_ones


@pytest.mark.parametrize(
    ("labels", "thousandth"),
    [
        ([f"2024-01-01 00:00:{k / 10:04.1f}" for k in range(20)], "2024-01-01 00:01:40.0"),
        ([f"{1_700_000_000 + k / 10:.1f}" for k in range(20)], "1700000100"),
        ([f"{k}e-10" for k in range(20)], "1e-07"),
        ([str(2**60 + 10**6 * k) for k in range(20)], str(2**60 + 10**9)),
    ],
)
def test_the_step_is_not_off_where_numbers_are_rounded(labels, thousandth):
    grid = Grid.of(mode(*labels))
    assert grid.steps.tolist() == list(range(20))
    assert grid.label(1000) == thousandth


def test_a_forecast_that_leaves_the_calendar_is_refused():
    with pytest.raises(ConfigError, match="cannot be continued that far after '9999-W52': years are 1 to 9999"):
        following(mode("9999-W51", "9999-W52"))


def test_a_missing_weekend_is_three_days_and_weekends_that_never_occur_are_not_forecast():
    every = days(60, "2024-01-01")  # a Monday
    weekdays = [day for day in every if np.is_busday(day)]
    grid = Grid.of(mode(*weekdays))
    friday, monday = weekdays.index(np.datetime64("2024-01-05")), weekdays.index(np.datetime64("2024-01-08"))
    assert grid.steps[monday] - grid.steps[friday] == 3
    assert following(mode(*weekdays), 4) == ["2024-03-01", "2024-03-04", "2024-03-05", "2024-03-06"]
    assert following(mode(*every), 3) == ["2024-03-01", "2024-03-02", "2024-03-03"]


@given(st.dates().filter(lambda day: 1000 < day.year < 9000), st.integers(1, 40), st.integers(1, 400))
def test_the_label_of_a_step_is_found_at_that_step(first, gap, step):
    start = np.datetime64(first)
    grid = Grid.of(mode(*(start + gap * np.arange(4))))
    assert grid.label(step) == str(start + gap * step) or grid.calendar.name == "month"
    assert grid.places([grid.label(step)]).tolist() == [step]


def test_positions_without_labels_are_continued_by_numbers():
    assert following(Mode("day", 5, None, "ordered")) == ["5", "6", "7"]


def test_a_calendar_and_a_clock_are_one_axis():
    modes = (mode("2024-01-01", "2024-01-03", name="day"), mode("8", "12", "16", name="hour", order="cyclic"))
    line = Timeline.of(modes, (0, 1))
    assert line.name == "day+hour"
    assert line.size == 2 * 3  # two days apart is the only gap, and so the step
    assert line.steps_of(np.array([[0, 2], [1, 0]])).tolist() == [2, 3]
    assert [line.labels_at(step) for step in (5, 6)] == [("2024-01-03", "16"), ("2024-01-05", "8")]


def test_the_mode_is_found_by_name_and_dates_and_numbers_of_users_are_none():
    user, item = mode("1", "2", "3", name="user"), mode("a", "b", name="item", order="none")
    day = mode("2024-01-01", "2024-01-02", name="when")
    hour = Mode("hour", 24, None, "cyclic")
    assert choose_modes((user, item, day), None) == (2,)
    assert choose_modes((day, item, hour), None) == (0, 2)
    assert choose_modes((day, item, hour), "when") == (0,)
    assert choose_modes((user, item), None) == (0,)  # the only ordered one, if a forecast is asked for
    assert time_modes((user, item)) == []  # but a new user is no later user
    assert time_modes((user, item), declared=["user"]) == [0]


@pytest.mark.parametrize(
    ("modes", "by", "message"),
    [
        ((mode("a", "b", order="none"), mode("c", "d", name="x", order="none")), None, "no mode is ordered"),
        ((mode("1", "2"), mode("3", "4", name="x")), None, "several modes are ordered: when, x; choose one"),
        ((mode("1", "2"), mode("3", "4", name="x")), "y", "no mode 'y'"),
        ((mode("1", "2"), mode("3", "4", name="x")), "when+when", "give one ordered mode"),
    ],
)
def test_a_mode_that_cannot_be_chosen_is_refused(modes, by, message):
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        choose_modes(modes, by)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (mode("1", "2", order="none"), "not ordered, nothing comes after its last label.*--order when=ordered"),
        (mode("1", "2", order="cyclic"), "cyclic: it begins again"),
        (mode("low", "high"), "cannot be continued: its labels, such as 'high'"),
        (mode("2024-02-30", "2024-02-31"), "cannot be continued"),
        (mode("0", "1", "2", "4000000"), "more than 1,048,576; round its labels"),
    ],
)
def test_a_mode_without_a_next_label_is_refused(one, message):
    with pytest.raises(ConfigError, match=message):
        Timeline.of([one], (0,))
