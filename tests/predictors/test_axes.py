"""Axes: cells in the order of time that one mode or two of them tell, and the seasons along them."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.errors import RunError
from jointensor.predictors.axes import Axis, axes_of
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.storage import load_predictor, save_predictor


def ordered(name, size, **more):
    return Mode(name, size, order="ordered", **more)


DAY, HOUR = ordered("day", 6), ordered("hour", 4)


def test_a_calendar_and_a_clock_are_one_axis():
    dates = Mode("reported", 3, ("2024-01-01", "2024-01-02", "2024-01-03"), "ordered")
    ring = Mode("turn", 24, order="cyclic")
    assert axes_of([Mode("place", 5), DAY, HOUR]) == [(1,), (2,), (1, 2)]
    assert axes_of([HOUR, DAY]) == [(0,), (1,), (1, 0)]
    assert axes_of([ordered("week", 9), Mode("weekday", 7, order="cyclic")]) == [(0,), (1,), (0, 1)]
    assert axes_of([dates, ring]) == [(0,), (1,), (0, 1)]


def test_coordinates_that_tell_no_time_are_axes_of_their_own():
    assert axes_of([ordered("lat", 9), ordered("lon", 9)]) == [(0,), (1,)]
    assert axes_of([ordered("day", 9), ordered("date", 9)]) == [(0,), (1,)]
    assert axes_of([Mode("user", 9), Mode("hour", 4)]) == []
    assert axes_of([ordered("day", 2**21), ordered("hour", 2**21), ordered("lat", 2**21)]) == []  # no numbers for them


def test_cells_are_numbered_in_the_order_of_time():
    """Labels in any order: hours of one day follow each other, and the first hour of a day the last one before it."""
    days, hours = ("2024-01-02", "2024-01-01"), ("12", "0", "6", "18")
    modes = [Mode("day", 2, days, "ordered"), Mode("place", 2), Mode("hour", 4, hours, "ordered")]
    axis = Axis.of(modes, (0, 2))
    cells = np.array([[0, 1, 0], [0, 1, 1], [1, 1, 3], [1, 1, 2], [1, 0, 3]])
    keys = axis.keys(cells)
    assert (keys // axis.size).tolist() == [1, 1, 1, 1, 0]
    assert (keys % axis.size).tolist() == [6, 4, 3, 1, 3]
    assert axis.coordinates.tolist() == list(range(8))  # in steps of six hours


@pytest.mark.parametrize("along", [(1,), (2,), (1, 2), (2, 0)])
def test_numbers_of_cells_say_fiber_and_position(along):
    modes = [ordered("a", 3), ordered("b", 4), ordered("c", 5)]
    axis = Axis.of(modes, along)
    cells = np.argwhere(np.ones((3, 4, 5)))
    keys = axis.keys(cells)
    assert sorted(keys) == list(range(60))
    others = [n for n in range(3) if n not in along]
    for one, key in zip(cells, keys, strict=True):
        same = (cells[:, others] == one[others]).all(axis=1)
        assert set(np.flatnonzero(keys // axis.size == key // axis.size)) == set(np.flatnonzero(same))


def path_with_season(lag, seed=0):
    """Values along 40 fibers of 90 steps: a pattern of its own in each fiber, which comes back after every lag."""
    rng = np.random.default_rng(seed)
    pattern = rng.standard_normal((40, lag))
    values = np.tile(pattern, 90 // lag + 1)[:, :90] + 0.3 * rng.standard_normal((40, 90))
    return values, rng.random((40, 90)) < 0.6


def test_a_planted_season_is_found_and_predicts_what_nearest_neighbours_cannot():
    values, seen = path_with_season(lag=11)
    cells = np.argwhere(seen)
    model = Kriging.of(cells, values[seen], [Mode("place", 40), ordered("day", 90)], (1,)).tuned()
    assert model.seasons[:, 0].tolist()[0] == 11
    error = np.mean((model.predict(np.argwhere(~seen)) - values[~seen]) ** 2)
    assert error < 0.3  # of a variance of 1.09, of which 0.09 is noise


def test_the_same_season_is_found_in_time_that_two_modes_tell():
    values, seen = path_with_season(lag=9)  # ten days of nine hours
    days, modes = values.reshape(40, 10, 9), [Mode("place", 40), ordered("day", 10), ordered("hour", 9)]
    known = seen.reshape(40, 10, 9)
    model = Kriging.of(np.argwhere(known), days[known], modes, (1, 2)).tuned()
    flat = Kriging.of(np.argwhere(seen), values[seen], [modes[0], ordered("step", 90)], (1,)).tuned()
    assert model.seasons[:, 0].tolist()[0] == 9
    np.testing.assert_array_equal(model.predict(np.argwhere(~known)), flat.predict(np.argwhere(~seen)))


def test_noise_and_slow_processes_have_no_season():
    rng = np.random.default_rng(0)
    modes = [Mode("place", 60), ordered("day", 80)]
    cells = np.argwhere(np.ones((60, 80)))
    assert not len(Kriging.of(cells, rng.standard_normal(4800), modes, (1,)).tuned().seasons)
    walk = np.cumsum(rng.standard_normal((60, 80)), axis=1)
    assert not len(Kriging.of(cells, walk.ravel() - walk.mean(), modes, (1,)).tuned().seasons)


def test_a_multiple_of_a_lag_is_another_season_only_where_it_says_more():
    """Weeks of seven days of six hours: a pattern that every day has, and one that comes back after a week."""
    rng = np.random.default_rng(0)
    daily = np.tile(rng.standard_normal((40, 6)), 35)
    weekly = np.tile(rng.standard_normal((40, 42)), 5)
    cells, modes = np.argwhere(np.ones((40, 210))), [Mode("place", 40), ordered("hour", 210)]
    some = np.arange(2000)
    noise = 0.1 * rng.standard_normal((40, 210))
    assert Kriging.of(cells, (daily + noise).ravel(), modes, (1,)).likely_lags(some) == [6]
    assert Kriging.of(cells, (daily + weekly + noise).ravel(), modes, (1,)).likely_lags(some) == [42, 6]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("keys", lambda model: np.append(model.keys[:-1], 10**9)),
        ("keys", lambda model: np.append([-1], model.keys[1:])),
        ("keys", lambda model: model.keys[::-1].copy()),
        ("residuals", lambda model: model.residuals[1:]),
        ("seasons", lambda model: np.array([[0.0, 0.1, 2.0, 1.0]])),
        ("seasons", lambda model: np.ones((9, 4))),
        ("ranks", lambda model: (np.full(9, 99),)),
        ("ranks", lambda model: (np.full(9, -1),)),
        ("coordinates", lambda model: model.axis.coordinates[::-1].copy()),
        ("coordinates", lambda model: np.full(9, np.nan)),
        ("modes", lambda model: (7,)),
        ("shape", lambda model: (5, 6, 9)),
    ],
)
def test_stored_neighbours_that_are_nowhere_are_refused(tmp_path, name, wrong):
    rng = np.random.default_rng(0)
    cells = np.argwhere(rng.random((5, 9)) < 0.7)
    model = Kriging.of(cells, rng.standard_normal(len(cells)), [Mode("place", 5), ordered("day", 9)], (1,))
    model = replace(model, near=0.5, seasons=np.array([[4.0, 0.1, 2.0, 1.0]]))
    save_predictor(model, tmp_path / "good")
    assert load_predictor(tmp_path / "good").predict(cells).tolist() == model.predict(cells).tolist()
    inner = name in {"ranks", "coordinates", "modes", "shape"}
    changed = {name: wrong(model)}
    save_predictor(replace(model, **({"axis": replace(model.axis, **changed)} if inner else changed)), tmp_path / "bad")
    with pytest.raises(RunError, match="inconsistent"):
        load_predictor(tmp_path / "bad")
