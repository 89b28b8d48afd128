"""What a search comes to: entries that calibrate, trees, interrupts, and time that runs out."""

import math
import time

import numpy as np
import pytest
import torch

from jointensor.data.split import FOLDS, held_out
from jointensor.data.split import folds as parting
from jointensor.data.tensor import SparseTensor
from jointensor.errors import MemoryFullError
from jointensor.predictors import Tables, fit_trees
from jointensor.predictors.knn import KnnResiduals
from jointensor.search import cross_validation as trials
from jointensor.search import finalise as conclusion
from jointensor.search import refit as refits
from jointensor.search.finalise import finalise
from jointensor.search.portfolio import TREES_AVERAGED, Candidate
from jointensor.search.search import Search, search
from tests.search.searches import BIAS, COMPONENTS, LONG, along_days, rmse

# --- entries that only calibrate


def test_entries_that_are_held_out_calibrate_and_have_no_answer(offer, planted, monkeypatch):
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.2)
    offer(BIAS, COMPONENTS)
    learnt, others = planted
    result = search(learnt, budget=LONG, device="cpu")
    assert len(result.predicted) == len(learnt)
    known = np.isfinite(result.predicted)
    assert np.array_equal(known, ~held_out(learnt, (), 0))
    assert result.figures["all"] == pytest.approx(rmse(result.predicted[known], learnt.values[known]))
    ends = result.predictor.interval(others.indices, 0.9)
    inside = np.mean((others.values >= ends[:, 0]) & (others.values <= ends[:, 1]))
    assert abs(inside - 0.9) < 4 * math.sqrt(0.09 * (1 / len(others) + 1 / (~known).sum()))


def twins(entries, seed=0):
    """Shops of two that sell alike, in no order: what was seen, and other cells."""
    rng = np.random.default_rng(seed)
    dense = np.repeat(rng.standard_normal((15, 20, 25)), 2, axis=0) + 0.3 * rng.standard_normal((30, 20, 25))
    cells = rng.permutation(np.argwhere(np.ones(dense.shape)))
    whole = SparseTensor(cells, dense[tuple(cells.T)], dense.shape)
    return whole.take(np.arange(entries)), whole.take(np.arange(entries, len(cells)))


def test_partners_tell_of_new_entries_where_untouched_ones_say_so(offer, monkeypatch):
    offer(BIAS)
    learnt, others = twins(9000)
    without = search(learnt, budget=LONG, device="cpu")
    assert not any(
        isinstance(part, KnnResiduals) for part in without.predictor.residual_models
    )  # nothing is held out of so few
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.1)
    found = search(learnt, budget=LONG, device="cpu")
    assert [type(part) for part in found.predictor.residual_models] == [KnnResiduals]
    assert "with knn:mode_0" in found.reason
    error = rmse(found.predictor.predict(others.indices), others.values)
    assert error < 0.85 * rmse(without.predictor.predict(others.indices), others.values)
    assert found.figures["all"] == pytest.approx(error, rel=0.05)
    ends = found.predictor.interval(others.indices, 0.9)
    assert 0.87 < np.mean((others.values >= ends[:, 0]) & (others.values <= ends[:, 1])) < 0.93


def test_partners_are_looked_for_where_there_is_time_and_new_groups_can_have_some(offer):
    offer(BIAS)
    learnt, _ = twins(9000)
    search = Search(learnt, budget=LONG, device="cpu")
    assert search.beside(len(learnt)) == [0, 1, 2]
    assert search.beside(50_000_000) == []
    assert Search(learnt, budget=0.01, device="cpu").beside(len(learnt)) == []
    # entries of a fiber along another mode are of the same group
    assert Search(learnt, budget=LONG, device="cpu", groups=(0, 2)).beside(len(learnt)) == [0, 2]


def test_neighbours_are_all_entries_where_few_were_left_out(offer, monkeypatch):
    """A search that had time for one fold only: residuals of the other entries are known too, nearly as good."""
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.1)
    offer(BIAS)
    learnt, others = along_days(entries=5400)

    def after(folds):
        search = Search(learnt, budget=LONG, device="cpu")
        trial = trials.Trial(BIAS)
        for fold in range(folds):
            search.fit_all([(trial, fold)])
        return finalise(search)

    one, all_of_them = after(1), after(FOLDS)
    errors = [rmse(result.predictor.predict(others.indices), others.values) for result in (one, all_of_them)]
    kept = (~held_out(learnt, (), 0)).sum()
    assert [len(result.predictor.residual_models[0].keys) for result in (one, all_of_them)] == [kept, kept]
    assert errors[0] < 1.03 * errors[1]
    assert np.isfinite(one.predicted).sum() == pytest.approx(kept / FOLDS, abs=1)
    ends = one.predictor.interval(others.indices, 0.9)
    inside = np.mean((others.values >= ends[:, 0]) & (others.values <= ends[:, 1]))
    assert abs(inside - 0.9) < 4 * math.sqrt(0.09 * (1 / len(others) + 1 / (0.1 * len(learnt))))


# --- trees


def test_trees_of_a_search_answer_by_fits_to_all_entries(offer, planted, monkeypatch):
    """With as many of them as the folds had on average: no entries are left to count them by."""
    offer(Candidate("trees", "trees", 5, core=True))
    counts, real = [], trials.fit_candidate

    def counted(*args, **kwargs):
        fitted = real(*args, **kwargs)
        counts.append(len(fitted.part.roots))
        return fitted

    monkeypatch.setattr(trials, "fit_candidate", counted)
    learnt, others = planted
    result = search(learnt, budget=LONG, device="cpu", seed=3)
    assert len(counts) == FOLDS
    assert len(set(counts)) > 1
    (member,) = result.predictor.members
    assert len(member.fits) == TREES_AVERAGED
    said = []
    for k, trees in enumerate(member.fits):
        assert len(trees.roots) == round(np.mean(counts))
        assert all(one.counts.sum() == len(learnt) for one in trees.encoders)
        again = fit_trees(learnt, learnt.take(np.arange(0)), seed=3 + k, rounds=len(trees.roots))
        said.append(again.predict(others.indices))
        np.testing.assert_array_equal(trees.predict(others.indices), said[k])
    np.testing.assert_allclose(member.predict(others.indices), np.mean(said, axis=0), rtol=1e-12)
    assert rmse(member.predict(others.indices), others.values) < np.mean([rmse(one, others.values) for one in said])


def test_trees_are_grown_once_where_there_is_no_time(offer, planted):
    """Every further sum of trees is left out that the budget does not last for; the first one is there."""
    offer(Candidate("trees", "trees", 5, core=True))
    search = Search(planted[0], budget=LONG, device="cpu")
    trial = trials.Trial(search.offered[0])
    search.fit_all([(trial, fold) for fold in range(FOLDS)])
    search.budget = 0.0
    (member,) = finalise(search).predictor.members
    assert [id(part) for part in member.fits] == [id(one.part) for one in trial.fits.values()]


def test_trees_that_calibrate_go_on_answering_beside_those_that_know_all_entries(offer, planted, monkeypatch):
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.1)
    offer(Candidate("trees", "trees", 5, core=True))
    learnt = planted[0]
    (member,) = search(learnt, budget=LONG, device="cpu").predictor.members
    kept = (~held_out(learnt, (), 0)).sum()
    known = [part.encoders[0].counts.sum() for part in member.fits]
    assert known == [kept] + [len(learnt)] * (TREES_AVERAGED - 1)


# --- interrupts and time


TREES = Candidate("trees", "trees", 5, core=True)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_while_a_search_concludes_keeps_what_is_fitted(offer, planted, monkeypatch, call):
    """Fits to all entries that were made before are not made again, and those that are missing are not waited for."""
    offer(TREES)
    real, calls = refits.refit_candidate, []

    def interrupted_once(*args, **kwargs):
        calls.append(kwargs["seed"])
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(refits, "refit_candidate", interrupted_once)
    result = search(planted[0], budget=LONG, device="cpu")
    assert result.outcome == "interrupted"
    assert len(calls) == call
    (member,) = result.predictor.members
    assert len(member.fits) == (FOLDS if call == 1 else call - 1)
    known = [part.encoders[0].counts.sum() for part in member.fits]
    assert all((count == len(planted[0])) == (call > 1) for count in known)
    assert rmse(result.predictor.predict(planted[1].indices), planted[1].values) < planted[1].values.std()


def test_a_second_interrupt_ends_the_search(offer, planted, monkeypatch):
    offer(BIAS)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(conclusion, "calibrate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(planted[0], budget=LONG, device="cpu")


@pytest.mark.parametrize(("left", "fits"), [(LONG, FOLDS), (0.0, 1)], ids=["time", "no time"])
def test_networks_are_averaged_over_the_folds_that_were_not_needed(offer, planted, monkeypatch, left, fits):
    offer(COMPONENTS)
    learnt, others = planted
    search = Search(learnt, budget=LONG, device="cpu")
    search.fit_all([(trials.Trial(COMPONENTS), 0)])
    monkeypatch.setattr(search, "left_here", lambda share=1.0: left)
    result = finalise(search)
    (member,) = result.predictor.members
    assert len(member.fits) == fits
    assert np.isfinite(result.predicted).sum() == (search.folds == 0).sum()  # the others judge nothing
    mean = np.mean([part.predict(others.indices) for part in member.fits], axis=0)
    assert result.predictor.weighted_mean(others.indices) == pytest.approx(search.clip(mean), abs=1e-5)


def test_an_interrupt_of_further_folds_keeps_those_that_are_there_and_what_neighbours_know(offer, monkeypatch):
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.1)
    offer(COMPONENTS)
    learnt, _ = along_days(entries=5400)
    search = Search(learnt, budget=LONG, device="cpu")
    search.fit_all([(trials.Trial(COMPONENTS), 0)])
    real = trials.fit_candidate

    def interrupted_third(*args, **kwargs):
        if len(search.refitted) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(trials, "fit_candidate", interrupted_third)
    result = finalise(search)
    assert result.outcome == "interrupted"
    assert len(result.predictor.members[0].fits) == 3
    assert len(result.predictor.residual_models[0].keys) == len(search.tensor)  # all of them were asked


@pytest.mark.parametrize("way", ["memory", "numbers", "far off"])
def test_a_further_fold_that_fails_is_left_out(offer, planted, monkeypatch, way):
    offer(COMPONENTS)
    search = Search(planted[0], budget=LONG, device="cpu")
    search.fit_all([(trials.Trial(COMPONENTS), 0)])
    real, seen = trials.fit_candidate, []
    monkeypatch.setattr(search, "on_note", seen.append)

    def failing(*args, **kwargs):
        if way == "memory":
            raise MemoryFullError("the memory of cuda is full")
        found = real(*args, **kwargs)
        with torch.no_grad():
            for parameter in found.part.model.parameters():
                parameter.mul_(math.nan if way == "numbers" else 10.0)
        return found

    monkeypatch.setattr(trials, "fit_candidate", failing)
    result = finalise(search)
    assert len(result.predictor.members[0].fits) == 1
    assert sum("further fold" in note for note in seen) == FOLDS - 1


def test_a_member_whose_folds_were_cut_off_is_not_lost(offer, planted):
    """One that is much better has the first fold only: it is judged by that one. An equal one is not waited for."""
    offer(BIAS)
    search = Search(planted[0], budget=LONG, device="cpu")
    search.fit_all([(trials.Trial(COMPONENTS), 0)])
    search.fit_all([(trial, fold) for trial in [trials.Trial(BIAS)] for fold in range(FOLDS)])
    assert conclusion._folds_that_judge(search) == [0]
    assert list(search.errors().among(["bias", "julia:2/0"]).best_weights()) == ["julia:2/0"]
    search.trials["julia:2/0"].predicted[0] = search.trials["bias"].predicted[0]
    assert conclusion._folds_that_judge(search) == list(range(FOLDS))


@pytest.mark.parametrize("slow", [False, True])
def test_members_answer_for_all_entries_only_where_there_is_time(offer, monkeypatch, slow):
    """How long a fold's entries took says how long all of them would; a first answer, which compiles, says nothing."""
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.1)
    offer(BIAS)
    learnt, _ = along_days(entries=5400)
    search = Search(learnt, budget=LONG, device="cpu")
    real, asked = Tables.predict, []

    def predict(tables, indices):
        asked.append(len(indices))
        time.sleep({1: 1.0, 2: 0.1}.get(len(asked), 0))
        return real(tables, indices)

    monkeypatch.setattr(Tables, "predict", predict)
    search.fit_all([(trials.Trial(BIAS), 0)])
    assert 0.5 <= search.asking(["bias"], 1) < 5
    assert search.asking(["bias"], FOLDS) == 0
    if slow:
        monkeypatch.setattr(search, "left_here", lambda share=1.0: 0.4 * share)
    result = finalise(search)
    kept = (~held_out(learnt, (), 0)).sum()
    assert (kept in asked) != slow
    assert (len(result.predictor.residual_models[0].keys) == kept) != slow


def test_nothing_is_asked_of_all_entries_where_no_mode_has_an_order(offer, planted, monkeypatch):
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.1)
    offer(BIAS)
    search = Search(planted[0], budget=LONG, device="cpu")
    search.fit_all([(trials.Trial(BIAS), 0)])
    assert search.trials["bias"].asked > 0
    assert search.asking(["bias"], 1) == 0
