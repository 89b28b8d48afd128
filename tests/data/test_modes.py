import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.modes import UNSEEN, Mode, guess_order, is_date, sort_labels
from jointensor.errors import DataError


def test_labels_stay_as_written():
    mode = Mode("fips", 3, ("01001", "1001", "1001.0"))
    assert mode.encode(["1001", "01001", "1001.0", "001001"]).tolist() == [1, 0, 2, UNSEEN]
    assert mode.decode(np.array([0, 1, 2])) == ["01001", "1001", "1001.0"]


def test_positions_are_the_labels_of_a_mode_without_labels():
    mode = Mode("user", 30)
    assert mode.encode(["3", 3, "3.0", "30", "-1", "1.5", "x", "", "nan", "inf", "1_0"]).tolist() == [3] * 3 + [-1] * 8
    assert mode.label(7) == "7"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=20, unique=True))
def test_encode_undoes_decode(labels):
    mode = Mode("m", len(labels), tuple(labels))
    assert mode.encode(mode.decode(np.arange(len(labels)))).tolist() == list(range(len(labels)))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "100"], ["9", "10", "100"]),
        (["1", "01", "001", "2"], ["001", "01", "1", "2"]),
        (["-1", "0.5", "-2.25", "1e1"], ["-2.25", "-1", "0.5", "1e1"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["2014-10-01", "2014-09-30"], ["2014-09-30", "2014-10-01"]),
        (["10", "9", "nan"], ["10", "9", "nan"]),
        (["1_0", "2"], ["1_0", "2"]),
    ],
)
def test_numbers_sort_by_value_and_all_else_as_text(labels, expected):
    assert sort_labels(labels) == expected


@pytest.mark.parametrize(
    ("name", "labels", "order"),
    [
        ("user", None, "none"),
        ("day", None, "ordered"),
        ("pickup_hour", None, "ordered"),
        ("birthday party", None, "none"),
        ("x", ("1", "2.5"), "ordered"),
        ("x", ("2014-04-01", "2014-04-02 00:10:00"), "ordered"),
        ("x", ("2014-W14", "2014-W15"), "ordered"),
        ("x", ("2014-Q1",), "ordered"),
        ("day", ("mon", "tue"), "none"),
        ("x", ("1", "b"), "none"),
    ],
)
def test_order_is_guessed_from_labels_or_the_name(name, labels, order):
    assert guess_order(name, labels) == order


@pytest.mark.parametrize("label", ["20140401", "2014", "4/1/2014", "2014-4-1", "2014-04-01x"])
def test_only_iso_dates_are_dates(label):
    assert not is_date(label)


def test_coordinates_are_numbers_or_ranks():
    assert Mode("lat", 3, ("40.5", "40.75", "41")).coordinates().tolist() == [40.5, 40.75, 41.0]
    assert Mode("city", 2, ("oslo", "rome")).coordinates().tolist() == [0.0, 1.0]
    assert Mode("n", 3).coordinates().tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "mode 'm' has size 0"),
        ({"size": 2, "labels": ("a",)}, "1 labels for 2 positions"),
        ({"size": 2, "labels": ("a", "a")}, "occurs twice: 'a'"),
        ({"size": 2, "order": "sorted"}, "order 'sorted' is not one of none, ordered, cyclic"),
    ],
)
def test_bad_modes_are_refused_by_name(options, message):
    with pytest.raises(DataError, match=message):
        Mode("m", **options)


def test_dates_are_as_far_apart_as_they_are():
    """A weekend without entries, times of a day, weeks across years, months."""
    days = ("2024-03-01", "2024-03-04", "2024-03-05")
    assert np.diff(Mode("day", 3, days).coordinates()).tolist() == [3.0, 1.0]
    times = ("2024-03-01 18:00", "2024-03-02 06:00", "2024-03-01 00:00")
    hours = np.diff(Mode("time", 3, times).coordinates())
    assert hours[1] / hours[0] == pytest.approx(-30 / 12)
    weeks = ("2020-W52", "2020-W53", "2021-W01")
    assert np.diff(Mode("week", 3, weeks).coordinates()).tolist() == [1.0, 1.0]
    months = ("2023-12", "2024-02")
    assert np.diff(Mode("month", 2, months).coordinates()).tolist() == [2.0]
    assert np.diff(Mode("quarter", 2, ("2023-Q4", "2024-Q1")).coordinates()).tolist() == [1.0]


@pytest.mark.parametrize(
    "labels",
    [
        ("2024-02-30", "2024-03-01"),
        ("2024-03-01", "2024-04"),
        ("2024-W60", "2024-W01"),
        ("2024-03-01T00:00+01:00", "2024-03-01T00:00+02:00"),
    ],
)
def test_dates_that_cannot_be_measured_together_are_counted(labels):
    ranks = Mode("day", 2, labels).coordinates()
    assert sorted(ranks.tolist()) == [0.0, 1.0]
    assert (np.argsort(ranks) == np.argsort(labels)).all()
