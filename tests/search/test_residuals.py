"""Residual models of a search: kriging, nearest neighbours, and what is affordable of them."""

import math

import numpy as np
import pytest

from jointensor.data.split import FOLDS, held_out
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.knn import KnnResiduals
from jointensor.predictors.kriging import Kriging
from jointensor.search.residuals import affordable_knn_modes, fit_residual_models, residual_plan
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS
from jointensor.search.stacking import stack
from tests.search.searches import BIAS, PLENTY, along_days, bench, is_inside, rmse

HOW = {"device": "cpu", "candidates": (BIAS,)}


def twins(entries, seed=0):
    """Shops of two that sell alike, in no order: what was seen, and other cells."""
    rng = np.random.default_rng(seed)
    dense = np.repeat(rng.standard_normal((15, 20, 25)), 2, axis=0) + 0.3 * rng.standard_normal((30, 20, 25))
    cells = rng.permutation(np.argwhere(np.ones(dense.shape)))
    whole = SparseTensor(cells, dense[tuple(cells.T)], dense.shape)
    return whole.take(np.arange(entries)), whole.take(np.arange(entries, len(cells)))


def test_nearest_neighbours_are_kept_where_untouched_entries_show_their_worth(hold_out):
    learnt, others = twins(9000)
    without = search(learnt, budget_fits=PLENTY, **HOW)
    assert not any(
        isinstance(part, KnnResiduals) for part in without.predictor.residual_models
    )  # nothing is held out of so few
    hold_out(0.1)
    found = search(learnt, budget_fits=PLENTY, **HOW)
    assert [type(part) for part in found.predictor.residual_models] == [KnnResiduals]
    assert "with knn:mode_0" in found.reason
    error = rmse(found.predictor.predict(others.indices), others.values)
    assert error < 0.85 * rmse(without.predictor.predict(others.indices), others.values)
    assert found.figures["all"] == pytest.approx(error, rel=0.05)
    assert 0.87 < is_inside(found.predictor, others, 0.9).mean() < 0.93


def test_nearest_neighbours_are_searched_where_there_is_time(hold_out):
    learnt, _ = twins(9000)
    assert affordable_knn_modes(bench(learnt).data, 9000, bench(learnt).budget) == []  # nothing would judge them
    hold_out(0.1)
    parts = bench(learnt, seconds=600.0)
    assert affordable_knn_modes(parts.data, 9000, parts.budget) == [0, 1, 2]
    assert affordable_knn_modes(parts.data, 50_000_000, parts.budget) == []
    parts.clock.now = 599.99
    assert affordable_knn_modes(parts.data, 9000, parts.budget) == []
    counted = bench(learnt, fits=1)  # only fits are counted
    assert affordable_knn_modes(counted.data, 50_000_000, counted.budget) == [0, 1, 2]


def test_kriging_is_over_all_entries_where_few_were_left_out(hold_out):
    """Of two fits one is to the first fold, one to all entries: residuals of the other entries are nearly as good."""
    hold_out(0.1)
    learnt, others = along_days(entries=5400)
    one, all_of_them = (search(learnt, budget_fits=fits, **HOW) for fits in (2, PLENTY))
    assert [row["folds"] for result in (one, all_of_them) for row in result.trials] == [1, FOLDS]
    errors = [rmse(result.predictor.predict(others.indices), others.values) for result in (one, all_of_them)]
    kept = (~held_out(learnt, (), 0)).sum()
    assert [len(result.predictor.residual_models[0].keys) for result in (one, all_of_them)] == [kept, kept]
    assert errors[0] < 1.03 * errors[1]
    assert np.isfinite(one.predicted).sum() == pytest.approx(kept / FOLDS, abs=1)
    inside = is_inside(one.predictor, others, 0.9).mean()
    assert abs(inside - 0.9) < 4 * math.sqrt(0.09 * (1 / len(others) + 1 / (0.1 * len(learnt))))


@pytest.mark.parametrize(("cost", "affordable"), [(140.0, True), (160.0, False)])
def test_members_predict_all_entries_only_where_there_is_time(hold_out, cost, affordable):
    """100 of 200 seconds have passed; a quarter more than the budget may be taken."""
    assert SETTINGS.overtime_share == 1.25
    hold_out(0.1)
    parts, results = bench(along_days(entries=5400)[0], seconds=200.0), {}
    parts.fitter.fit(results, [(BIAS, 0)])
    parts.clock.now = 100
    mix = stack(parts.data, results)
    plan = residual_plan(parts.data, mix, results, parts.budget, cost, short=False)
    assert plan.all_entries == affordable
    short = residual_plan(parts.data, mix, results, parts.budget, cost, short=True)
    assert not short.all_entries
    assert list(short.knn_modes) == []


def test_residual_models_are_fitted_while_seconds_remain():
    """Whatever is left of a number of fits: they are none."""
    learnt, _ = along_days()
    for seconds, now, some in ((60.0, 59.0, True), (60.0, 61.0, False), (None, 0.0, True)):
        parts, results = bench(learnt, seconds=seconds, fits=1), {}
        parts.fitter.fit(results, [(BIAS, 0)])
        parts.clock.now = now
        mix = stack(parts.data, results)
        plan = residual_plan(parts.data, mix, results, parts.budget, 0.0, short=False)
        bias = results[BIAS.name].fits[0]
        bare = Ensemble((Member(BIAS.name, 1.0, (bias,)),), (), bias, -99.0, 99.0)
        found = fit_residual_models(parts.data, mix, bare, plan)
        assert bool(found.models) == some
        assert (np.abs(found.residuals - (mix.truth - mix.mixed)).max() > 0) == some


def test_kriging_is_kept_where_it_helps():
    learnt, others = along_days()
    result = search(learnt, budget_fits=PLENTY, **HOW)
    assert [part.axis.modes for part in result.predictor.residual_models if isinstance(part, Kriging)] == [(2,)]
    assert ":day" in result.reason
    assert result.figures["all"] < 0.8 * result.figures["mix"]
    mixed = result.predictor.weighted_mean(others.indices)
    error = rmse(result.predictor.predict(others.indices), others.values)
    assert error < 0.8 * rmse(mixed, others.values)
    assert result.figures["all"] == pytest.approx(error, rel=0.06)  # 4 standard errors of an RMSE of 3,600 entries


def test_with_groups_neighbours_of_the_same_group_do_not_count():
    """New pairs have no neighbours along the days: those of the seen pairs are no help, and no figure."""
    learnt, others = along_days(entries=7200)
    pairs = np.random.default_rng(1).random((20, 15)) < 0.7
    seen = pairs[learnt.indices[:, 0], learnt.indices[:, 1]]
    learnt, others = learnt.take(np.flatnonzero(seen)), learnt.take(np.flatnonzero(~seen))
    result = search(learnt, budget_fits=PLENTY, groups=(0, 1), **HOW)
    error = rmse(result.predictor.predict(others.indices), others.values)
    assert result.figures["all"] == pytest.approx(error, rel=0.2)
    assert is_inside(result.predictor, others, 0.9).mean() > 0.8
