"""The default fit in a search: when it is made, what weight it has, and what the figures and intervals are then."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import fit_baselines
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.budget import make_budget
from jointensor.search.default_fit import default_fit
from jointensor.search.default_member import DefaultFitter, DefaultMember, _share, mix
from jointensor.search.ensemble_selection import ErrorProducts
from jointensor.search.families import FAMILIES, FitOptions
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import Folds, fold_entries
from jointensor.search.portfolio import Candidate, default_candidates
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS
from tests.search.searches import BIAS, COMPONENTS, PLENTY, TABLES, FakeClock, additive, along_days, is_inside, rmse

CPU = FitOptions(device="cpu", engine="reference")


@pytest.fixture
def quick(monkeypatch):
    """The default fit is one of components and baselines; the rest of a search has biases and tables."""
    monkeypatch.setattr("jointensor.search.default_member.default_candidates", lambda *_: [COMPONENTS])
    monkeypatch.setattr("jointensor.search.search.candidates_for", lambda *_: [BIAS, TABLES])


def fitter_of(tensor, budget=None, groups=(), store=None, **more):
    """Entries in folds, and what makes default fits of them."""
    data = fold_entries(tensor, groups, 0)
    return data, DefaultFitter(data, budget or make_budget(None, PLENTY), CPU, FitStore(store, ""), **more)


def made(tensor, fits=PLENTY, store=None):
    """Entries in folds, and the default fit of a search of them."""
    data, fitter = fitter_of(tensor, make_budget(None, fits), store=store)
    return data, fitter.first()


def test_it_says_what_each_of_its_candidates_took():
    moments = itertools.count()  # a second passes whenever the clock is read
    _, fitter = fitter_of(
        along_days((8, 6, 12), 300)[0], make_budget(1e6, None, lambda: next(moments)), clock=lambda: next(moments)
    )
    member = fitter.first()
    fitted = {one.name for one in member.fits[0].members} - {"mean", "bias", "tables", "interp"}
    assert fitted
    assert fitted <= {one.name for one, _ in member.costs}
    assert all(seconds >= 1 for _, seconds in member.costs)


# --- which entries it learns from


@pytest.mark.parametrize("groups", [(), (0, 1)])
def test_it_is_validated_by_half_of_the_first_fold(groups):
    data = fold_entries(along_days()[0], groups, 0)
    parts, positions = data.default_split(seed=0)
    assert len(parts.train) + len(parts.valid) == len(data.tensor)
    assert (data.fold[positions] == 0).all()
    np.testing.assert_array_equal(data.tensor.indices[positions], parts.valid.indices)
    assert len(positions) == pytest.approx((data.fold == 0).sum() / 2, rel=0.2)
    own, others = ({tuple(row) for row in one.indices[:, groups or [0, 1, 2]]} for one in (parts.valid, parts.train))
    assert not own & others


def test_predictions_for_its_validation_entries_have_weights_of_the_others(quick, planted):
    """The mean of members by hand: no entry has a part in its own weights."""
    data, member = made(planted[0])
    parts, positions = data.default_split(CPU.seed)
    np.testing.assert_array_equal(positions, member.positions)
    entries, candidates = parts.valid, [COMPONENTS]
    validated = default_fit(parts, fit_baselines(parts), CPU, candidates=candidates).validated
    members = {one.name: one.predict(entries.indices).astype(np.float32) for one in validated.members}
    part = np.random.default_rng([0, 14]).permutation(len(entries)) % 5
    by_hand = np.empty(len(entries))
    for k in range(5):
        kept = {name: one[part != k] for name, one in members.items()}
        weights = ErrorProducts.of(kept, entries.values[part != k]).best_weights()
        by_hand[part == k] = sum(weight * members[name][part == k] for name, weight in weights.items())
    assert not validated.residual_models
    np.testing.assert_allclose(member.predictions, by_hand, rtol=1e-5, atol=1e-5)


# --- its weight


def mixture_of(default, rest, entries=2000, noise=1.0):
    """The mixture of two constants added to the truth, each with noise of its own."""
    rng = np.random.default_rng(1)
    tensor = additive((60, 50), entries)
    data = fold_entries(tensor, (), 0)
    _, positions = data.default_split(0)
    bias = fit_baselines(data.default_split(0)[0])["bias"]
    found = Ensemble((Member("bias", 1.0, (bias,)),), (), bias, -99.0, 99.0)

    def predicted(error, where):
        return (tensor.values[where] + error * rng.standard_normal(len(where))).astype(np.float32)

    member = DefaultMember((found,), positions, predicted(default, positions), 1.0)
    every = np.arange(len(tensor))
    return data, mix(data, member, found, (every, predicted(rest, every)))


def test_two_that_are_equally_good_have_half_of_the_weight_each():
    data, found = mixture_of(1.0, 1.05)
    assert found.share == 0.5
    truth = data.tensor.values[found.member.positions]
    assert rmse(found.left_out[1][np.isin(found.left_out[0], found.member.positions)], truth) < 0.85


@pytest.mark.parametrize(("errors", "share"), [((0.2, 1.0), 0.96), ((1.0, 0.2), 0.04)])
def test_one_that_is_clearly_better_has_its_share_by_the_inverse_variances(errors, share):
    _, found = mixture_of(*errors)
    assert found.share == pytest.approx(share, abs=0.05)


def test_half_of_the_weight_costs_little():
    """Large errors that both share hide which one is better: a mean that is worse by several percent is not taken."""
    halves = {9.0: 0, SETTINGS.max_even_mix_loss: 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n, truth = 400, np.zeros(400, dtype=np.float32)
        shared = 5 * rng.standard_normal(n)
        default, rest = shared + 0.3 * rng.standard_normal(n), shared + 1.8 * rng.standard_normal(n)
        for loss in halves:
            share = _share(default, rest, truth, replace(SETTINGS, max_even_mix_loss=loss))
            halves[loss] += share == 0.5
            if share == 0.5 and loss < 1:
                errors = [np.mean((w * default + (1 - w) * rest) ** 2) for w in (0.5, *np.linspace(0, 1, 31))]
                assert errors[0] <= (1 + loss + SETTINGS.chance_gain / n) * min(errors[1:]) + 1e-9
    assert halves[SETTINGS.max_even_mix_loss] < halves[9.0]


def test_one_that_knows_everything_is_alone():
    assert mixture_of(0.0, 1.0)[1].share == 1.0
    _, found = mixture_of(1.0, 0.0)
    assert found.share == 0.0
    assert found.own is None
    assert found.member is not None
    rest = found.member.fits[0]
    assert found.around(rest) is rest


def test_errors_of_the_rest_stand_for_those_of_the_mixture_only_where_they_are_as_large():
    data, found = mixture_of(0.2, 1.0)
    np.testing.assert_array_equal(found.left_out[0], found.member.positions)
    truth = data.tensor.values[found.member.positions]
    assert rmse(found.left_out[1], truth) == pytest.approx(0.2, rel=0.2)
    assert len(found.rest[0]) == len(data.tensor)
    few = mixture_of(0.2, 1.0, entries=400)[1]
    assert few.own is None  # forty would say little


# --- a search with it


def test_where_the_rest_is_far_behind_figures_and_intervals_are_those_of_the_default_fit(quick, planted):
    """Biases and tables cannot see the planted components; the default fit can."""
    learnt, others = planted
    notes = []
    found = search(learnt, budget_fits=PLENTY, device="cpu", on_note=notes.append)
    rows = {row["name"]: row for row in found.trials}
    assert rows["default fit"]["weight"] > 0.9
    error = rmse(found.predictor.predict(others.indices), others.values)
    known = np.isfinite(found.predicted)
    assert found.figures["all"] == pytest.approx(error, rel=4 / math.sqrt(2 * known.sum()))
    assert found.figures["all"] == pytest.approx(rmse(found.predicted[known], learnt.values[known]))
    assert error < 0.7 * found.figures["mix"]
    assert f"on the {known.sum():,} of them that it did not learn from either" in found.reason
    assert any(note.startswith("default fit: RMSE") for note in notes)
    for level in (0.5, 0.9):
        spread = math.sqrt(level * (1 - level) * (1 / len(others) + 1 / known.sum()))
        assert abs(is_inside(found.predictor, others, level).mean() - level) < 4 * spread


def test_untouched_entries_decide_the_weight_and_calibrate(quick, planted, hold_out):
    hold_out(0.2)
    learnt, others = planted
    found = search(learnt, budget_fits=PLENTY, device="cpu")
    assert found.trials[0]["name"] == "default fit"
    assert found.trials[0]["weight"] > 0.9
    spread = math.sqrt(0.09 * (1 / len(others) + 1 / (0.2 * len(learnt))))
    assert abs(is_inside(found.predictor, others, 0.9).mean() - 0.9) < 4 * spread


def test_a_default_fit_without_weight_is_a_row(quick, planted, monkeypatch):
    monkeypatch.setattr("jointensor.search.default_member._share", lambda *_: 0.0)
    found = search(planted[0], budget_fits=PLENTY, device="cpu")
    assert found.trials[0]["name"] == "default fit"
    assert found.trials[0]["weight"] == 0.0
    assert "default fit" not in found.chosen
    assert "default fit" not in found.reason
    assert [member.name for member in found.predictor.members] == found.chosen.split("+")


def test_it_is_only_made_where_nothing_says_what_to_choose_from(quick, planted):
    found = search(planted[0], budget_fits=PLENTY, device="cpu", candidates=[BIAS])
    assert [row["name"] for row in found.trials] == ["bias"]


# --- budgets


def smooth():
    """Paths along the days that interpolation predicts, and the candidates of the default fit do not."""
    return along_days((12, 10, 24), entries=1500)


@pytest.mark.parametrize("how", [{"budget_fits": 1}, {"budget": 60.0}])
def test_with_next_to_no_budget_the_result_is_that_of_baselines(how, monkeypatch):
    """One fit; or seconds that have passed when the search has begun."""
    monkeypatch.setattr("jointensor.search.default_member.default_candidates", lambda *_: [COMPONENTS, COMPONENTS])
    learnt, others = smooth()
    readings = iter([0.0])
    found = search(learnt, device="cpu", clock=lambda: next(readings, 61.0), **how)
    parts, _ = fold_entries(learnt, (), 0).default_split(0)
    baselines = {name: one.predict(others.indices) for name, one in fit_baselines(parts).items()}
    best = min(rmse(one, others.values) for one in baselines.values())
    assert rmse(found.predictor.predict(others.indices), others.values) < 1.02 * best


def test_it_is_as_good_as_the_default_fit_of_the_same_entries_if_that_takes_the_whole_budget(planted):
    learnt, others = planted
    data = fold_entries(learnt, (), 0)
    parts, _ = data.default_split(0)
    alone = default_fit(parts, fit_baselines(parts), CPU)
    found = search(
        learnt,
        budget_fits=round(sum(one.effort for one in default_candidates(parts.train))),
        device="cpu",
        engine="reference",
    )
    errors = [rmse(one.predict(others.indices), others.values) for one in (alone.predictor, found.predictor)]
    assert errors[1] < 1.005 * errors[0]


def test_its_candidates_are_made_as_far_as_a_budget_in_fits_lasts(planted, monkeypatch):
    offered = [Candidate(f"components {k}", "joint", 6, (2, 0), seed=k) for k in range(3)]
    monkeypatch.setattr("jointensor.search.default_member.default_candidates", lambda *_: offered)
    names, real = [], FAMILIES["joint"].fit
    monkeypatch.setattr(FAMILIES["joint"], "fit", lambda one, *rest: names.append(one.name) or real(one, *rest))
    made(planted[0], fits=2)
    assert names == ["components 0", "components 1"]


# --- repeats


def test_repeats_are_default_fits_validated_by_other_folds_and_their_mean_predicts(quick, planted):
    """Each fit by hand, from a split of its own."""
    learnt, others = planted
    data, fitter = fitter_of(learnt)
    member = fitter.repeated(replace(fitter.first(), error_over_bias=9.0))
    truth = []
    for fold in range(5):
        parts, positions = data.default_split(CPU.seed, fold)
        assert (data.fold[positions] == fold).all()
        options = replace(CPU, seed=CPU.seed + fold)
        alone = default_fit(parts, fit_baselines(parts), options, candidates=[COMPONENTS]).predictor
        truth.append(alone.predict(others.indices))
    np.testing.assert_allclose(member.as_member(1.0).predict(others.indices), np.mean(truth, axis=0), rtol=1e-5)
    assert len({one.tobytes() for one in truth}) == 5


@pytest.mark.parametrize(("fits", "made"), [(1, 1), (2, 2), (4, 4), (99, 5)])
def test_repeats_are_made_as_far_as_a_budget_in_fits_lasts(quick, planted, fits, made):
    _, fitter = fitter_of(planted[0], make_budget(None, fits))
    member = fitter.repeated(fitter.first())
    assert member.made == made
    assert fitter.budget.remaining() == fits - made
    assert fitter.repeated(member).fits == member.fits  # nothing is made twice


@pytest.mark.parametrize(("seconds", "made"), [(2.5, 1), (3.0, 2), (9.0, 5)])
def test_repeats_are_made_as_far_as_seconds_last(quick, planted, seconds, made):
    """A fit takes one second; a further one has to fit into what is left with a margin, and with the reserve."""
    clock = FakeClock()
    _, fitter = fitter_of(planted[0], make_budget(seconds, None, clock), clock=clock)
    member = replace(fitter.first(), seconds=1.0)
    clock.now = 1.0

    def pass_time(note):
        clock.now += note.startswith("default fit ")

    assert replace(fitter, on_note=pass_time).repeated(member).made == made


def test_repeats_that_are_far_off_are_left_out(quick, planted):
    """Beside a first fit that was a thousand times better, all of them are."""
    _, fitter = fitter_of(planted[0])
    first = fitter.first()
    notes = []
    member = replace(fitter, on_note=notes.append).repeated(replace(first, error_over_bias=first.error_over_bias / 1e6))
    assert member.fits == first.fits
    assert member.made == 5
    assert sum("far off" in note for note in notes) == 4


def test_a_search_that_is_stopped_in_its_last_repeats_says_so_and_goes_on(quick, planted, tmp_path, monkeypatch):
    monkeypatch.setattr("jointensor.search.search.is_sparse", lambda *_: True)
    how, notes = {"budget_fits": PLENTY, "device": "cpu"}, []

    def asked():
        return any("default fit 2 of 5" in note for note in notes)

    stopped = search(planted[0], store=tmp_path, on_note=notes.append, stopping=asked, **how)
    assert stopped.interrupted
    assert stopped.trials[0]["folds"] == 2
    resumed, whole = search(planted[0], store=tmp_path, **how), search(planted[0], **how)
    assert not resumed.interrupted
    cells = planted[1].indices
    np.testing.assert_array_equal(resumed.predictor.predict(cells), whole.predictor.predict(cells))


def test_dense_tensors_repeat_before_the_search_and_sparse_ones_after_it(quick, planted, monkeypatch):
    """With so few fits that only one of both can be made."""
    for sparse in (False, True):
        monkeypatch.setattr("jointensor.search.search.is_sparse", lambda *_, answer=sparse: answer)
        notes = []
        search(planted[0], budget_fits=3, device="cpu", on_note=notes.append)
        assert any("default fit 3 of 5" in note for note in notes) == (not sparse)


def test_so_few_entries_that_none_are_left_out_have_no_default_fit(monkeypatch):
    tensor = additive((4, 3), 10)
    nothing = np.zeros(0, dtype=np.int64)
    real = Folds.default_split
    monkeypatch.setattr(Folds, "default_split", lambda *given: (real(*given)[0], nothing))
    assert made(tensor)[1] is None


# --- stopping, storing, updating


def test_it_is_stored_once_it_is_finished_and_loaded_by_a_resumed_search(planted, tmp_path, monkeypatch):
    monkeypatch.setattr("jointensor.search.default_member.default_candidates", lambda *_: [COMPONENTS])
    names, real = [], FAMILIES["joint"].fit
    monkeypatch.setattr(FAMILIES["joint"], "fit", lambda one, *rest: names.append(one.name) or real(one, *rest))
    first, again = (made(planted[0], store=tmp_path)[1] for _ in range(2))
    assert names == [COMPONENTS.name]
    np.testing.assert_array_equal(first.predictions, again.predictions)
    np.testing.assert_array_equal(first.positions, again.positions)


@pytest.mark.parametrize("after", [3, 40, 60])
def test_a_search_that_was_stopped_in_or_after_it_is_resumed_to_the_same_result(quick, planted, tmp_path, after):
    how = {"budget_fits": 30, "device": "cpu"}
    whole = search(planted[0], **how)
    asked = iter(range(10**6))
    stopped = search(planted[0], store=tmp_path, stopping=lambda: next(asked) >= after, **how)
    assert stopped.interrupted
    assert np.isfinite(stopped.predictor.predict(planted[1].indices)).all()
    resumed = search(planted[0], store=tmp_path, **how)
    assert resumed.reason == whole.reason
    assert [row | {"seconds": 0} for row in resumed.trials] == [row | {"seconds": 0} for row in whole.trials]
    cells = planted[1].indices
    np.testing.assert_array_equal(resumed.predictor.predict(cells), whole.predictor.predict(cells))
    np.testing.assert_array_equal(resumed.predictor.interval(cells, 0.8), whole.predictor.interval(cells, 0.8))


def test_the_same_number_of_fits_gives_the_same_result_whatever_the_clock(quick, planted):
    how = {"budget_fits": 12, "device": "cpu"}
    readings = iter(range(0, 10**9, 3600))
    first, slow = search(planted[0], **how), search(planted[0], clock=lambda: float(next(readings)), **how)
    cells = planted[1].indices
    np.testing.assert_array_equal(first.predictor.predict(cells), slow.predictor.predict(cells))
    assert first.reason == slow.reason


def nested(learnt):
    """A search with two ensembles as members, one of them with models of residuals."""
    found = search(learnt, budget_fits=PLENTY, device="cpu")
    inner = [fit for member in found.predictor.members for fit in member.fits]
    assert {type(one) for one in inner} == {Ensemble}
    assert len(found.predictor.members) == 2
    assert any(one.residual_models for one in inner)
    return found.predictor


def test_an_ensemble_of_ensembles_is_stored_and_loaded(quick, tmp_path):
    learnt, others = along_days()
    predictor = nested(learnt)
    save_predictor(predictor, tmp_path / "model.safetensors")
    loaded = load_predictor(tmp_path / "model.safetensors")
    cells = others.indices
    np.testing.assert_array_equal(loaded.predict(cells), predictor.predict(cells))
    np.testing.assert_array_equal(loaded.interval(cells, 0.8), predictor.interval(cells, 0.8))
    assert loaded.explain() == predictor.explain()
    assert loaded.n_parameters() == predictor.n_parameters()
    assert (loaded.model is None) == (predictor.model is None)


def test_an_ensemble_of_ensembles_learns_new_labels(quick):
    tensor, _ = make_joint((24, 18, 15), (2, 0), observed=4000, noise=0.1, seed=2)
    known = tensor.indices[:, 0] < 20
    learnt = SparseTensor(tensor.indices[known], tensor.values[known], (20, 18, 15))
    new = tensor.take(np.flatnonzero(~known))
    fresh, others = new.take(np.arange(0, len(new), 2)), new.take(np.arange(1, len(new), 2))
    predictor = search(learnt, budget_fits=PLENTY, device="cpu").predictor
    assert predictor.members[0].name == "default fit"
    larger = predictor.with_entries(fresh)
    assert larger.shape == tensor.shape
    assert not larger.unseen(others.indices).any()
    lost, gained = (rmse(one.predict(others.indices), others.values) for one in (predictor, larger))
    assert gained < 0.5 * lost
    np.testing.assert_array_equal(larger.predict(learnt.indices), predictor.predict(learnt.indices))
