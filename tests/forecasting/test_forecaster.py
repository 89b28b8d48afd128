"""Forecasts of planted tensors: close to the noise, causal, with intervals that widen and hold."""

import numpy as np
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.errors import ConfigError, DataError
from jointensor.forecasting import Panel, Timeline, fit_forecaster, roll
from jointensor.forecasting.factors import fit_factors
from jointensor.forecasting.forecaster import simple_names
from jointensor.forecasting.rows import Rows, grid
from jointensor.forecasting.trees import draw_rows
from tests.forecasting.planted import seasonal_factors

NOISE = 0.3


def panel_of(tensor, by=2):
    return Panel.of(tensor, Timeline.of(tensor.modes, (by,)))


@pytest.fixture(scope="module")
def planted():
    tensor, truth = seasonal_factors(noise=NOISE)
    return panel_of(tensor), truth.reshape(-1, truth.shape[2]).T  # (steps, series)


@pytest.fixture(scope="module")
def rolled(planted):
    return roll(planted[0], 2, 20)


def test_series_are_columns_and_days_are_rows(planted):
    panel, truth = planted
    assert panel.values.shape == truth.shape
    assert np.nanmean((panel.values - truth) ** 2) == pytest.approx(NOISE**2, rel=0.1)
    assert panel.find(np.array([[3, 2, 0], [0, 0, 5], [9, 0, 0], [0, -1, 0]])).tolist() == [11, 0, -1, -1]


def test_forecasts_of_a_planted_tensor_are_close_to_what_can_be_known(planted, rolled):
    """The best forecast knows seasons and components: its error is the shocks that are still to come, and the noise."""
    _, truth = planted
    figures = rolled.figures()
    known = truth[rolled.rows.targets, rolled.rows.series]
    assert 7 in figures["seasons"]
    assert len(rolled.observed) == np.isfinite(rolled.panel.values[-40:]).sum()
    weight = 1.5**2  # of the autoregression, on average: a·b of the third component
    shocks = {1: 0.3**2, 2: 0.3**2 * (1 + 0.8**2)}
    for ahead, variance in shocks.items():
        here = rolled.rows.ahead == ahead
        error = np.sqrt(np.mean((rolled.members["forecast"] - known)[here] ** 2))
        assert error < 1.35 * np.sqrt(weight**2 * variance)
    best = min(figures["members"][name]["rmse"] for name in simple_names(figures["members"]))
    assert figures["test"]["rmse"] < 0.8 * best


def test_intervals_of_a_planted_tensor_hold(rolled):
    assert 0.8 < rolled.figures()["interval"]["inside"] < 0.97


def test_the_mixture_is_not_behind_any_member_on_the_rolling_origins(rolled):
    validated = rolled.forecaster.validated
    assert validated["forecast"] <= min(validated.values()) * (1 + 1e-9)


def test_nothing_after_an_origin_moves_its_forecasts(planted, rolled):
    """Of all members: values after the origins are replaced, one half of them by nothing."""
    panel, _ = planted
    origin = len(panel.values) - 10
    rows = grid(np.array([origin]), np.array([1, 2]), panel.values.shape[1])
    changed = panel.values.copy()
    changed[origin:] = 1e3
    changed[origin:, ::2] = np.nan
    before = rolled.forecaster.members(panel.values, panel.series, rows)
    after = rolled.forecaster.members(changed, panel.series, rows)
    for name, one in before.items():
        assert np.array_equal(one, after[name]), name
    ends = (rolled.forecaster.interval(v, before["forecast"], rows, 0.8) for v in (panel.values, changed))
    assert np.array_equal(*ends)


def test_intervals_of_a_random_walk_widen_with_the_horizon_and_the_level():
    rng = np.random.default_rng(1)
    walks = rng.standard_normal((300, 12)).cumsum(axis=0)
    tensor = SparseTensor.from_dense(walks.T, (Mode("place", 12), Mode("day", 300, None, "ordered")))
    panel = panel_of(tensor, by=1)
    forecaster = fit_forecaster(panel, 16)
    rows = grid(np.array([300]), np.array([1, 4, 16]), 12)
    forecasts = forecaster.members(panel.values, panel.series, rows)["forecast"]
    widths = {level: np.diff(forecaster.interval(panel.values, forecasts, rows, level))[:, 0] for level in (0.5, 0.9)}
    by_step = widths[0.9].reshape(3, 12)
    assert (np.diff(by_step, axis=0) > 0).all()
    assert (widths[0.9] > widths[0.5]).all()
    assert np.mean(by_step[2] / by_step[0]) == pytest.approx(4, rel=0.4)  # the root of 16


def test_counts_are_not_forecast_below_zero():
    rng = np.random.default_rng(2)
    counts = rng.poisson(np.linspace(3, 0.01, 60)[:, None] * np.ones(6))
    tensor = SparseTensor.from_dense(counts.T.astype(float), (Mode("place", 6), Mode("day", 60, None, "ordered")))
    panel = panel_of(tensor, by=1)
    forecaster = fit_forecaster(panel, 10)
    rows = grid(np.array([60]), np.arange(1, 11), 6)
    forecasts = forecaster.members(panel.values, panel.series, rows)["forecast"]
    ends = forecaster.interval(panel.values, forecasts, rows, 0.9)
    assert forecasts.min() >= 0
    assert ends.min() >= 0


def test_components_of_planted_factors_are_recovered_with_gaps():
    rng = np.random.default_rng(3)
    scores, loadings = rng.standard_normal((400, 2)), rng.standard_normal((30, 2))
    values = scores @ loadings.T + 0.1 * rng.standard_normal((400, 30))
    values[rng.random(values.shape) < 0.5] = np.nan
    values[7] = np.nan  # nothing at all
    found = fit_factors(values)
    view = found.over(values)
    assert np.isnan(view.scores[7]).all()
    there = np.isfinite(view.scores[:, 0])
    rebuilt = (view.scores @ found.loadings.T)[there]
    assert np.sqrt(np.mean((rebuilt - (scores @ loadings.T)[there]) ** 2)) < 0.1


@pytest.mark.parametrize("steps", [2, 3, 5, 8])
def test_few_steps_are_forecast_or_refused(steps):
    tensor = SparseTensor.from_dense(np.arange(2.0 * steps).reshape(2, steps), (2, Mode("day", steps, None, "ordered")))
    panel = panel_of(tensor, by=1)
    if steps < 4:
        with pytest.raises(DataError, match="too few to forecast 1 more"):
            fit_forecaster(panel, 1)
        return
    forecaster = fit_forecaster(panel, 1)
    rows = Rows(*(np.array(one) for one in ([steps, steps], [1, 1], [0, 1])))
    assert np.isfinite(forecaster.members(panel.values, panel.series, rows)["forecast"]).all()


def test_rolling_origins_that_do_not_fit_are_refused(planted):
    panel, _ = planted
    for horizon, origins in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="both must be 1 or more"):
            roll(panel, horizon, origins)
    with pytest.raises(ConfigError, match="test 180 labels, and day has 180 with entries"):
        roll(panel, 18, 10)


def test_more_forecasts_than_memory_holds_are_refused(planted, monkeypatch):
    monkeypatch.setattr("jointensor.forecasting.rows.MAX_ROWS", 24 * 5)
    with pytest.raises(ConfigError, match="6 labels of 24 series are 144 forecasts, more than 120"):
        roll(planted[0], 3, 2)


def test_rows_are_drawn_among_observed_values_without_repetition():
    values = np.full((40, 5), np.nan)
    values[10:, ::2] = 1.0
    for count in (7, 100, 10**6):
        rows = draw_rows(values, (12, 40), 300, count, np.random.default_rng(0))
        assert np.isfinite(values[rows.targets, rows.series]).all()
        assert ((rows.targets >= 12) & (rows.origins > 0) & (rows.ahead <= 300)).all()
        assert len(set(zip(*(one.tolist() for one in rows), strict=True))) == len(rows.series) <= count
    every = draw_rows(values, (12, 40), 3, 10**6, np.random.default_rng(0))
    assert len(every.series) == 28 * 3 * 3


def test_a_season_that_is_longer_than_what_is_left_for_fitting_is_not_used():
    """Of 30 steps a season of 14 may be found; eighteen are left where twelve validate."""
    rng = np.random.default_rng(5)
    values = np.tile(rng.standard_normal((14, 3)), (3, 1))[:30] + 0.01 * rng.standard_normal((30, 3))
    tensor = SparseTensor.from_dense(values.T, (Mode("place", 3), Mode("day", 30, None, "ordered")))
    panel = panel_of(tensor, by=1)
    for horizon in (1, 12, 17, 20):
        forecaster = fit_forecaster(panel, horizon)
        rows = grid(np.array([30]), np.arange(1, horizon + 1), 3)
        found = forecaster.members(panel.values, panel.series, rows)
        assert np.isfinite(found["forecast"]).all()
        assert len(found) == len(forecaster.names) + 1
