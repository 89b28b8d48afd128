"""The fits that predict in the end: to all entries, averaged, or those of the folds."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from jointensor.data.split import FOLDS, held_out
from jointensor.errors import MemoryFullError
from jointensor.models.joint import cp_rank
from jointensor.predictors import fit_trees
from jointensor.search.families import FAMILIES, FitOptions
from jointensor.search.interruption import StopRequested
from jointensor.search.portfolio import Candidate
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS
from tests.search.searches import BIAS, COMPONENTS, PLENTY, TREES, along_days, rmse


def n_trees(trees):
    return len(trees.roots)


def n_seen(trees):
    """Entries that trees learnt from."""
    return trees.encoders[0].counts.sum()


def test_trees_predict_by_fits_to_all_entries(planted, monkeypatch):
    """With as many trees as the folds had on average: no entries are left to choose the number by."""
    counts, real = [], FAMILIES["trees"].fit

    def counted(*args):
        found = real(*args)
        counts.append(n_trees(found))
        return found

    monkeypatch.setattr(FAMILIES["trees"], "fit", counted)
    monkeypatch.setattr("jointensor.search.cross_fit.warm_up", lambda *_: None)
    learnt, others = planted
    result = search(learnt, budget_fits=PLENTY, device="cpu", seed=3, candidates=[TREES])
    counts = counts[:FOLDS]  # the others are fits to all entries
    assert len(set(counts)) > 1
    (member,) = result.predictor.members
    assert len(member.fits) == SETTINGS.trees_averaged
    predicted = []
    for k, trees in enumerate(member.fits):
        assert n_trees(trees) == round(np.mean(counts))
        assert n_seen(trees) == len(learnt)
        again = fit_trees(learnt, learnt.take(np.arange(0)), seed=3 + k, rounds=n_trees(trees))
        predicted.append(again.predict(others.indices))
        np.testing.assert_array_equal(trees.predict(others.indices), predicted[k])
    np.testing.assert_allclose(member.predict(others.indices), np.mean(predicted, axis=0), rtol=1e-12)
    assert rmse(member.predict(others.indices), others.values) < np.mean([rmse(o, others.values) for o in predicted])


@pytest.mark.parametrize(("fits", "parts", "seen"), [(1, 1, 0.8), (FOLDS + 1, 1, 1.0), (FOLDS + 3, 3, 1.0)])
def test_trees_are_refitted_and_averaged_as_far_as_the_budget_lasts(planted, fits, parts, seen):
    """One fit is to the first fold, and predicts; five folds leave one for all entries, or three."""
    (member,) = search(planted[0], budget_fits=fits, device="cpu", candidates=[TREES]).predictor.members
    assert [n_seen(part) for part in member.fits] == [seen * len(planted[0])] * parts


def test_trees_that_calibrate_stay_beside_those_that_learn_from_all_entries(planted, hold_out):
    hold_out(0.1)
    learnt = planted[0]
    (member,) = search(learnt, budget_fits=PLENTY, device="cpu", candidates=[TREES]).predictor.members
    kept = (~held_out(learnt, (), 0)).sum()
    assert [n_seen(part) for part in member.fits] == [kept] + [len(learnt)] * (SETTINGS.trees_averaged - 1)


@pytest.mark.parametrize(("fits", "scored", "averaged"), [(1, 1, 1), (4, 3, 4), (PLENTY, FOLDS, FOLDS)])
def test_networks_are_averaged_over_further_folds_while_the_budget_lasts(planted, fits, scored, averaged):
    """Four fits are enough for three folds that score, and a further one that is only averaged."""
    learnt, others = planted
    result = search(learnt, budget_fits=fits, device="cpu", candidates=[COMPONENTS])
    (member,) = result.predictor.members
    assert len(member.fits) == averaged
    assert np.isfinite(result.predicted).sum() == pytest.approx(scored * len(learnt) / FOLDS, abs=FOLDS)
    mean = np.mean([part.predict(others.indices) for part in member.fits], axis=0)
    assert result.predictor.weighted_mean(others.indices) == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("way", ["memory", "numbers", "far off"])
def test_a_further_fold_that_fails_is_left_out(planted, monkeypatch, way):
    real, calls, notes = FAMILIES["joint"].fit, [], []
    monkeypatch.setattr("jointensor.search.cross_fit.warm_up", lambda *_: None)

    def failing(*args):
        calls.append(None)
        if len(calls) < 4:
            return real(*args)
        if way == "memory":
            raise MemoryFullError("the memory of cuda is full")
        found = real(*args)
        with torch.no_grad():
            for parameter in found.model.parameters():
                parameter.mul_(math.nan if way == "numbers" else 10.0)
        return found

    monkeypatch.setattr(FAMILIES["joint"], "fit", failing)
    result = search(planted[0], budget_fits=4, device="cpu", candidates=[COMPONENTS], on_note=notes.append)
    assert len(calls) == 4
    assert len(result.predictor.members[0].fits) == 3
    assert sum("further f" in note for note in notes) == 1


def test_a_refit_that_fails_leaves_the_folds_fits(planted, monkeypatch):
    notes = []

    def failing(*_):
        raise MemoryFullError("the memory of cuda is full")

    monkeypatch.setattr(FAMILIES["bias"], "refit", failing)
    result = search(planted[0], budget_fits=PLENTY, device="cpu", candidates=[BIAS], on_note=notes.append)
    assert len(result.predictor.members[0].fits) == FOLDS
    assert "bias: the fit to all entries failed (the memory of cuda is full); using the folds' fits" in notes


# --- interrupts


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_of_refits_keeps_those_that_have_finished(planted, monkeypatch, call):
    """They are not made again, and those that are missing are not waited for."""
    real, calls = FAMILIES["trees"].refit, []

    def interrupted_once(candidate, fits, tensor, options):
        calls.append(options.seed)
        if len(calls) == call:
            raise StopRequested
        return real(candidate, fits, tensor, options)

    monkeypatch.setattr(FAMILIES["trees"], "refit", interrupted_once)
    result = search(planted[0], budget_fits=PLENTY, device="cpu", candidates=[TREES])
    assert result.outcome == "interrupted"
    assert result.interrupted
    assert len(calls) == call
    assert all(later == earlier + 1 for earlier, later in pairwise(calls))
    (member,) = result.predictor.members
    assert len(member.fits) == (FOLDS if call == 1 else call - 1)
    assert all((n_seen(part) == len(planted[0])) == (call > 1) for part in member.fits)
    assert rmse(result.predictor.predict(planted[1].indices), planted[1].values) < planted[1].values.std()


def test_an_interrupt_of_further_folds_keeps_the_residual_models(hold_out, monkeypatch):
    hold_out(0.1)
    learnt, _ = along_days(entries=5400)
    real, calls = FAMILIES["joint"].fit, []
    monkeypatch.setattr("jointensor.search.cross_fit.warm_up", lambda *_: None)

    def interrupted_fourth(*args):
        calls.append(None)
        if len(calls) == 4:
            raise StopRequested
        return real(*args)

    monkeypatch.setattr(FAMILIES["joint"], "fit", interrupted_fourth)
    result = search(learnt, budget_fits=4, device="cpu", candidates=[COMPONENTS])
    assert result.interrupted
    assert len(result.predictor.members[0].fits) == 3
    assert (
        len(result.predictor.residual_models[0].keys) == (~held_out(learnt, (), 0)).sum()
    )  # all of them were predicted


def test_an_exact_fit_to_all_entries_is_the_mean_of_the_solutions_of_all_folds(monkeypatch):
    monkeypatch.setattr("jointensor.search.families.MAX_RANK", 4)
    tensor, options = along_days()[0], FitOptions(device="cpu", engine="reference")
    family, candidate = FAMILIES["exact"], Candidate("cp", "exact", 2, (2, 0))
    halves = [tensor.take(np.arange(first, len(tensor), 2)) for first in (0, 1)]
    fits = [family.fit(candidate, one, other, options) for one, other in (halves, halves[::-1])]
    found = family.refit(candidate, fits, tensor, options)
    assert cp_rank(found.model) == sum(cp_rank(one.model) for one in fits)
    assert not found.unseen(tensor.indices).any()
    errors = [rmse(one.predict(tensor.indices), tensor.values) for one in (found, *fits)]
    assert errors[0] < min(errors[1:])
