"""Tables with kriging: residuals are those of other folds, and an end of time leaves what there is by then."""

import math
from itertools import count

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.split import FOLDS, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import fit_bias
from jointensor.predictors.kriged_tables import krige_tables, refit_kriged_tables
from jointensor.predictors.residual_stack import fit_kriging, fit_residual_stack
from jointensor.predictors.tables import fit_tables, predict_by_others, refit_tables
from jointensor.search.families import FAMILIES, FitOptions
from jointensor.search.portfolio import KRIGING
from tests.search.searches import FakeClock

SIZES = (25, 20, 30)
AXES = ((1,), (2,))


def walk(sizes, axis, rng):
    """A process along one axis with a variance of 1, independent from fiber to fiber."""
    steps = np.moveaxis(rng.standard_normal(sizes), axis, 0)
    path = steps.copy()
    for t in range(1, sizes[axis]):
        path[t] = 0.9 * path[t - 1] + math.sqrt(0.19) * steps[t]
    return np.moveaxis(path, 0, axis)


@pytest.fixture(scope="module")
def entries():
    """Two thirds of the cells of effects of a mode and processes along two others, and the remaining cells."""
    rng = np.random.default_rng(0)
    dense = 3 * rng.standard_normal(SIZES[0])[:, None, None] + walk(SIZES, 1, rng) + 1.5 * walk(SIZES, 2, rng)
    cells = rng.permutation(np.argwhere(np.ones(SIZES)))
    modes = (Mode("user", SIZES[0]), Mode("week", SIZES[1], order="ordered"), Mode("day", SIZES[2], order="ordered"))
    tensor = SparseTensor(cells, dense[tuple(cells.T)], modes)
    return tensor.take(np.arange(10_000)), tensor.take(np.arange(10_000, len(tensor)))


def kriged(entries, steps=None):
    """Tables with kriging, with time for so many steps; and how often it was asked for time."""
    train, valid = entries
    asked = count()
    made = krige_tables(
        fit_tables(train, valid), fit_bias(train, valid), train, along=AXES,
        in_time=lambda: next(asked) < (math.inf if steps is None else steps),
    )  # fmt: skip
    return made, next(asked)


def test_predictions_by_others_are_those_of_tables_refitted_without_the_fold(entries):
    train, valid = entries
    tables, folds = fit_tables(train, valid), make_folds(train, (), 0)
    found = predict_by_others(tables, train, folds)
    for fold in range(FOLDS):
        out = folds == fold
        others = refit_tables(tables, train.take(np.flatnonzero(~out)))
        np.testing.assert_allclose(found[out], others.predict(train.indices[out]), rtol=1e-9, atol=1e-12)


def test_both_processes_are_found_and_predict_new_entries(entries):
    made, _ = kriged(entries)
    assert {model.axis.modes for model in made.residual_models} == set(AXES)
    _, valid = entries
    tables = made.members[0].fits[0]
    errors = [np.mean((valid.values - one.predict(valid.indices)) ** 2) for one in (made, tables)]
    assert errors[0] < 0.6 * errors[1]


def test_axes_that_a_sample_chooses_are_those_of_all_entries(entries, monkeypatch):
    train, _ = entries
    residuals = train.values - train.values.mean()
    every = fit_residual_stack(train, residuals, np.zeros(len(train), int), tables=False, along=AXES)
    for most in (len(train), 4000):
        monkeypatch.setattr("jointensor.predictors.residual_stack.MAX_JUDGED_ENTRIES", most)
        models = fit_kriging(train, residuals, along=AXES)
        assert [one.axis.modes for one in models] == [one.axis.modes for one in every.models]
        cells = train.indices[:500]
        for one, other in zip(models, every.models, strict=True):
            np.testing.assert_allclose(one.predict(cells), other.predict(cells), rtol=1e-5, atol=1e-6)


def test_with_less_time_there_are_fewer_axes(entries):
    whole, asked = kriged(entries)
    assert len(whole.residual_models) == 2
    for steps in range(asked):
        made, calls = kriged(entries, steps)
        kept = [model.axis.modes for model in made.residual_models]
        assert len(kept) == (0 if steps < 2 else 1)
        assert calls <= steps + 2  # once it says no, it is hardly asked again
        if steps == len(AXES) + 1:  # all were tried once: the best one is kept
            assert kept == [whole.residual_models[0].axis.modes]


def test_without_time_the_family_returns_tables(entries):
    train, valid = entries
    for options in (FitOptions(seconds=0.0, clock=FakeClock()), FitOptions(stopping=lambda: True, clock=FakeClock())):
        found = FAMILIES["kriging"].fit(KRIGING, train, valid, options)
        assert found.residual_models == ()
        expected = fit_tables(train, valid).predict(valid.indices)
        np.testing.assert_allclose(found.predict(valid.indices), np.clip(expected, found.low, found.high), rtol=1e-5)
        again = refit_kriged_tables(found, train)
        assert again.residual_models == ()
