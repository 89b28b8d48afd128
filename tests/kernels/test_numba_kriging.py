"""Kriging, compiled: covariances from a table and computed ones, and NumPy's."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.kernels import numba_kriging
from jointensor.predictors.kriging import FAR_LENGTH, NEIGHBOURS_PER_SIDE, Kriging

SHAPE = (6, 30, 3)


def residuals_along(order, share, seed=0):
    """Residuals of some cells along the second mode, whose positions are neither even nor sorted."""
    rng = np.random.default_rng(seed)
    cells = np.argwhere(rng.random(SHAPE) < share)
    hours = rng.permutation(np.cumsum(rng.integers(1, 5, SHAPE[1])))
    along = Mode("hour", SHAPE[1], tuple(map(str, hours)), order)
    made = Kriging.of(cells, rng.standard_normal(len(cells)), 1, along, SHAPE)
    return replace(made, near=0.6, length=3.0, far=0.2)


def predictions(local, queries, itself):
    law = (local.near, local.length, local.far, FAR_LENGTH)
    known = (local.keys, local.residuals, local.coordinates, SHAPE[1], local.period)
    return numba_kriging.predict_from_neighbours(queries, *known, *law, NEIGHBOURS_PER_SIDE, int(itself))


@pytest.mark.parametrize("share", [0.02, 0.15, 0.7])  # fibers with no, few and more neighbours than are asked
@pytest.mark.parametrize("order", ["ordered", "cyclic"])
@pytest.mark.parametrize("itself", [False, True])
def test_predictions_are_the_same_with_and_without_a_table_and_in_numpy(monkeypatch, share, order, itself):
    local = residuals_along(order, share)
    assert (local.period > 0) == (order == "cyclic")
    queries = np.random.default_rng(1).permutation(local.keys if itself else np.arange(np.prod(SHAPE)))
    expected = local._predict_from(*local._neighbours(queries, itself=itself))
    tables, table = [], numba_kriging._table
    monkeypatch.setattr(numba_kriging, "_table", lambda law: tables.append(table(law)) or tables[-1])
    for most in (SHAPE[1], SHAPE[1] - 1):
        monkeypatch.setattr(numba_kriging, "MAX_TABULATED_POSITIONS", most)
        np.testing.assert_allclose(predictions(local, queries, itself), expected, rtol=1e-9, atol=1e-12)
    assert len(tables) == 1  # the places are just too many the second time
    assert share < 0.1 or np.abs(expected).max() > 0.1
