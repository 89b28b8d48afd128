"""The search behind ``--rank auto``: weights, folds, and answers for planted tensors."""

import math
import time

import numpy as np
import pytest

from jointensor.data.split import FOLDS, held_out, make_folds
from jointensor.data.split import folds as parting
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.predictors import fit_bias
from jointensor.predictors.kriging import Kriging
from jointensor.search import cross_validation as trials
from jointensor.search.finalise import _cold
from jointensor.search.portfolio import Candidate, candidates_for
from jointensor.search.search import Search, search
from tests.search.searches import BIAS, COMPONENTS, LONG, TABLES, along_days, halves, rmse


@pytest.fixture(scope="module")
def found(planted):
    """A whole search with all candidates; also what it said, and the seconds it took."""
    notes, begin = [], time.monotonic()
    result = search(planted[0], budget=60.0, device="cpu", on_note=notes.append)
    return result, notes, time.monotonic() - begin


@pytest.fixture
def fits(monkeypatch):
    """Names of the candidates that were fitted, one by one."""
    names, real = [], trials.fit_candidate

    def counted(candidate, *args, **kwargs):
        names.append(candidate.name)
        return real(candidate, *args, **kwargs)

    monkeypatch.setattr(trials, "fit_candidate", counted)
    return names


def additive(sizes=(30, 20), entries=500, seed=0):
    """Biases and noise over two modes: nothing for a memory to keep, neither orders nor tables."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:entries]
    values = sum(rng.standard_normal(size)[cells[:, n]] for n, size in enumerate(sizes))
    return SparseTensor(cells, values + 0.3 * rng.standard_normal(entries), sizes)


# --- folds


def test_folds_are_fifths():
    tensor = additive(entries=503)
    folds = make_folds(tensor, (), 0)
    assert sorted(np.bincount(folds).tolist()) == [100, 100, 101, 101, 101]
    assert np.array_equal(folds, make_folds(tensor, (), 0))
    assert not np.array_equal(folds, make_folds(tensor, (), 1))


def test_entries_of_a_group_share_their_fold(planted):
    tensor = planted[0]
    for groups in ((0,), (0, 2)):
        folds = make_folds(tensor, groups, 0)
        assert set(folds.tolist()) == set(range(FOLDS))
        of = {}
        for row, fold in zip(tensor.indices[:, groups].tolist(), folds.tolist(), strict=True):
            assert of.setdefault(tuple(row), fold) == fold


def test_nothing_is_held_out_of_small_tensors(planted):
    assert not held_out(planted[0], (), 0).any()


def test_a_share_of_large_tensors_is_held_out_and_groups_stay_together(planted, monkeypatch):
    tensor = planted[0]
    monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
    monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.25)
    assert abs(held_out(tensor, (), 0).sum() - 600) < 4 * math.sqrt(2400 * 0.25 * 0.75)
    away = held_out(tensor, (0, 1), 0)
    assert away.any()
    assert not {tuple(row) for row in tensor.indices[~away, :2].tolist()} & {
        tuple(row) for row in tensor.indices[away, :2].tolist()
    }
    monkeypatch.setattr(parting, "MAX_CALIBRATION_ENTRIES", 48)
    assert held_out(tensor, (), 0).sum() < 48 + 4 * math.sqrt(48)


def test_cold_entries_are_those_with_a_label_of_their_fold_alone():
    tensor = additive((60, 50), 90)
    search = Search(tensor, device="cpu")
    cold = _cold(search, tensor, search.folds)
    for row, fold, said in zip(tensor.indices, search.folds, cold, strict=True):
        others = tensor.indices[search.folds != fold]
        assert said == any(label not in others[:, n] for n, label in enumerate(row))
    assert 0 < cold.sum() < len(cold)


# --- candidates


@pytest.mark.parametrize("shape", [(5, 4), (6, 5, 4), (4, 4, 4, 4)])
def test_candidates_have_names_of_their_own(shape):
    tensor, _ = make_joint(shape, (1, 0), observed=15, seed=0)
    offered = candidates_for(tensor)
    assert len({one.slug for one in offered}) == len({one.name for one in offered}) == len(offered)
    assert all(one.after is None or one.after in {other.name for other in offered} for one in offered)
    assert {one.kind for one in offered if one.core} == {"bias", "tables", "trees", "drawn", "joint"}


# --- the search


def test_a_planted_interaction_is_found(found, planted):
    learnt, others = planted
    nothing = learnt.take(np.zeros(0, dtype=np.int64))
    error = rmse(found[0].predictor.predict(others.indices), others.values)
    assert error < 0.5 * rmse(fit_bias(learnt, nothing).predict(others.indices), others.values)
    # the noise is 0.3 of the values without it: nobody can be better than it
    floor = 0.3 / math.sqrt(1 + 0.3**2) * learnt.values.std()
    assert 0.9 * floor < error < 1.3 * floor


def test_what_was_measured_is_what_new_entries_show(found, planted):
    others = planted[1]
    error = rmse(found[0].predictor.predict(others.indices), others.values)
    assert found[0].figures["all"] == pytest.approx(error, rel=4 / math.sqrt(2 * len(others)))


def test_rows_reason_and_figures_fit_together(found, planted):
    result, notes, _ = found
    known = np.isfinite(result.predicted)
    assert result.predicted.shape == (len(planted[0]),)
    assert result.figures["all"] == pytest.approx(rmse(result.predicted[known], planted[0].values[known]))
    assert all(math.isfinite(one) for one in result.figures.values())
    assert result.figures["mix"] <= result.figures["single"] * (1 + 1e-6)
    assert f"{result.figures['mix']:.4g}" in result.reason
    rows = {row["name"]: row for row in result.trials}
    assert sum(row["weight"] for row in result.trials) == pytest.approx(1.0)
    assert result.chosen == "+".join(member.name for member in result.predictor.members)
    assert result.simplest in rows
    for name, row in rows.items():
        assert math.isfinite(row["rmse"])
        assert row["seconds"] > 0
        assert 1 <= row["folds"] <= FOLDS
        assert any(note.startswith(f"{name}: RMSE") for note in notes)
        if row["weight"]:
            assert row["rmse"] >= result.figures["single"] * (1 - 1e-6)
    assert {member.name: member.weight for member in result.predictor.members} == {
        name: row["weight"] for name, row in rows.items() if row["weight"]
    }


def test_the_budget_is_kept(found):
    assert found[2] < 1.1 * 60.0 + 20
    assert found[0].outcome in ("converged", "budget")


def test_every_label_has_an_answer_within_the_range(found, planted):
    asked = np.array([[-1, 0, 0], [0, -1, -1], [-1, -1, -1], [10**6, 3, 2], [3, 10**6, 10**6]])
    every = np.concatenate([asked, planted[1].indices, np.argwhere(np.ones((20, 18, 15)))])
    predictor, values = found[0].predictor, planted[0].values
    said, ends = predictor.predict(every), predictor.interval(every, 0.9)
    assert np.isfinite(said).all()
    assert values.min() <= said.min()
    assert said.max() <= values.max()
    assert np.isfinite(ends).all()
    assert (ends[:, 0] <= ends[:, 1]).all()
    assert predictor.unseen(asked).all()


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_their_share_of_new_entries(found, planted, level):
    ends = found[0].predictor.interval(planted[1].indices, level)
    inside = np.mean((planted[1].values >= ends[:, 0]) & (planted[1].values <= ends[:, 1]))
    spread = math.sqrt(level * (1 - level) * (1 / len(planted[1]) + 1 / len(planted[0])))
    assert abs(inside - level) < 4 * spread


def test_answers_of_left_out_entries_lie_where_the_entries_do(offer):
    offer(BIAS)
    tensor = additive()
    result = search(tensor, budget=LONG, device="cpu")
    folds = make_folds(tensor, (), 0)
    by_hand = np.empty(len(tensor))
    for fold in range(FOLDS):
        out = folds == fold
        parts = [tensor.take(np.flatnonzero(which)) for which in (~out, out)]
        by_hand[out] = fit_bias(*parts).predict(tensor.indices[out])
    by_hand = np.clip(by_hand, tensor.values.min(), tensor.values.max())
    np.testing.assert_allclose(result.predicted, by_hand, rtol=1e-5, atol=1e-6)
    (row,) = result.trials
    assert row["rmse"] == pytest.approx(rmse(by_hand, tensor.values), rel=1e-5)
    each = [rmse(by_hand[folds == fold], tensor.values[folds == fold]) for fold in range(FOLDS)]
    assert row["spread"] == pytest.approx(np.std(each), rel=1e-4)
    assert result.chosen == result.simplest == "bias"
    assert result.figures == pytest.approx(dict.fromkeys(("single", "mix", "all"), row["rmse"]))


def test_the_same_seed_gives_the_same_answer(offer, planted):
    offer(BIAS, TABLES, COMPONENTS)
    first, again, other = (search(planted[0], budget=LONG, device="cpu", seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.predicted, again.predicted, equal_nan=True)
    assert first.chosen == again.chosen
    cells = planted[1].indices
    assert np.array_equal(first.predictor.predict(cells), again.predictor.predict(cells))
    assert np.array_equal(first.predictor.interval(cells, 0.8), again.predictor.interval(cells, 0.8))
    assert not np.array_equal(first.predictor.predict(cells), other.predictor.predict(cells))


@pytest.mark.parametrize("call", [1, 3, 4])
def test_an_interrupt_returns_the_best_so_far(offer, planted, call):
    """The third note comes after the components' first fit, the fourth after a second fold."""
    offer(BIAS, TABLES, COMPONENTS)
    heard = []

    def impatient(note):
        heard.append(note)
        if len(heard) == call:
            raise KeyboardInterrupt

    result = search(planted[0], budget=LONG, device="cpu", on_note=impatient)
    assert result.outcome == "interrupted"
    error = rmse(result.predictor.predict(planted[1].indices), planted[1].values)
    assert (error < 0.5 * planted[1].values.std()) == (call >= 3)
    assert 0 < np.isfinite(result.predicted).sum() < len(planted[0])
    assert np.isfinite(result.predictor.interval(planted[1].indices, 0.9)).all()


def test_an_interrupt_during_the_first_fit_still_answers(offer, planted, monkeypatch):
    offer(BIAS, TABLES)
    real, calls = trials.fit_candidate, []

    def interrupted_once(*args, **kwargs):
        calls.append(None)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(trials, "fit_candidate", interrupted_once)
    result = search(planted[0], budget=LONG, device="cpu")
    assert result.outcome == "interrupted"
    assert np.isfinite(result.predictor.predict(planted[1].indices)).all()


def test_a_search_goes_on_from_its_store(offer, fits, planted, tmp_path):
    offer(BIAS, TABLES, COMPONENTS)
    how = {"budget": LONG, "device": "cpu", "store": tmp_path / "auto"}
    first = search(planted[0], **how)
    before = len(fits)
    again = search(planted[0], **how)
    assert before > FOLDS
    assert set(fits[before:]) <= {"bias"}  # one fit to all entries, where the biases have a weight
    assert np.array_equal(first.predicted, again.predicted, equal_nan=True)
    cells = planted[1].indices
    np.testing.assert_array_equal(first.predictor.predict(cells), again.predictor.predict(cells))
    np.testing.assert_array_equal(first.predictor.interval(cells, 0.9), again.predictor.interval(cells, 0.9))


def test_a_candidate_that_fails_is_told_and_left_out(offer, planted):
    broken = Candidate("broken", "joint", 5, (2, 0), linear="mean+cp:2", changes={}, nonlinear="julia", core=True)
    offer(BIAS, broken, TABLES)
    real = trials.fit_candidate

    def fails(candidate, *args, **kwargs):
        if candidate.name == "broken":
            raise RuntimeError("out of memory\nlong story")
        return real(candidate, *args, **kwargs)

    notes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "fit_candidate", fails)
        result = search(planted[0], budget=LONG, device="cpu", on_note=notes.append)
    row = next(row for row in result.trials if row["name"] == "broken")
    assert row["failure"] == "out of memory"
    assert row["weight"] == 0
    assert "broken: failed, out of memory" in notes


@pytest.mark.parametrize(("linear", "hopeless"), [("mean", True), ("mean+bias+cp:2", False)])
def test_another_of_a_kind_is_tried_early_where_the_first_is_out_of_the_race(offer, linear, hopeless):
    first = Candidate("first", "joint", 5, linear=linear, core=True)
    second = Candidate("second", "joint", 6, linear="mean+bias+cp:2", second=True)
    offer(BIAS, first, second)
    notes: list[str] = []
    search = Search(additive((60, 50), 2500), budget=LONG, device="cpu", on_note=notes.append)
    search._screen_core()
    search._screen_second()
    assert ("second" in search.trials) == hopeless
    search._screen_networks()
    assert any(note.startswith("second, shortly") for note in notes) == (not hopeless)
    assert "second" in search.trials


def test_the_simplest_of_equals_is_named(offer):
    """Tables of a tensor that is additive are biases with some noise: never far off, and less simple."""
    tensor, _ = make_joint((9, 8, 7), (1, 0), observed=400, seed=0)
    rng = np.random.default_rng(0)
    values = sum(rng.standard_normal(n)[tensor.indices[:, k]] for k, n in enumerate(tensor.shape))
    offer(TABLES, BIAS)
    result = search(tensor.with_values(values + 0.1 * rng.standard_normal(400)), budget=LONG, device="cpu")
    assert result.simplest == "bias"
    assert result.simplest in result.reason


# --- tensors of other kinds


def test_a_matrix_can_be_searched():
    tensor, _ = make_joint((30, 25), (2, 0), observed=600, noise=0.1, seed=2)
    learnt, others = halves(tensor, 500)
    result = search(learnt, budget=5.0, device="cpu")
    assert result.predictor.shape == (30, 25)
    error = rmse(result.predictor.predict(others.indices), others.values)
    assert error < 0.7 * others.values.std()  # biases explain nothing of a product of centred factors


def test_a_constant_is_answered_by_itself():
    cells = np.argwhere(np.ones((6, 5, 4)))
    result = search(SparseTensor(cells, np.full(len(cells), 2.5), (6, 5, 4)), budget=5.0, device="cpu")
    assert (result.predictor.predict(cells) == 2.5).all()
    assert (result.predictor.interval(cells, 0.9) == 2.5).all()
    assert result.figures["all"] == 0
    assert all(row["rmse"] is None or math.isfinite(row["rmse"]) for row in result.trials)


def test_values_whose_squares_are_infinite_in_single_precision_can_be_searched(offer, planted):
    offer(BIAS, TABLES)
    learnt, others = (one.with_values(one.values * np.float32(1e25)) for one in planted)
    result = search(learnt, budget=LONG, device="cpu")
    assert 0 < result.figures["all"] <= result.figures["mix"] < 1e27
    assert np.isfinite(result.predictor.interval(others.indices, 0.9)).all()


def test_ten_entries_are_enough_and_nine_are_not():
    tensor = additive((4, 3), 10)
    result = search(tensor, budget=5.0, device="cpu")
    every = np.argwhere(np.ones((4, 3)))
    said = result.predictor.predict(every)
    assert np.isfinite(said).all()
    assert tensor.values.min() <= said.min() <= said.max() <= tensor.values.max()
    assert np.isfinite(result.predictor.interval(every, 0.9)).all()
    with pytest.raises(ConfigError, match="at least 10 entries"):
        search(tensor.take(np.arange(9)))


def test_what_neighbours_know_is_kept(offer):
    offer(BIAS)
    learnt, others = along_days()
    result = search(learnt, budget=LONG, device="cpu")
    assert [part.mode for part in result.predictor.residual_models if isinstance(part, Kriging)] == [2]
    assert "local:day" in result.reason
    assert result.figures["all"] < 0.8 * result.figures["mix"]
    mixed = result.predictor.weighted_mean(others.indices)
    error = rmse(result.predictor.predict(others.indices), others.values)
    assert error < 0.8 * rmse(mixed, others.values)
    assert result.figures["all"] == pytest.approx(error, rel=0.06)  # 4 standard errors of an RMSE of 3,600 entries


# --- groups


def by_pair(sizes=(16, 14, 12), seed=0):
    """A number for every user and item, and noise; pairs are seen on all days or on none."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal(sizes[:2])[:, :, None] + 0.3 * rng.standard_normal(sizes)
    cells = np.argwhere(np.ones(sizes))
    seen = (rng.random(sizes[:2]) < 0.7)[cells[:, 0], cells[:, 1]]
    whole = SparseTensor(cells, dense[tuple(cells.T)], sizes)
    return whole.take(np.flatnonzero(seen)), whole.take(np.flatnonzero(~seen))


def test_with_groups_the_figures_are_those_of_new_groups(offer):
    offer(BIAS, TABLES)
    learnt, others = by_pair()
    grouped, plain = (search(learnt, budget=LONG, device="cpu", groups=g) for g in ((0, 1), ()))
    error = rmse(grouped.predictor.predict(others.indices), others.values)
    assert grouped.figures["all"] == pytest.approx(error, rel=0.15)  # about 70 pairs that are new
    assert plain.figures["all"] < 0.6 * error
    ends = grouped.predictor.interval(others.indices, 0.9)
    assert np.mean((others.values >= ends[:, 0]) & (others.values <= ends[:, 1])) > 0.8


def test_with_groups_neighbours_of_the_same_group_do_not_count(offer):
    """New pairs have no neighbours along the days: what those of the seen pairs know is no help, and no figure."""
    offer(BIAS)
    learnt, others = along_days(entries=7200)
    pairs = np.random.default_rng(1).random((20, 15)) < 0.7
    seen = pairs[learnt.indices[:, 0], learnt.indices[:, 1]]
    learnt, others = learnt.take(np.flatnonzero(seen)), learnt.take(np.flatnonzero(~seen))
    result = search(learnt, budget=LONG, device="cpu", groups=(0, 1))
    error = rmse(result.predictor.predict(others.indices), others.values)
    assert result.figures["all"] == pytest.approx(error, rel=0.2)
    ends = result.predictor.interval(others.indices, 0.9)
    assert np.mean((others.values >= ends[:, 0]) & (others.values <= ends[:, 1])) > 0.8
