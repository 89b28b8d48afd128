"""Neighbours along a mode: kriging against dense solves, entries left out of their own answers, planted processes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.modes import Mode
from jointensor.predictors.fibers import can_be_numbered
from jointensor.predictors.kriging import FAR_LENGTH, NEIGHBOURS_PER_SIDE, Kriging

NEAR, LENGTH, FAR = 0.6, 3.0, 0.2


def along_mode(cells, residuals, mode, along, shape):
    """Kriging along one mode of a tensor; the others have no order."""
    modes = [along if n == mode else Mode(f"other {n}", size) for n, size in enumerate(shape)]
    return Kriging.of(np.asarray(cells), np.asarray(residuals, dtype=np.float64), modes, (mode,))


def local_of(cells, residuals, along, mode, shape, **numbers):
    made = along_mode(cells, residuals, mode, along, shape)
    return replace(made, **({"near": NEAR, "length": LENGTH, "far": FAR} | numbers))


def covariance(distance):
    return NEAR * np.exp(-np.abs(distance) / LENGTH) + FAR * np.exp(-np.abs(distance) / FAR_LENGTH)


def kriging(places, residuals, here):
    """Best linear guess at one place from residuals at others, by one dense solve."""
    places = np.asarray(places, dtype=np.float64)
    if not len(places):
        return 0.0
    system = covariance(places[:, None] - places[None, :])
    np.fill_diagonal(system, 1.0)  # the rest of the variance is noise of each entry alone
    return float(covariance(places - here) @ np.linalg.solve(system, residuals))


def fibers(shape, share, seed):
    """Some cells of a tensor, and a residual for each."""
    rng = np.random.default_rng(seed)
    cells = np.argwhere(rng.random(shape) < share)
    return cells, rng.standard_normal(len(cells)).astype(np.float32)


def others_of(cells, cell, mode):
    """Which entries are in the fiber of a cell, that cell not counted."""
    rest = [n for n in range(len(cell)) if n != mode]
    return (cells[:, rest] == cell[rest]).all(axis=1) & (cells[:, mode] != cell[mode])


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_guesses_are_the_dense_solution_where_all_of_a_fiber_is_asked(mode, share):
    shape = (5, 4, 3)
    cells, residuals = fibers(shape, share, seed=mode)
    local = local_of(cells, residuals, Mode("day", shape[mode], order="ordered"), mode, shape)
    every = np.argwhere(np.ones(shape))
    unknown = every[[not (cells == cell).all(axis=1).any() for cell in every]]
    for asked, found in ((unknown, local.predict(unknown)), (cells, local.leave_one_out(cells))):
        masks = [others_of(cells, cell, mode) for cell in asked]
        expected = [kriging(cells[m, mode], residuals[m], cell[mode]) for m, cell in zip(masks, asked, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_of_a_long_fiber_the_nearest_on_each_side_are_asked():
    rng = np.random.default_rng(0)
    days = np.sort(rng.permutation(60)[:30])
    cells = np.column_stack([np.zeros(30, dtype=int), days])
    residuals = rng.standard_normal(30).astype(np.float32)
    local = local_of(cells, residuals, Mode("day", 60, order="ordered"), 1, (1, 60))
    for place in (0, 3, 17, 29):
        near = np.r_[
            np.arange(max(place - NEIGHBOURS_PER_SIDE, 0), place),
            np.arange(place + 1, min(place + 1 + NEIGHBOURS_PER_SIDE, 30)),
        ]
        expected = kriging(days[near], residuals[near], days[place])
        assert local.leave_one_out(cells[place : place + 1])[0] == pytest.approx(expected, rel=1e-6)


def test_numbers_as_labels_say_where_positions_lie():
    """In usual steps: the sorted labels 1, 2, 4, 7, 10 are 2.5 apart as a median."""
    labels = ("10", "2", "1", "7", "4")
    cells = np.array([[0, 0], [0, 1], [0, 3], [0, 4]])
    residuals = np.array([1.0, -2.0, 0.5, 3.0])
    local = local_of(cells, residuals, Mode("hour", 5, labels, "ordered"), 1, (2, 5))
    expected = kriging(np.array([10, 2, 7, 4]) / 2.5, residuals, 1 / 2.5)
    assert local.predict(np.array([[0, 2]]))[0] == pytest.approx(expected, rel=1e-6)


def test_dates_lie_in_the_order_of_time_whatever_the_order_of_labels():
    dates = tuple(f"2024-0{month}-01" for month in range(1, 7))
    rng = np.random.default_rng(1)
    cells, residuals = fibers((3, 6), 0.7, seed=4)
    straight = local_of(cells, residuals, Mode("day", 6, dates, "ordered"), 1, (3, 6))
    order = rng.permutation(6)  # position p of the shuffled mode is date order[p]
    shuffled = Mode("day", 6, tuple(dates[p] for p in order), "ordered")
    place = np.argsort(order)
    moved = np.column_stack([cells[:, 0], place[cells[:, 1]]])
    again = local_of(moved, residuals, shuffled, 1, (3, 6))
    np.testing.assert_allclose(again.leave_one_out(moved), straight.leave_one_out(cells), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["ordered", "cyclic"])
@settings(max_examples=8, deadline=None)
@given(share=st.floats(0.1, 1.0), seed=st.integers(0, 10**6))
def test_an_entry_left_out_is_an_entry_that_was_never_there(order, share, seed):
    shape = (2, 9)
    cells, residuals = fibers(shape, share, seed)
    if not len(cells):
        return
    along = Mode("hour", 9, order=order)
    left_out = local_of(cells, residuals, along, 1, shape).leave_one_out(cells)
    for k in range(len(cells)):
        without = local_of(np.delete(cells, k, axis=0), np.delete(residuals, k), along, 1, shape)
        assert without.predict(cells[k : k + 1])[0] == pytest.approx(left_out[k], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("order", ["ordered", "cyclic"])
def test_the_value_of_an_entry_does_not_change_its_own_prediction(order):
    cells, residuals = fibers((6, 12), 0.7, seed=2)
    along = Mode("hour", 12, order=order)
    before = local_of(cells, residuals, along, 1, (6, 12)).leave_one_out(cells)
    for k in range(0, len(cells), 5):
        changed = residuals.copy()
        changed[k] += 1000
        after = local_of(cells, changed, along, 1, (6, 12)).leave_one_out(cells)
        assert after[k] == before[k]
        beside = others_of(cells, cells[k], 1) & (np.abs(cells[:, 1] - cells[k, 1]) == 1)
        assert (after != before)[beside].all()


def test_a_cyclic_mode_goes_on_at_its_begin():
    along, ring = Mode("hour", 24, order="cyclic"), np.array([[0, 23], [0, 1], [0, 22]])
    local = local_of(ring, [2.0, -1.0, 0.5], along, 1, (1, 24))
    expected = kriging([-1, 1, -2], np.array([2.0, -1.0, 0.5]), 0.0)
    assert local.predict(np.array([[0, 0]]))[0] == pytest.approx(expected, rel=1e-6)
    straight = local_of(ring, [2.0, -1.0, 0.5], Mode("hour", 24, order="ordered"), 1, (1, 24))
    assert straight.predict(np.array([[0, 0]]))[0] != pytest.approx(expected, rel=0.01)


def test_a_ring_can_be_turned():
    cells, residuals = fibers((5, 11), 0.6, seed=3)
    along = Mode("hour", 11, order="cyclic")
    still = local_of(cells, residuals, along, 1, (5, 11)).leave_one_out(cells)
    for turn in (1, 4, 10):
        turned = np.column_stack([cells[:, 0], (cells[:, 1] + turn) % 11])
        found = local_of(turned, residuals, along, 1, (5, 11)).leave_one_out(turned)
        np.testing.assert_allclose(found, still, rtol=1e-9, atol=1e-12)


def test_on_a_ring_with_two_entries_the_nearer_one_is_asked():
    along = Mode("hour", 24, order="cyclic")
    local = local_of([[0, 12], [0, 23]], [0.0, 1.0], along, 1, (1, 24), far=0.0)
    assert local.predict(np.array([[0, 0]]))[0] > 0.9 * NEAR * np.exp(-1 / LENGTH)


def test_on_a_ring_the_only_other_entry_is_asked():
    local = local_of([[0, 3], [0, 4]], [2.0, -1.0], Mode("hour", 24, order="cyclic"), 1, (1, 24))
    np.testing.assert_allclose(local.leave_one_out(np.array([[0, 3], [0, 4]])), covariance(1.0) * np.array([-1.0, 2.0]))


def test_neighbours_on_a_ring_are_near_each_other_across_its_far_side_too():
    """Seven hours: the dense solution has the distances along the ring between all of them."""
    hours, residuals = np.arange(7), np.random.default_rng(0).standard_normal(7)
    cells = np.column_stack([np.zeros(7, dtype=int), hours])
    local = local_of(cells, residuals, Mode("hour", 7, order="cyclic"), 1, (1, 7))
    apart = np.abs(hours[:, None] - hours[None, :])
    system = covariance(np.minimum(apart, 7 - apart))
    np.fill_diagonal(system, 1.0)
    expected = system[0, 1:] @ np.linalg.solve(system[1:, 1:], residuals[1:])
    assert local.leave_one_out(cells[:1])[0] == pytest.approx(float(expected), rel=1e-5)


def test_without_neighbours_the_prediction_is_zero():
    cells = np.array([[0, 0], [0, 1], [1, 3]])
    local = local_of(cells, [1.0, 2.0, 3.0], Mode("day", 5, order="ordered"), 1, (3, 5))
    assert local.leave_one_out(cells)[2] == 0.0
    assert local.predict(np.array([[2, 0], [2, 4]])).tolist() == [0.0, 0.0]
    nobody = local_of(np.zeros((0, 2), dtype=int), [], Mode("day", 5, order="ordered"), 1, (3, 5))
    assert nobody.predict(cells).tolist() == [0.0] * 3


def test_unknown_labels_are_predicted_as_zero():
    local = local_of([[0, 0], [0, 1]], [1.0, 2.0], Mode("day", 5, order="ordered"), 1, (3, 5))
    assert local.predict(np.array([[-1, 0], [0, -1], [-1, -1]])).tolist() == [0.0] * 3
    assert local.predict(np.array([[0, 2]]))[0] != 0


def test_neighbours_that_say_nothing_say_zero():
    cells, residuals = fibers((4, 6), 0.8, seed=0)
    local = along_mode(cells, residuals, 1, Mode("day", 6, order="ordered"), (4, 6))
    assert not local.leave_one_out(cells).any()
    assert not local.predict(cells).any()


def test_a_day_far_away_says_little():
    local = local_of([[0, 0]], [1.0], Mode("day", 50, order="ordered"), 1, (1, 50), far=0.0)
    predictions = local.predict(np.column_stack([np.zeros(49, dtype=int), np.arange(1, 50)]))
    assert (np.diff(predictions) < 0).all()
    assert 0 < predictions[-1] < 1e-6


def test_the_number_of_parameters_is_that_of_residuals_and_four():
    cells, residuals = fibers((4, 6), 0.8, seed=0)
    assert local_of(cells, residuals, Mode("day", 6), 1, (4, 6)).n_parameters() == len(cells) + 4


def test_a_scale_multiplies_predictions():
    cells, residuals = fibers((4, 6), 0.8, seed=0)
    one, half = (local_of(cells, residuals, Mode("day", 6, order="ordered"), 1, (4, 6), scale=s) for s in (1.0, 0.5))
    everywhere = np.argwhere(np.ones((4, 6)))
    np.testing.assert_allclose(half.predict(everywhere), 0.5 * one.predict(everywhere))
    np.testing.assert_allclose(half.leave_one_out(cells), 0.5 * one.leave_one_out(cells))


def test_other_entries_take_the_place_of_the_residuals():
    cells, residuals = fibers((4, 6), 0.8, seed=0)
    day = Mode("day", 6, order="ordered")
    few = local_of(cells[::2], residuals[::2], day, 1, (4, 6), scale=0.5)
    all_ = local_of(cells, residuals, day, 1, (4, 6), scale=0.5)
    everywhere = np.argwhere(np.ones((4, 6)))
    assert np.array_equal(few.with_residuals(cells, residuals).predict(everywhere), all_.predict(everywhere))


def test_cells_that_cannot_be_numbered_are_known():
    assert can_be_numbered((2**20, 2**20, 2**20))
    assert not can_be_numbered((2**21, 2**21, 2**20))


def process(fibers_, days, keep, phi, noise, seed):
    """An AR(1) process along every fiber of which some days are known with noise: cells, values, the process."""
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal((fibers_, days))
    path = np.empty_like(steps)
    path[:, 0] = steps[:, 0]
    for t in range(1, days):
        path[:, t] = phi * path[:, t - 1] + np.sqrt(1 - phi**2) * steps[:, t]
    cells = rng.permutation(np.argwhere(np.ones((fibers_, days))))[: int(keep * fibers_ * days)]
    return cells, path[tuple(cells.T)] + noise * rng.standard_normal(len(cells)), path


def test_a_planted_process_is_recovered_almost_as_well_as_by_those_who_know_it():
    cells, values, path = process(80, 60, 0.6, phi=0.9, noise=0.5, seed=0)
    along = Mode("day", 60, order="ordered")
    local = along_mode(cells, values, 1, along, (80, 60)).tuned()
    known = np.zeros((80, 60), dtype=bool)
    known[tuple(cells.T)] = True
    unknown = np.argwhere(~known)
    # var 1 of the process and 0.25 of the noise: a = 0.8, and ℓ with e^(−1/ℓ) = 0.9
    best = replace(local, near=0.8, length=-1 / np.log(0.9), far=0.0)
    truth = path[tuple(unknown.T)]
    errors = [np.mean((one.predict(unknown) - truth) ** 2) for one in (local, best)]
    assert errors[0] < 1.05 * errors[1]
    assert errors[1] < 0.4  # of a variance of 1


def test_the_error_of_entries_left_out_is_that_of_new_ones():
    cells, values, _ = process(150, 60, 0.6, phi=0.8, noise=0.7, seed=1)
    half = len(cells) // 2
    local = along_mode(cells[:half], values[:half], 1, Mode("day", 60, order="ordered"), (150, 60)).tuned()
    expected = np.mean((values[:half] - local.leave_one_out(cells[:half])) ** 2)
    seen = np.mean((values[half:] - local.predict(cells[half:])) ** 2)
    # a standard error of a mean square of n normal numbers is √(2/n) of it; two of them differ by √2 as much
    assert abs(expected / seen - 1) < 4 * np.sqrt(4 / half)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("order", ["ordered", "cyclic"])
def test_predictions_of_pure_noise_are_almost_zero(order, seed):
    cells, values, _ = process(120, 40, 0.6, phi=0.0, noise=1.0, seed=seed)
    local = along_mode(cells, values, 1, Mode("day", 40, order=order), (120, 40)).tuned()
    assert np.mean(local.leave_one_out(cells) ** 2) < 0.01 * np.var(values)


def test_what_is_tuned_is_never_worse_on_entries_left_out_than_saying_nothing():
    for seed in range(5):
        cells, values, _ = process(30, 20, 0.5, phi=-0.7, noise=0.1, seed=seed)  # of a kind that is not modelled
        local = along_mode(cells, values, 1, Mode("day", 20, order="ordered"), (30, 20)).tuned()
        left = values.astype(np.float32) - local.leave_one_out(cells)
        assert np.mean(left**2) <= np.mean(values**2) * (1 + 1e-6)
