"""Sums and last values of a phase by brute force, and planted seasons."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.forecasting.profile import Layer, Profile
from jointensor.forecasting.rows import Rows
from jointensor.forecasting.seasons import find_seasons, latest, phase_sums, rows_before
from jointensor.forecasting.simple import simple_forecasts


def some(steps, series, share, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((steps, series))
    values[rng.random(values.shape) < share] = np.nan
    return values


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 9), st.floats(0.1, 1.0), st.integers(0, 99))
def test_sums_and_last_values_are_those_of_a_loop(steps, period, decay, seed):
    values = some(steps, 2, 0.4, seed)
    sums, counts = phase_sums(values, period, decay)
    last = latest(values, period)
    for t in range(steps):
        for s in range(2):
            past = [values[u, s] for u in range(t % period, t + 1, period)]
            weights = [decay**k * np.isfinite(one) for k, one in enumerate(reversed(past))]
            assert counts[t, s] == pytest.approx(sum(weights))
            assert sums[t, s] == pytest.approx(
                sum(w * np.nan_to_num(y) for w, y in zip(weights, past[::-1], strict=True))
            )
            seen = [one for one in past if np.isfinite(one)]
            assert last[t, s] == seen[-1] if seen else np.isnan(last[t, s])


@given(st.integers(1, 50), st.integers(1, 40), st.integers(1, 20))
def test_the_row_of_a_phase_is_the_last_one_before_the_origin(origin, ahead, period):
    target = origin - 1 + ahead
    row = int(rows_before(np.array(origin), np.array(ahead), period))
    assert row < origin <= row + period
    assert (target - row) % period == 0


def test_seasons_are_found_and_noise_has_none():
    rng = np.random.default_rng(0)
    t = np.arange(24 * 7 * 5)
    day, week = rng.standard_normal(24), rng.standard_normal(168)
    noise = rng.standard_normal((len(t), 5))
    assert find_seasons(noise) == ()
    assert find_seasons((3 * day[t % 24])[:, None] + noise) == (24,)
    assert find_seasons((3 * day[t % 24] + 3 * week[t % 168])[:, None] + noise) == (24, 168)
    odd = rng.standard_normal(31)  # no common length
    assert find_seasons((3 * odd[t % 31])[:, None] + noise) == (31,)


def test_the_profile_is_the_nested_mean():
    values = some(20, 2, 0.3, 7)
    layers = (Layer(1, 0.9, 0.5), Layer(3, 0.8, 2.0), Layer(6, 0.7, 1.0))
    view = Profile(layers, 0.25).over(values)
    for origin, ahead, series in ((13, 1, 0), (13, 4, 1), (20, 8, 0), (2, 1, 1)):
        target, expected = origin - 1 + ahead, 0.25
        for layer in layers:
            period = layer.period if layer.period > 1 else 3
            row = target - int(np.ceil(ahead / period)) * period
            past = values[row::-1, series][:: layer.period] if row >= 0 else np.zeros(0)
            weights = layer.decay ** np.arange(len(past)) * np.isfinite(past)
            expected = (np.nansum(weights * past) + layer.prior * expected) / (weights.sum() + layer.prior)
        rows = Rows(*(np.array([one]) for one in (origin, ahead, series)))
        assert view.at(rows) == pytest.approx([expected])


def test_deviations_are_from_the_profile_one_step_ahead():
    values = some(20, 3, 0.3, 8)
    view = Profile((Layer(1, 0.9, 0.5), Layer(4, 0.8, 2.0), Layer(8, 0.7, 1.0)), 0.25).over(values)
    steps, series = np.meshgrid(np.arange(20), np.arange(3), indexing="ij")
    expected = values - view.at(Rows(steps, np.ones_like(steps), series))
    assert view.deviations(values) == pytest.approx(expected, nan_ok=True)


def test_simple_forecasts_are_what_their_names_say():
    values = np.array([[1.0, np.nan], [2.0, 5.0], [3.0, np.nan], [np.nan, 7.0], [5.0, np.nan], [6.0, np.nan]])
    found = simple_forecasts(values, (2,))
    rows = Rows(np.full(4, 6), np.array([1, 2, 1, 2]), np.array([0, 0, 1, 1]))
    assert found["last"].at(rows).tolist() == [6, 6, 7, 7]
    assert found["seasonal_2"].at(rows).tolist()[:2] == [5, 6]
    assert np.isnan(found["seasonal_2"].at(rows)[2])  # nothing at an even step
    assert found["seasonal_2"].at(rows)[3] == 7
    assert found["seasonal_mean_2"].at(rows).tolist()[:2] == [3, 4]
    assert found["drift"].at(rows).tolist() == [7, 8, 7 + 3 * 1, 7 + 4 * 1]
