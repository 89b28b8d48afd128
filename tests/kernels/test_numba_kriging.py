"""Kriging, compiled: covariances from a table and computed ones, and NumPy's dense solution."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.kernels import numba_kriging
from jointensor.kernels.numba_kriging import find_neighbours, lag_products
from jointensor.predictors.kriging import FAR_LENGTH, Kriging

SHAPE = (6, 30, 3)
NEAR, LENGTH, FAR = 0.4, 3.0, 0.1
SEASON = (5.0, 0.3, 4.0, 1.5)


def residuals_along(order, share, *, seasons=(), even=False, seed=0):
    """Residuals of some cells along the second mode, whose positions are not sorted, and even if asked for."""
    rng = np.random.default_rng(seed)
    cells = np.argwhere(rng.random(SHAPE) < share)
    gaps = np.ones(SHAPE[1], dtype=int) if even else rng.integers(1, 5, SHAPE[1])
    hours = tuple(map(str, rng.permutation(np.cumsum(gaps))))
    modes = [Mode("place", SHAPE[0]), Mode("hour", SHAPE[1], hours, order), Mode("what", SHAPE[2])]
    made = Kriging.of(cells, rng.standard_normal(len(cells)), modes, (1,))
    return replace(made, near=NEAR, length=LENGTH, far=FAR, seasons=np.reshape(seasons, (-1, 4)))


def covariance(local, gaps):
    """By the formula of the module, ``gaps`` in steps."""
    gaps = np.abs(gaps)
    if local.axis.period:
        gaps = np.minimum(gaps, local.axis.period - gaps)
    total = NEAR * np.exp(-gaps / LENGTH) + FAR * np.exp(-gaps / FAR_LENGTH)
    for lag, share, cycles, width in local.seasons:
        phase = np.minimum(gaps % lag, lag - gaps % lag)
        total = total + share * np.exp(-gaps / (lag * cycles)) * np.exp(-phase / width)
    return total


def dense(local, key, rows):
    """The best linear prediction of a cell from some entries."""
    if not len(rows):
        return 0.0
    places = local.axis.coordinates[local.keys[rows] % local.axis.size]
    system = covariance(local, places[:, None] - places[None, :])
    np.fill_diagonal(system, 1.0)
    right = covariance(local, places - local.axis.coordinates[key % local.axis.size])
    return right @ np.linalg.solve(system, local.residuals[rows].astype(float))


@pytest.mark.parametrize("share", [0.02, 0.15, 0.7])  # fibers with no, few and more neighbours than are asked
@pytest.mark.parametrize(("order", "seasons"), [("ordered", ()), ("cyclic", ()), ("ordered", SEASON)])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("even", [False, True])
def test_predictions_are_the_dense_solution_with_and_without_a_table(monkeypatch, share, order, seasons, itself, even):
    local = residuals_along(order, share, seasons=seasons, even=even)
    queries = np.random.default_rng(1).permutation(local.keys if itself else np.arange(np.prod(SHAPE)))
    found = local._neighbours(queries, itself=itself)
    expected = [dense(local, key, rows[:count]) for key, rows, count in zip(queries, *found, strict=True)]
    for longest in (1 << 20, 0):
        monkeypatch.setattr(numba_kriging, "MAX_TABULATED_GAP", longest)
        np.testing.assert_allclose(local._predict_from(queries, found), expected, rtol=1e-9, atol=1e-12)
    assert share < 0.1 or np.abs(expected).max() > 0.1


def test_neighbours_of_a_season_are_those_at_whole_lags():
    """Every cell but one is observed: the four nearest on each side, and two at lags of 5 that are not among them."""
    local = residuals_along("ordered", 1.1, seasons=SEASON, even=True)
    asked = 15
    found = local._neighbours(local.keys[asked : asked + 1], itself=True)
    places = sorted(local.keys[found.rows[0, : found.counts[0]]] % local.axis.size)
    assert places == [5, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 25]


def test_no_entry_is_a_neighbour_twice():
    local = residuals_along("ordered", 0.5, seasons=[(2.0, *SEASON[1:]), (4.0, *SEASON[1:])], even=True)
    found = local._neighbours(local.keys, itself=True)
    for k, (rows, count) in enumerate(zip(*found, strict=True)):
        assert len(set(rows[:count])) == count
        assert k not in rows[:count]
        assert (local.keys[rows[:count]] // local.axis.size == local.keys[k] // local.axis.size).all()


def position_at(coordinates, coordinate):
    """The first one that is not more than half a step before, if it is not half a step away."""
    there = next((k for k, one in enumerate(coordinates) if one >= coordinate - 0.5), None)
    return there if there is not None and abs(coordinates[there] - coordinate) < 0.5 else None


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_neighbours_of_a_season_are_found_wherever_they_lie(even, share):
    """Of entries at lags of 5, 10, …, by a search through all entries: two on each side, the nearest ones known."""
    local = residuals_along("ordered", share, seasons=SEASON, even=even)
    size, coordinates = local.axis.size, local.axis.coordinates
    rows_of = {key: row for row, key in enumerate(local.keys.tolist())}
    for key in range(int(np.prod(SHAPE))):
        rows, counts = local._neighbours(np.array([key]), itself=key in rows_of)
        near = find_neighbours(
            np.array([key]), local.keys, size, np.empty((0, size), np.int64),
            sides=(4, 2), cyclic=False, itself=key in rows_of,
        )  # fmt: skip
        expected = near.rows[0, : near.counts[0]].tolist()
        for sign in (1, -1):
            place, taken = coordinates[key % size], 0
            while taken < 2:
                there = position_at(coordinates, place + sign * SEASON[0])
                if there is None:
                    break
                place, row = coordinates[there], rows_of.get(key - key % size + there)
                if row is not None and row not in expected:
                    expected.append(row)
                    taken += 1
        assert rows[0, : counts[0]].tolist() == expected


@pytest.mark.parametrize("even", [False, True])
def test_sums_over_pairs_at_a_lag_are_those_over_all_pairs(even):
    local = residuals_along("ordered", 0.6, even=even)
    size, coordinates, most = local.axis.size, local.axis.coordinates, 8
    some = np.arange(0, len(local.keys), 2)
    found = lag_products(local.keys[some], some, local.keys, local.residuals, size, coordinates, most)
    values = dict(zip(local.keys.tolist(), local.residuals.astype(float), strict=True))
    expected = np.zeros((most, 4))
    for key in local.keys[some].tolist():
        for lag in range(1, most + 1):
            there = position_at(coordinates, coordinates[key % size] + lag)
            one, other = values[key], None if there is None else values.get(key - key % size + there)
            if other is not None:
                expected[lag - 1] += 1, one * one, other * other, one * other
    assert expected[:, 0].max() > 30
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
