"""Entries as series: cell by cell, of the last steps where there are too many, and without other modes."""

import numpy as np
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.errors import ConfigError
from jointensor.forecasting import Panel, Timeline, fit_forecaster
from jointensor.forecasting.rows import grid
from tests.forecasting.planted import days

GAPPED = tuple(map(str, days(30)[[0, 1, 2, 4, 5, 6, 9]]))


def tensor_of(shape, modes, count, seed=0):
    rng = np.random.default_rng(seed)
    cells = np.sort(rng.permutation(np.prod(shape))[:count])
    indices = np.stack(np.unravel_index(cells, shape), axis=1)
    return SparseTensor(indices, rng.standard_normal(count), modes)


@pytest.fixture
def tensor():
    """shop × day × item; the third and the eighth day are not there, and a day has two labels less than ten."""
    modes = (Mode("shop", 5), Mode("day", 7, GAPPED, "ordered"), Mode("item", 4))
    return tensor_of((5, 7, 4), modes, 60)


def test_every_entry_is_at_its_step_and_series(tensor):
    panel = Panel.of(tensor, Timeline.of(tensor.modes, (1,)))
    assert np.isfinite(panel.values).sum() == 60
    place, steps = panel.find(tensor.indices), np.array([0, 1, 2, 4, 5, 6, 9])[tensor.indices[:, 1]]
    assert panel.values[steps, place] == pytest.approx(tensor.values)
    assert panel.series[place].tolist() == tensor.indices[:, [0, 2]].tolist()
    assert np.isfinite(panel.values).any(axis=0).all()


def test_labels_of_the_same_step_are_averaged():
    modes = (Mode("shop", 2), Mode("time", 5, ("0", "1", "2", "2.1", "3"), "ordered"))
    panel = Panel.of(SparseTensor.from_dense(np.arange(10.0).reshape(2, 5), modes), Timeline.of(modes, (1,)))
    assert panel.values.T.tolist() == [[0, 1, 2.5, 4], [5, 6, 7.5, 9]]


def test_of_too_many_cells_the_last_steps_are_taken(tensor, monkeypatch):
    whole = Panel.of(tensor, Timeline.of(tensor.modes, (1,)))
    count = whole.values.shape[1]
    monkeypatch.setattr("jointensor.forecasting.panel.MAX_PANEL_CELLS", 8 * count + 3)
    part = Panel.of(tensor, Timeline.of(tensor.modes, (1,)))
    assert (part.first, part.end, part.steps) == (2, 10, 8)
    assert np.array_equal(part.values, whole.values[2:], equal_nan=True)
    monkeypatch.setattr("jointensor.forecasting.panel.MAX_PANEL_CELLS", 8 * count - 1)
    with pytest.raises(ConfigError, match=f"{count} series along day are too many to forecast"):
        Panel.of(tensor, Timeline.of(tensor.modes, (1,)))


def test_a_calendar_and_a_clock_alone_are_one_series():
    modes = (Mode("day", 20, tuple(map(str, days(20))), "ordered"), Mode("hour", 4, None, "cyclic"))
    profile = np.array([1.0, 5.0, 9.0, 2.0])
    tensor = SparseTensor.from_dense(np.tile(profile, (20, 1)), modes)
    panel = Panel.of(tensor, Timeline.of(modes, (0, 1)))
    assert panel.values.shape == (80, 1)
    rows = grid(np.array([80]), np.arange(1, 5), 1)
    forecasts = fit_forecaster(panel, 4).members(panel.values, panel.series, rows)["forecast"]
    assert forecasts == pytest.approx(profile, abs=0.3)
