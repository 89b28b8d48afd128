"""A search, and a default fit, on a tensor whose values the labels of some modes decide."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.evaluation.evaluate import calibrate_on
from jointensor.predictors import fit_baselines
from jointensor.predictors.conformal import SETTINGS as CONFORMAL
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.default_fit import default_fit
from jointensor.search.families import FitOptions
from jointensor.search.search import search
from tests.search.searches import BIAS, PLENTY, TABLES, is_inside, rmse

MODES = (Mode("paper", 40), Mode("author", 12), Mode("word", 30))
HOW = {"budget_fits": PLENTY, "device": "cpu", "candidates": (BIAS, TABLES)}


@pytest.fixture(scope="module")
def joined():
    """How often papers have words, listed for each of a paper's authors: entries to learn from, and the others."""
    rng = np.random.default_rng(0)
    counts = rng.normal(size=(40, 1)) + rng.normal(size=(1, 30)) + 0.5 * rng.normal(size=(40, 30))
    wrote = rng.random((40, 12)) < 0.25
    cells = np.argwhere(wrote[:, :, None] & (rng.random((40, 1, 30)) < 0.7))
    whole = SparseTensor(cells, counts[cells[:, 0], cells[:, 2]].astype(np.float32), MODES)
    order = rng.permutation(len(whole))
    half = 2 * len(whole) // 3
    return whole.take(np.sort(order[:half])), whole.take(np.sort(order[half:]))


def is_known(learnt, others):
    pairs = {(a, c) for a, _, c in learnt.indices.tolist()}
    return np.array([(a, c) in pairs for a, _, c in others.indices.tolist()])


def test_values_that_labels_decide_are_predicted_exactly(joined, tmp_path):
    learnt, others = joined
    result = search(learnt, **HOW)
    known = is_known(learnt, others)
    assert 0.3 < known.mean() < 0.95
    predicted = result.predictor.predict(others.indices)
    np.testing.assert_array_equal(predicted[known], others.values[known])
    assert (predicted[~known] != others.values[~known]).all()
    assert "paper and word decide the value" in result.reason
    save_predictor(result.predictor, tmp_path / "t")
    np.testing.assert_array_equal(load_predictor(tmp_path / "t").predict(others.indices), predicted)
    assert result.predictor.n_parameters() > len({(a, c) for a, _, c in learnt.indices.tolist()})


def test_candidates_are_scored_on_entries_that_nothing_else_gives(joined):
    """Their figures are those of new pairs; those of the whole predictor are of all entries."""
    learnt, others = joined
    result = search(learnt, **HOW)
    known, predicted = is_known(learnt, others), result.predictor.predict(others.indices)
    new = rmse(predicted[~known], others.values[~known])
    assert result.figures["all"] == pytest.approx(new, rel=0.25)
    assert np.isfinite(result.predicted).all()
    whole = rmse(result.predicted, learnt.values)
    assert whole == pytest.approx(rmse(predicted, others.values), rel=0.25)
    assert whole < 0.8 * result.figures["all"]


@pytest.mark.parametrize("held", [False, True])
def test_intervals_hold_their_share_of_all_and_most_of_those_that_are_new(joined, hold_out, held):
    if held:
        hold_out(0.2)
    learnt, others = joined
    inside = is_inside(search(learnt, **HOW).predictor, others, 0.9)
    known = is_known(learnt, others)
    assert known.mean() > 1 - 1 / CONFORMAL.max_miss_ratio
    assert inside[known].all()
    least = 1 - CONFORMAL.max_miss_ratio * 0.1
    assert least - 4 * np.sqrt(least * (1 - least) / (~known).sum()) < inside[~known].mean() < 0.9
    assert 0.88 < inside.mean() < 0.97


@pytest.mark.parametrize("seed", range(8))
def test_a_few_entries_are_searched_whatever_labels_decide(seed):
    rng = np.random.default_rng(seed)
    cells = rng.permutation(np.argwhere(np.ones((6, 8, 5))))[:90]
    values = rng.normal(size=(6, 5))[cells[:, 0], cells[:, 2]]
    result = search(SparseTensor(cells, values, (6, 8, 5)), **HOW)
    assert all(row["spread"] is None or np.isfinite(row["spread"]) for row in result.trials)
    assert np.isfinite(list(result.figures.values())).all()


def mixed(parts):
    """A default fit of the baselines alone."""
    return default_fit(parts, fit_baselines(parts), FitOptions(device="cpu"), candidates=())


def test_a_default_fit_looks_values_up(joined, tmp_path):
    learnt, others = joined
    parts = split(learnt, test=0.0, valid=0.2, seed=0)
    found = mixed(parts)
    known = is_known(learnt, others)
    predicted = found.predictor.predict(others.indices)
    np.testing.assert_array_equal(predicted[known], others.values[known])
    assert (predicted[~known] != others.values[~known]).all()
    assert "paper and word decide the value" in found.reason
    save_predictor(found.predictor, tmp_path / "t")
    np.testing.assert_array_equal(load_predictor(tmp_path / "t").predict(others.indices), predicted)
    only = parts.valid.take(np.flatnonzero(~is_known(parts.train, parts.valid)))  # known from validation entries alone
    assert 0 < len(only) < len(parts.valid)
    assert (found.validated.predict(only.indices) != only.values).all()
    np.testing.assert_array_equal(found.predictor.predict(only.indices), only.values)


def test_a_default_fit_compares_members_on_entries_that_nothing_else_gives(joined):
    parts = split(joined[0], test=0.0, valid=0.2, seed=0)
    new = parts.valid.take(np.flatnonzero(~is_known(parts.train, parts.valid)))
    baselines = fit_baselines(parts)
    for row in mixed(parts).trials:
        low, high = parts.train.values.min(), parts.train.values.max()
        assert row["rmse"] == pytest.approx(
            rmse(np.clip(baselines[row["name"]].predict(new.indices), low, high), new.values)
        )


def test_intervals_of_a_default_fit_hold_their_share(joined):
    learnt, others = joined
    parts = split(learnt, test=0.0, valid=0.2, seed=0)
    found = mixed(parts).validated
    calibration = calibrate_on(found, (parts.valid.indices, parts.valid.values), learnt.shape)
    inside = is_inside(replace(found, calibration=calibration), others, 0.9)
    known = is_known(parts.train, others)
    assert inside[known].all()
    least = 1 - CONFORMAL.max_miss_ratio * 0.1
    assert least - 4 * np.sqrt(least * (1 - least) / (~known).sum()) < inside[~known].mean() < 0.9
    chance = np.sqrt(0.09 * (1 / len(parts.valid) + 1 / len(others)))
    assert abs(inside.mean() - 0.9) < 4 * chance


def test_a_default_fit_uses_all_validation_entries_where_values_of_nearly_all_are_given(joined):
    learnt, _ = joined
    parts = split(learnt, test=0.0, valid=0.2, seed=0)
    given = parts.valid.take(np.flatnonzero(is_known(parts.train, parts.valid)))
    found = mixed(replace(parts, valid=given))
    assert found.predictor.dependency is None
    assert "decide the value" not in found.reason
