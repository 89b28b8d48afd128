"""The search behind ``--rank auto``: planted tensors, repeatability, interrupts, and resuming."""

import math
import time

import numpy as np
import pytest

from jointensor.data.split import FOLDS, make_folds
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.predictors import fit_bias
from jointensor.search.families import FAMILIES
from jointensor.search.portfolio import Candidate
from jointensor.search.search import search
from tests.search.searches import (
    BIAS,
    COMPONENTS,
    PLENTY,
    TABLES,
    TREES,
    FakeClock,
    additive,
    along_days,
    halves,
    is_inside,
    rmse,
)

FM = Candidate("mean+bias+fm:4", "gibbs", 3, linear="mean+bias+fm:4", stage="core", effort=2.0)


@pytest.fixture(scope="module")
def found(planted):
    """A whole search with all candidates, and its notes."""
    notes = []
    return search(planted[0], budget_fits=40, device="cpu", on_note=notes.append), notes


@pytest.fixture
def fits(monkeypatch):
    """Names of the candidates that were fitted, one by one; warm-ups are left out."""
    names = []
    monkeypatch.setattr("jointensor.search.cross_fit.warm_up", lambda *_: None)

    def counting(method):
        def counted(candidate, *args):
            names.append(candidate.name)
            return method(candidate, *args)

        return counted

    for family in FAMILIES.values():
        monkeypatch.setattr(family, "fit", counting(family.fit))
    return names


def same(first, second, cells):
    """Whether two searches ended with the same result, but for the seconds it took."""
    rows = [[row | {"seconds": None} for row in one.trials] for one in (first, second)]
    assert rows[0] == rows[1]
    assert first.reason == second.reason
    assert first.figures == second.figures
    assert (first.chosen, first.simplest, first.outcome) == (second.chosen, second.simplest, second.outcome)
    np.testing.assert_array_equal(first.predicted, second.predicted)
    np.testing.assert_array_equal(first.predictor.predict(cells), second.predictor.predict(cells))
    np.testing.assert_array_equal(first.predictor.interval(cells, 0.8), second.predictor.interval(cells, 0.8))
    return True


# --- planted tensors


def test_a_planted_interaction_is_found(found, planted):
    learnt, others = planted
    nothing = learnt.take(np.zeros(0, dtype=np.int64))
    error = rmse(found[0].predictor.predict(others.indices), others.values)
    assert error < 0.5 * rmse(fit_bias(learnt, nothing).predict(others.indices), others.values)
    # the noise is 0.3 of the values without it: nobody can be better than it
    floor = 0.3 / math.sqrt(1 + 0.3**2) * learnt.values.std()
    assert 0.9 * floor < error < 1.3 * floor


def test_figures_are_those_of_new_entries(found, planted):
    others = planted[1]
    error = rmse(found[0].predictor.predict(others.indices), others.values)
    assert found[0].figures["all"] == pytest.approx(error, rel=4 / math.sqrt(2 * len(others)))


def test_rows_reason_and_figures_fit_together(found, planted):
    result, notes = found
    known = np.isfinite(result.predicted)
    assert result.predicted.shape == (len(planted[0]),)
    assert result.figures["all"] == pytest.approx(rmse(result.predicted[known], planted[0].values[known]))
    assert all(math.isfinite(one) for one in result.figures.values())
    assert result.figures["mix"] <= result.figures["single"] * (1 + 1e-6)
    assert f"{result.figures['mix']:.4g}" in result.reason
    rows = {row["name"]: row for row in result.trials}
    assert sum(row["weight"] for row in result.trials) == pytest.approx(1.0)
    default, rest = result.predictor.members
    assert (default.name, rest.name) == ("default fit", "search")
    assert result.chosen == "+".join(["default fit", *(member.name for member in rest.fits[0].members)])
    assert result.simplest in rows
    for name, row in rows.items():
        assert math.isfinite(row["rmse"])
        assert row["seconds"] > 0
        assert 1 <= row["folds"] <= FOLDS
        assert any(note.startswith(f"{name}: RMSE") for note in notes)
        if row["weight"] and name != "default fit":
            assert row["rmse"] >= result.figures["single"] * (1 - 1e-6)
            assert 0 < row["gain"] <= 1
    weights = {member.name: rest.weight * member.weight for member in rest.fits[0].members}
    assert weights | {"default fit": default.weight} == pytest.approx(
        {name: row["weight"] for name, row in rows.items() if row["weight"]}
    )


def test_every_label_has_a_prediction_within_the_range(found, planted):
    asked = np.array([[-1, 0, 0], [0, -1, -1], [-1, -1, -1], [10**6, 3, 2], [3, 10**6, 10**6]])
    every = np.concatenate([asked, planted[1].indices, np.argwhere(np.ones((20, 18, 15)))])
    predictor, values = found[0].predictor, planted[0].values
    predicted, ends = predictor.predict(every), predictor.interval(every, 0.9)
    assert np.isfinite(predicted).all()
    assert values.min() <= predicted.min()
    assert predicted.max() <= values.max()
    assert np.isfinite(ends).all()
    assert (ends[:, 0] <= ends[:, 1]).all()
    assert predictor.unseen(asked).all()


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_their_share_of_new_entries(found, planted, level):
    inside = is_inside(found[0].predictor, planted[1], level).mean()
    spread = math.sqrt(level * (1 - level) * (1 / len(planted[1]) + 1 / len(planted[0])))
    assert abs(inside - level) < 4 * spread


def test_predictions_of_left_out_entries_are_those_of_fits_to_the_other_folds():
    tensor = additive()
    result = search(tensor, budget_fits=PLENTY, device="cpu", candidates=[BIAS])
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


def test_held_out_entries_calibrate_and_have_no_out_of_fold_prediction(planted, hold_out):
    from jointensor.data.split import held_out

    hold_out(0.2)
    learnt, others = planted
    result = search(learnt, budget_fits=PLENTY, device="cpu", candidates=[BIAS, COMPONENTS])
    known = np.isfinite(result.predicted)
    assert np.array_equal(known, ~held_out(learnt, (), 0))
    assert result.figures["all"] == pytest.approx(rmse(result.predicted[known], learnt.values[known]))
    inside = is_inside(result.predictor, others, 0.9).mean()
    assert abs(inside - 0.9) < 4 * math.sqrt(0.09 * (1 / len(others) + 1 / (~known).sum()))


def test_the_simplest_of_equals_is_named():
    """Tables of a tensor that is additive are biases with some noise: never far off, and less simple."""
    tensor, _ = make_joint((9, 8, 7), (1, 0), observed=400, seed=0)
    rng = np.random.default_rng(0)
    values = sum(rng.standard_normal(n)[tensor.indices[:, k]] for k, n in enumerate(tensor.shape))
    noisy = tensor.with_values(values + 0.1 * rng.standard_normal(400))
    result = search(noisy, budget_fits=PLENTY, device="cpu", candidates=[TABLES, BIAS])
    assert result.simplest == "bias"
    assert result.simplest in result.reason


def test_a_candidate_that_fails_is_reported_and_left_out(planted, monkeypatch):
    def fails(*_):
        raise RuntimeError("out of memory\nlong story")

    monkeypatch.setattr(FAMILIES["joint"], "fit", fails)
    notes = []
    candidates = [BIAS, COMPONENTS, TABLES]
    result = search(planted[0], budget_fits=PLENTY, device="cpu", candidates=candidates, on_note=notes.append)
    row = next(row for row in result.trials if row["name"] == "julia:2/0")
    assert row["failure"] == "out of memory"
    assert row["weight"] == 0
    assert "julia:2/0: failed, out of memory" in notes


# --- repeatability


def test_the_same_seed_gives_the_same_result_on_a_slow_machine_too(planted, monkeypatch):
    """A budget in fits: the clock of the second search, and of its fits, is far beyond any budget in seconds."""
    how = {"budget_fits": 20, "device": "cpu", "candidates": [BIAS, TABLES, TREES, FM, COMPONENTS]}
    first, other = search(planted[0], **how), search(planted[0], seed=1, **how)
    reading = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(reading)))
    slow = search(planted[0], clock=time.monotonic, **how)
    assert same(first, slow, planted[1].indices)
    assert max(row["seconds"] for row in slow.trials) >= 3600
    cells = planted[1].indices
    assert not np.array_equal(first.predictor.predict(cells), other.predictor.predict(cells))


@pytest.mark.parametrize("budget", [1, 3, 7, 12])
def test_no_more_fits_are_made_than_there_are(planted, fits, monkeypatch, budget):
    """Biases once, tables on five folds and on all entries need seven."""
    refits, real = [], FAMILIES["bias"].refit
    for name in ("bias", "tables"):
        monkeypatch.setattr(FAMILIES[name], "refit", lambda *args: refits.append(None) or real(*args))
    search(planted[0], budget_fits=budget, device="cpu", candidates=[BIAS, TABLES])
    assert min(budget, 7) - 2 < len(fits) + len(refits) <= budget


def test_seconds_that_have_passed_leave_the_first_candidate(planted):
    """By a clock that jumps beyond the budget once the search has begun."""
    readings = iter([0.0])
    result = search(
        planted[0], budget=60.0, device="cpu", candidates=[BIAS, TABLES, COMPONENTS], clock=lambda: next(readings, 61.0)
    )
    assert [row["name"] for row in result.trials] == ["bias"]
    assert [row["folds"] for row in result.trials] == [1]
    assert result.outcome == "budget"


def test_seconds_that_never_pass_try_everything(planted):
    result = search(planted[0], budget=60.0, device="cpu", candidates=[BIAS, TABLES, COMPONENTS], clock=FakeClock())
    assert [row["folds"] for row in result.trials if row["weight"]] == [FOLDS] * len(result.predictor.members)
    assert len(result.trials) == 3
    assert result.outcome == "converged"


def test_two_budgets_are_refused(planted):
    with pytest.raises(ConfigError, match="not both"):
        search(planted[0], budget=5.0, budget_fits=5)


# --- interrupts and resuming


@pytest.mark.parametrize("call", [1, 3, 4])
def test_a_request_to_stop_returns_the_best_so_far(planted, call):
    """The third note comes after the components' first fit, the fourth after a second fold."""
    heard = []
    result = search(
        planted[0], budget_fits=PLENTY, device="cpu", candidates=[BIAS, TABLES, COMPONENTS], on_note=heard.append,
        stopping=lambda: len(heard) >= call,
    )  # fmt: skip
    assert result.outcome == "interrupted"
    assert result.interrupted
    error = rmse(result.predictor.predict(planted[1].indices), planted[1].values)
    assert (error < 0.5 * planted[1].values.std()) == (call >= 3)
    assert 0 < np.isfinite(result.predicted).sum() < len(planted[0])
    assert np.isfinite(result.predictor.interval(planted[1].indices, 0.9)).all()


def test_a_request_to_stop_ends_the_fit_that_is_running(planted, fits):
    """It ends between its steps, and nothing of it is used; a search that was stopped at once still predicts."""
    asked = iter(range(10**6))
    result = search(
        planted[0], budget_fits=PLENTY, device="cpu", candidates=[COMPONENTS, BIAS], stopping=lambda: next(asked) > 2
    )
    assert fits == [COMPONENTS.name, BIAS.name]  # the second because there must be a predictor
    assert result.outcome == "interrupted"
    assert [member.name for member in result.predictor.members] == [BIAS.name]
    assert np.isfinite(result.predictor.predict(planted[1].indices)).all()


class Stopping:
    """Somebody who asks to stop at the first check after so many."""

    def __init__(self, after=10**6):
        self.checks, self.after = 0, after

    def __call__(self):
        self.checks += 1
        return self.checks > self.after


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("others", [COMPONENTS, TABLES])
def test_a_search_that_was_stopped_is_resumed_to_the_same_result(planted, fits, tmp_path, share, others):
    """Wherever it was stopped: while it screens, cross-fits, or refits; only the fit that was stopped is made twice."""
    learnt, asked = planted if others is COMPONENTS else along_days(entries=1500)
    how = {"budget_fits": 20, "device": "cpu", "candidates": [BIAS, TREES, others]}
    patient = Stopping()
    whole = search(learnt, stopping=patient, **how)
    made = len(fits)
    fits.clear()
    store = tmp_path / "fits"
    stopped = search(learnt, store=store, stopping=Stopping(after=int(share * patient.checks)), **how)
    assert stopped.interrupted
    assert stopped.outcome == "interrupted"
    assert np.isfinite(stopped.predictor.predict(asked.indices)).all()
    assert any(store.iterdir())
    resumed = search(learnt, store=store, **how)
    assert not resumed.interrupted
    assert same(whole, resumed, asked.indices)
    assert made <= len(fits) <= made + 1
    assert any(store.iterdir())  # whoever made the folder removes it


def test_a_damaged_fit_does_not_block_a_resume(planted, fits, tmp_path):
    how = {"budget_fits": 20, "device": "cpu", "candidates": [BIAS, TREES], "store": tmp_path / "fits"}
    whole = search(planted[0], **how)
    fits.clear()
    path = tmp_path / "fits" / "trees.1.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    notes = []
    again = search(planted[0], on_note=notes.append, **how)
    assert same(whole, again, planted[1].indices)
    assert fits == ["trees"]
    assert sum("Stored fit trees.1 cannot be used" in note for note in notes) == 1


# --- tensors of other kinds


def test_a_matrix_can_be_searched():
    tensor, _ = make_joint((30, 25), (2, 0), observed=600, noise=0.1, seed=2)
    learnt, others = halves(tensor, 500)
    result = search(learnt, budget_fits=24, device="cpu")
    assert result.predictor.shape == (30, 25)
    error = rmse(result.predictor.predict(others.indices), others.values)
    assert error < 0.7 * others.values.std()  # biases explain nothing of a product of centred factors


def test_a_constant_is_predicted_as_itself():
    cells = np.argwhere(np.ones((6, 5, 4)))
    result = search(SparseTensor(cells, np.full(len(cells), 2.5), (6, 5, 4)), budget_fits=12, device="cpu")
    assert (result.predictor.predict(cells) == 2.5).all()
    assert (result.predictor.interval(cells, 0.9) == 2.5).all()
    assert result.figures["all"] == 0
    assert all(row["rmse"] is None or math.isfinite(row["rmse"]) for row in result.trials)


def test_values_whose_squares_are_infinite_in_single_precision_can_be_searched(planted):
    learnt, others = (one.with_values(one.values * np.float32(1e25)) for one in planted)
    result = search(learnt, budget_fits=PLENTY, device="cpu", candidates=[BIAS, TABLES])
    assert 0 < result.figures["all"] <= result.figures["mix"] < 1e27
    assert np.isfinite(result.predictor.interval(others.indices, 0.9)).all()


def test_ten_entries_are_enough():
    tensor = additive((4, 3), 10)
    result = search(tensor, budget_fits=12, device="cpu")
    every = np.argwhere(np.ones((4, 3)))
    predicted = result.predictor.predict(every)
    assert np.isfinite(predicted).all()
    assert tensor.values.min() <= predicted.min() <= predicted.max() <= tensor.values.max()
    assert np.isfinite(result.predictor.interval(every, 0.9)).all()


def by_pair(sizes=(16, 14, 12), seed=0):
    """A number for every user and item, and noise; pairs are seen on all days or on none."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal(sizes[:2])[:, :, None] + 0.3 * rng.standard_normal(sizes)
    cells = np.argwhere(np.ones(sizes))
    seen = (rng.random(sizes[:2]) < 0.7)[cells[:, 0], cells[:, 1]]
    whole = SparseTensor(cells, dense[tuple(cells.T)], sizes)
    return whole.take(np.flatnonzero(seen)), whole.take(np.flatnonzero(~seen))


def test_with_groups_the_figures_are_those_of_new_groups():
    learnt, others = by_pair()
    how = {"budget_fits": PLENTY, "device": "cpu", "candidates": [BIAS, TABLES]}
    grouped, plain = (search(learnt, groups=g, **how) for g in ((0, 1), ()))
    error = rmse(grouped.predictor.predict(others.indices), others.values)
    assert grouped.figures["all"] == pytest.approx(error, rel=0.15)  # about 70 pairs that are new
    assert plain.figures["all"] < 0.6 * error
    assert is_inside(grouped.predictor, others, 0.9).mean() > 0.8
