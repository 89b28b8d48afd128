"""Panels: time stamps as modes, gaps as queries, and units."""

import datetime

import numpy as np
import polars as pl
import pytest

from jointensor.data.modes import UNSEEN
from jointensor.data.panel import Panel, TimeStamps
from jointensor.errors import DataError
from jointensor.predictors.axes import Axis, axes_of

START = datetime.datetime(2024, 1, 1)


def hours(count, step=1):
    return pl.Series("t", [START + datetime.timedelta(hours=step * n) for n in range(count)])


def modes_of(values):
    return TimeStamps.of(pl.Series("t", values)).modes


def test_a_regular_clock_becomes_a_date_and_a_time_of_the_day():
    stamps = TimeStamps.of(hours(72))
    date, time = stamps.modes
    assert (date.name, date.order, date.labels) == ("date", "ordered", ("2024-01-01", "2024-01-02", "2024-01-03"))
    assert (time.name, time.order, time.labels[:2], time.size) == ("time", "cyclic", ("00:00", "01:00"), 24)
    assert stamps.positions[25].tolist() == [1, 1]
    assert (0, 1) in axes_of(stamps.modes)  # kriging takes the two for one axis
    axis = Axis.of(stamps.modes, (0, 1))
    assert np.array_equal(axis.coordinates, np.arange(72))


def test_times_of_opening_are_no_circle():
    date, time = modes_of([START + datetime.timedelta(days=d, hours=h) for d in range(5) for h in range(9, 17)])
    assert (date.size, time.size, time.order) == (5, 8, "ordered")


@pytest.mark.parametrize(
    ("values", "name", "coordinates"),
    [
        ([START + datetime.timedelta(days=d) for d in range(4)], "time", [0, 1, 2, 3]),
        ([datetime.date(2024, 1, 5), datetime.date(2024, 1, 8), datetime.date(2024, 1, 9)], "time", [0, 3, 4]),
        (["2024-01-05 06:00", "2024-01-05 12:00", "2024-01-07 12:00"], "time", [0, 0.25, 2.25]),
        ([0.5, -1.25, 1e-3], "time", [0, 1.251, 1.75]),
        ([3, 1, 2], "time", [0, 1, 2]),
        ([20240105, 20240108, 20240110], "time", [0, 3, 5]),
        ([1_700_000_000, 1_700_086_400, 1_700_259_200], "time", [0, 1, 3]),
        ([datetime.timedelta(days=1), datetime.timedelta(hours=6)], "time", [0, 0.75]),
    ],
)
def test_other_stamps_lie_where_they_are(values, name, coordinates):
    (mode,) = modes_of(values)
    assert (mode.name, mode.order) == (name, "ordered")
    places = np.sort(mode.coordinates()) / (86400 if ":" in mode.label(0) else 1)  # times are in seconds
    np.testing.assert_allclose(places - places[0], coordinates, atol=1e-9)


def test_rows_in_any_order_have_the_same_modes():
    order = np.random.default_rng(0).permutation(72)
    sorted_, mixed = TimeStamps.of(hours(72)), TimeStamps.of(hours(72)[order])
    assert sorted_.modes == mixed.modes
    assert np.array_equal(sorted_.positions[order], mixed.positions)


def test_stamps_twice_or_missing_are_named():
    with pytest.raises(DataError, match="2 rows share their time stamp in 't' with another row: '2024-01-02'"):
        modes_of(["2024-01-01", "2024-01-02", "2024-01-02"])
    with pytest.raises(DataError, match=r"3 rows .* '1', '1.0'"):  # one number, however it is written
        modes_of(["1", "2", "1.0", "1"])
    with pytest.raises(DataError, match="row 2 has no time stamp in 't'"):
        modes_of([1.0, float("nan")])
    with pytest.raises(DataError, match="row 3: 'x' in column 't' is not a date or time"):
        modes_of(["2024-01-01", "2024-01-02", "x"])


def panel(numbers, names=None, levels=("series",)):
    numbers = np.asarray(numbers, dtype=np.float64)
    names = names or [(f"s{n}",) for n in range(numbers.shape[1])]
    return Panel(numbers, names, TimeStamps.of(pl.Series("t", range(len(numbers)))), levels)


def test_entries_and_queries_are_all_cells_and_units_are_undone():
    numbers = np.random.default_rng(0).normal([5.0, -1e6], [0.1, 1e3], size=(40, 2))
    whole = panel(numbers)
    gappy = panel(np.where(np.arange(80).reshape(40, 2) % 7 == 0, np.nan, numbers))
    tensor, queries = gappy.tensor(), gappy.queries()
    cells = np.concatenate([tensor.indices, queries])
    assert len(np.unique(cells, axis=0)) == len(cells) == 80
    for n in range(2):
        own = tensor.values[tensor.indices[:, 0] == n]
        assert abs(own.mean()) < 1e-5
        assert own.std() == pytest.approx(1, abs=1e-5)
    # standardised by the numbers that are seen, the missing ones come back
    rows, columns = gappy.gaps.T
    seen = gappy.numbers[:, columns]
    scores = (whole.numbers[rows, columns] - np.nanmean(seen, axis=0)) / np.nanstd(seen, axis=0)
    np.testing.assert_allclose(gappy.in_units(scores), whole.numbers[rows, columns], rtol=1e-12)
    ends = gappy.in_units(np.stack([scores, scores], axis=1))
    np.testing.assert_allclose(ends[:, 1], whole.numbers[rows, columns], rtol=1e-12)


def test_levels_of_columns_are_modes():
    made = panel(np.eye(4) + 1, [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")], ("place", "what"))
    assert [(mode.name, mode.labels) for mode in made.modes[:2]] == [("place", ("a", "b")), ("what", ("x", "y"))]
    assert made.tensor().shape == (2, 2, 4)


def test_a_series_without_a_number_is_unseen_and_a_constant_one_stays_the_same():
    made = panel([[1.0, np.nan, 0.1], [3.0, np.nan, 0.1], [np.nan, np.nan, np.nan]])
    queries = made.queries()
    assert made.empty == ["s1"]
    assert [tuple(one) for one in queries] == [(UNSEEN, 0), (UNSEEN, 1), (0, 2), (UNSEEN, 2), (2, 2)]
    values = made.in_units(np.ones(5))
    assert values[2] == 2 + 1  # mean and deviation of its own
    assert values[4] == 0.1  # no deviation
    with pytest.raises(DataError, match="no series has a single value"):
        panel([[np.nan, np.nan]])
