"""The rival of benchmarks/forecasts.py sees nothing that a forecast could not know."""

import importlib

import numpy as np
import pytest

from tests.docs.pages import ROOT


@pytest.fixture
def forecasts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("forecasts")


def test_columns_of_a_value_are_known_a_whole_horizon_before(forecasts):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((80, 6))
    values[rng.random(values.shape) < 0.2] = np.nan
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]])
    task = forecasts.Task("none", "day", 4, 8, (7, 14))
    step = 60
    changed = values.copy()
    changed[step - 3 :] = np.where(np.isfinite(changed[step - 3 :]), 100.0, np.nan)  # the horizon before it, and later
    one, other = (forecasts.Columns(each, codes, task).rows(step, step + 1) for each in (values, changed))
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[2], other[2])
    known = values.copy()
    known[step - 4] += 1.0  # the last one that is known
    assert not np.array_equal(forecasts.Columns(known, codes, task).rows(step, step + 1)[0], one[0], equal_nan=True)


def test_means_of_labels_are_those_of_all_values_before(forecasts):
    values = np.arange(40.0).reshape(20, 2)
    task = forecasts.Task("none", "day", 2, 4, (3,))
    columns, observed, base = forecasts.Columns(values, np.array([[0], [0]]), task).rows(10, 11)
    before = values[:9]
    assert columns[0, 8] == before[:, 0].mean()  # of the series
    assert columns[:, -2].tolist() == [before.mean()] * 2  # of the label that both have
    assert observed.tolist() == [20, 21]
    assert base.tolist() == [14, 15]  # one season before
