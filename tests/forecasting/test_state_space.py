"""The filter against a dense Gaussian computation, and numbers that are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.forecasting.rows import Rows
from jointensor.forecasting.state_space import StateSpace, filter_series, fit_state_space, log_likelihood
from jointensor.kernels.numba_kalman import kalman_filter

MODEL = StateSpace(level=0.3, slope=0.05, auto=0.8, damping=0.9, memory=0.6)


def dense(model, steps):
    """Covariance of y_1 … y_T without noise and of all later values with them, by summing every shock."""
    level0, slope0 = model.row()[5:]
    auto0 = model.auto / (1 - model.memory**2)
    loads, variances = [], []  # (steps,) per shock, and its variance

    def of_slope(begin, size):
        """What a slope of 1 at a step adds to all values."""
        path, slope, level = np.zeros(steps), size, 0.0
        for t in range(begin + 1, steps):
            level += model.damping * slope
            slope *= model.damping
            path[t] = level
        return path

    for t in range(steps):
        after = (np.arange(steps) >= t).astype(float)
        loads += [after, of_slope(t, 1.0), after * model.memory ** np.maximum(np.arange(steps) - t, 0)]
        variances += [level0, slope0, auto0] if t == 0 else [model.level, model.slope, model.auto]
    loads = np.array(loads)
    return loads.T @ (np.array(variances)[:, None] * loads)


def numbers():
    share = st.floats(0.01, 2.0)
    return st.builds(StateSpace, share, share, share, st.floats(0.5, 0.99), st.floats(-0.9, 0.99))


@settings(max_examples=30, deadline=None)
@given(numbers(), st.integers(0, 2**12 - 1), st.integers(0, 5))
def test_likelihood_and_forecasts_are_those_of_the_dense_gaussian(model, missing, seed):
    steps, ahead = 12, 4
    rng = np.random.default_rng(seed)
    covariance = dense(model, steps + ahead)
    values = rng.standard_normal((steps, 1)).cumsum(axis=0)
    gone = np.array([missing >> t & 1 for t in range(steps)], dtype=bool)
    values[gone] = np.nan
    there = np.flatnonzero(~gone)
    y, system = values[there, 0], covariance[np.ix_(there, there)] + np.eye(len(there))
    found = kalman_filter(values, np.array([model.row()]))
    assert found.counts[0] == len(there)
    if len(there):
        assert found.log_variances[0] == pytest.approx(np.linalg.slogdet(system)[1], abs=1e-8)
        assert found.squares[0] == pytest.approx(y @ np.linalg.solve(system, y), rel=1e-8)
    expected = covariance[steps:, there] @ np.linalg.solve(system, y) if len(there) else np.zeros(ahead)
    rows = Rows(np.full(ahead, steps), np.arange(1, ahead + 1), np.zeros(ahead, dtype=np.int64))
    assert filter_series((model,), values).at(rows) == pytest.approx(expected, abs=1e-8)


def test_the_likelihood_has_the_most_likely_variance_of_every_series():
    rng = np.random.default_rng(1)
    values = np.column_stack([rng.standard_normal(40), 100 * rng.standard_normal(40)])
    covariance = dense(MODEL, 40) + np.eye(40)
    expected = 0.0
    for y in values.T:
        variance = y @ np.linalg.solve(covariance, y) / 40
        expected -= 0.5 * (40 * np.log(2 * np.pi * variance) + np.linalg.slogdet(covariance)[1] + 40)
    assert log_likelihood(MODEL, values) == pytest.approx(expected, rel=1e-9)


def test_one_step_expectations_are_forecasts_from_the_step_before():
    rng = np.random.default_rng(2)
    values = rng.standard_normal((30, 3))
    values[rng.random(values.shape) < 0.3] = np.nan
    view = filter_series((MODEL,), values)
    steps, series = np.meshgrid(np.arange(30), np.arange(3), indexing="ij")
    assert view.one_step() == pytest.approx(view.at(Rows(steps, np.ones_like(steps), series)))


def test_the_numbers_of_a_planted_autoregression_are_found():
    rng = np.random.default_rng(3)
    hidden = np.zeros((4000, 4))
    for t in range(1, len(hidden)):
        hidden[t] = 0.9 * hidden[t - 1] + rng.standard_normal(4)
    found = fit_state_space(hidden + rng.standard_normal(hidden.shape))
    assert found.memory == pytest.approx(0.9, abs=0.03)
    assert found.auto == pytest.approx(1.0, rel=0.25)
    assert found.level < 0.01


def test_a_slope_is_continued_and_damped():
    values = np.arange(60.0)[:, None] + 0.1 * np.random.default_rng(4).standard_normal((60, 1))
    view = filter_series((fit_state_space(values),), values)
    ahead = np.array([1, 2, 3])
    forecast = view.at(Rows(np.full(3, 60), ahead, np.zeros(3, dtype=np.int64)))
    assert (np.diff(forecast) > 0).all()
    assert abs(forecast[0] - 60) < 0.5
