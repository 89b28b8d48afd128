"""New labels for a fitted model: what was known stays, and little is lost against fitting everything again."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from jointensor.data.modes import UNSEEN, Mode
from jointensor.data.split import Split
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor, join
from jointensor.errors import ConfigError
from jointensor.evaluation.evaluate import calibrate_on
from jointensor.models.joint import JointModel
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

SHAPE, KNOWN = (24, 20, 16), (20, 18, 16)
DRAWN = {"linear_solver": "gibbs", "burn_in": 20, "draws": 20, "thin": 1, "restarts": 0}
NEW = np.array([[23, 3, 3], [2, 19, 5], [22, 18, 0]])


def rmse(predictor, tensor):
    return float(np.sqrt(np.mean((predictor.predict(tensor.indices) - tensor.values) ** 2)))


def cut(tensor):
    """Entries with known labels only, and the others in two halves: to learn from, and to judge by."""
    old = (tensor.indices < np.array(KNOWN)).all(axis=1)
    rest = tensor.take(np.random.default_rng(0).permutation(np.flatnonzero(~old)))
    half = len(rest) // 2
    known = SparseTensor(tensor.indices[old], tensor.values[old], KNOWN)
    return known, rest.take(np.arange(half)), rest.take(np.arange(half, len(rest)))


def fitted(tensor, rank, linear, **changes):
    order = np.random.default_rng(3).permutation(len(tensor))
    held = len(tensor) // 10
    parts = Split(tensor.take(order[held:]), tensor.take(order[:held]), tensor.take(order[:0]))
    recipe = make_recipe("default", fall_back=False, **changes)
    found = fit(JointModel(tensor.shape, rank, linear=linear), parts, recipe, seed=0, device="cpu")
    valid = parts.valid.indices, parts.valid.values
    return replace(found.predictor, calibration=calibrate_on(found.predictor, valid, tensor.shape))


def squares(rows):
    return (rows[:, 0] * rows[:, 1]).sum(axis=1) ** 2 + rows[:, 2].sum(axis=1)


def components():
    return make_joint(SHAPE, (2, 0), observed=4000, noise=0.2, seed=0)[0]


def joint():
    return make_joint(SHAPE, (2, 2), squares, observed=5000, ratio=0.5, noise=0.1, seed=0)[0]


def shared_pairs():
    """A factorisation machine, and a table over the last two modes."""
    rng = np.random.default_rng(0)
    cells = rng.permutation(np.argwhere(np.ones(SHAPE)))[:5000]
    rows = np.stack([rng.standard_normal((size, 2))[cells[:, n]] for n, size in enumerate(SHAPE)])
    pairs = sum((rows[n] * rows[m]).sum(axis=1) for n, m in ((0, 1), (0, 2), (1, 2)))
    table = 0.5 * rng.standard_normal(SHAPE[1:])[cells[:, 1], cells[:, 2]]
    return SparseTensor(cells, pairs + table + 0.2 * rng.standard_normal(len(cells)), SHAPE)


CASES = {
    "components": (components, (2, 0), "mean+bias+cp:2", {}),
    "components without biases": (components, (2, 0), "cp:2", {}),
    "joint": (joint, (2, 8), "mean+bias+cp:2", {}),
    "drawn components": (components, (0, 0), "mean+bias+cp:2", DRAWN),
    "drawn pairs": (shared_pairs, (0, 0), "mean+bias+fm:4", DRAWN),
    "drawn pairs and tables": (shared_pairs, (0, 0), "mean+bias+tables+fm:4", DRAWN),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A fitted model, what it knows, what is added, what judges, the model with it, and a fit to everything."""
    make, rank, linear, changes = CASES[request.param]
    known, fresh, others = cut(make())
    predictor = fitted(known, rank, linear, **changes)
    again = fitted(join(SparseTensor(known.indices, known.values, SHAPE), fresh), rank, linear, **changes)
    return predictor, known, fresh, others, predictor.with_entries(fresh), again


@pytest.fixture(scope="module")
def simple():
    known, fresh, others = cut(components())
    return fitted(known, (2, 0), "mean+bias+cp:2"), known, fresh, others


def test_answers_for_known_labels_stay_bit_for_bit(case):
    predictor, _, _, _, updated, _ = case
    every = np.argwhere(np.ones(KNOWN))
    assert np.array_equal(predictor.predict(every), updated.predict(every))
    odd = np.array([[UNSEEN, 3, 3], [UNSEEN, UNSEEN, UNSEEN], [3, 10**6, 2]])
    assert np.array_equal(predictor.predict(odd), updated.predict(odd))


def test_most_of_the_gap_to_a_whole_fit_is_closed(case):
    predictor, _, _, others, updated, again = case
    before, after, best = rmse(predictor, others), rmse(updated, others), rmse(again, others)
    assert best < 0.7 * before  # else there is no gap to close
    assert before - after > 0.9 * (before - best)


def test_new_labels_are_seen_afterwards(case):
    predictor, _, fresh, _, updated, _ = case
    assert updated.shape == updated.model.shape == SHAPE
    assert predictor.unseen(NEW).all()
    assert not updated.unseen(fresh.indices).any()
    assert not updated.model.training


def test_the_given_predictor_is_left_as_it_is(case):
    predictor, _, fresh, _, _, _ = case
    before = copy.deepcopy(predictor.model.state_dict())
    tables = copy.deepcopy(predictor.fallback)
    predictor.with_entries(fresh)
    after = predictor.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert predictor.shape == KNOWN
    for one, other in zip(tables.tables, predictor.fallback.tables, strict=True):
        assert np.array_equal(one.effects, other.effects)


def test_an_updated_model_can_be_saved(case, tmp_path):
    _, _, _, others, updated, _ = case
    save_predictor(updated, tmp_path / "model.safetensors")
    loaded = load_predictor(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.predict(others.indices), updated.predict(others.indices))
    assert np.array_equal(loaded.interval(others.indices, 0.9), updated.interval(others.indices, 0.9))


def test_intervals_cover_new_labels(case):
    _, _, _, others, updated, _ = case
    ends = updated.interval(others.indices, 0.9)
    assert np.isfinite(ends).all()
    assert (ends[:, 0] <= ends[:, 1]).all()


def test_entries_without_new_labels_change_nothing(case):
    predictor, known, _, others, _, _ = case
    again = predictor.with_entries(known.take(np.arange(50)))
    assert again.shape == KNOWN
    every = np.argwhere(np.ones(KNOWN))
    assert np.array_equal(predictor.predict(every), again.predict(every))
    assert np.array_equal(predictor.predict(others.indices), again.predict(others.indices))


def test_the_order_of_new_entries_does_not_matter(simple):
    predictor, _, fresh, others = simple
    turned = fresh.take(np.arange(len(fresh))[::-1])
    one, other = (predictor.with_entries(some).predict(others.indices) for some in (fresh, turned))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_more_entries_of_a_new_label_make_it_better(simple):
    predictor, _, fresh, others = simple
    errors = [rmse(predictor.with_entries(fresh.take(np.arange(n))), others) for n in (30, 120, len(fresh))]
    assert errors[0] > errors[1] > errors[2]


def test_a_new_label_without_entries_is_answered_as_an_unseen_one(simple):
    predictor, _, fresh, _ = simple
    some = fresh.take(np.flatnonzero(fresh.indices[:, 0] != 23))
    updated = predictor.with_entries(some)
    assert updated.unseen(np.array([[23, 0, 0]])).all()
    assert np.array_equal(updated.predict(np.array([[23, 4, 5]])), updated.predict(np.array([[UNSEEN, 4, 5]])))


def test_one_update_may_follow_another(simple):
    predictor, _, fresh, others = simple
    users = fresh.take(np.flatnonzero(fresh.indices[:, 1] < KNOWN[1]))
    first = predictor.with_entries(SparseTensor(users.indices, users.values, (24, 18, 16)))
    second = first.with_entries(fresh.take(np.flatnonzero(fresh.indices[:, 1] >= KNOWN[1])))
    cells = users.indices
    assert np.array_equal(first.predict(cells), second.predict(cells))
    assert rmse(second, others) < 0.5 * rmse(predictor, others)


@pytest.mark.parametrize("factor", [1e-20, 1e25])
def test_values_of_any_size_can_be_added(factor):
    """Their squares are zero, or infinite, in single precision."""
    known, fresh, others = (one.with_values(one.values * np.float32(factor)) for one in cut(joint()))
    predictor = fitted(known, (2, 8), "mean+bias+cp:2", refine_epochs=1)
    said = predictor.with_entries(fresh).predict(others.indices)
    assert np.isfinite(said).all()
    assert np.std(said / factor - others.values / factor) < np.std(others.values / factor)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_one_entry_of_a_new_label_says_as_much_in_any_unit(factor):
    known, fresh, _ = (one.with_values(one.values * np.float32(factor)) for one in cut(joint()))
    predictor = fitted(known, (0, 8), "mean+bias", refine_epochs=3)
    one = fresh.take(np.flatnonzero(fresh.indices[:, 0] >= KNOWN[0])[:1])
    before, after = (p.predict(one.indices) - one.values for p in (predictor, predictor.with_entries(one)))
    assert abs(after[0]) < 0.5 * abs(before[0])


def test_labels_cannot_be_taken_away(simple):
    predictor, known, _, _ = simple
    some = known.indices[:, 0] < 5
    with pytest.raises(ConfigError, match="cannot be taken away"):
        predictor.with_entries(SparseTensor(known.indices[some], known.values[some], (5, *KNOWN[1:])))


def test_implicit_labels_cannot_be_updated():
    known, fresh, _ = cut(shared_pairs())
    linear = "mean+bias+fm:2+implicit:0/1+implicit:1/0"
    predictor = fitted(known, (0, 0), linear, **DRAWN | {"burn_in": 2, "draws": 2})
    with pytest.raises(ConfigError, match="implicit"):
        predictor.with_entries(fresh)


def test_where_biases_answer_they_learn_new_labels(simple):
    """A label whose values are all higher by three: its bias is shrunk, not more."""
    predictor, known, _, _ = simple
    lone = replace(predictor, returned="bias")
    cells = known.indices[known.indices[:, 0] == 4]
    expected = lone.predict(np.where(np.arange(3) == 0, UNSEEN, cells))
    cells = np.where(np.arange(3) == 0, 20, cells)
    updated = lone.with_entries(SparseTensor(cells, expected + 3, (21, *KNOWN[1:])))
    np.testing.assert_allclose(updated.predict(cells) - expected, 3 * len(cells) / (len(cells) + 10), rtol=1e-4)


def test_an_ensemble_is_updated_member_by_member(simple, tmp_path):
    predictor, known, fresh, others = simple
    low, high = float(known.values.min()), float(known.values.max())
    noise = np.random.default_rng(0).standard_normal(len(known))
    memory = replace(Kriging.of(known.indices, noise, known.modes, (2,)), near=0.5, length=2.0)
    both = (Member("joint", 0.75, (predictor, predictor)), Member("bias", 0.25, (predictor.fallback,)))
    ensemble = Ensemble(both, (memory,), predictor.fallback, low, high, predictor.calibration)
    updated = ensemble.with_entries(fresh)
    every = np.argwhere(np.ones(KNOWN))
    assert updated.shape == SHAPE
    assert ensemble.shape == KNOWN
    assert np.array_equal(ensemble.predict(every), updated.predict(every))
    one = predictor.with_entries(fresh)
    by_hand = 0.75 * one.predict(others.indices) + 0.25 * predictor.fallback.predict(others.indices)  # no neighbours
    np.testing.assert_allclose(updated.predict(others.indices), np.clip(by_hand, low, high), rtol=1e-4, atol=1e-5)
    assert not updated.unseen(others.indices).any()
    save_predictor(updated, tmp_path / "model.safetensors")
    loaded = load_predictor(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.predict(others.indices), updated.predict(others.indices))
    assert np.array_equal(loaded.interval(others.indices, 0.9), updated.interval(others.indices, 0.9))


# --- labels


def test_new_labels_come_last_and_known_ones_keep_their_places():
    mode = Mode("user", 3, ("c", "a", "b"), "ordered")
    more = mode.with_more(["b", "z", "a", "d", "z"])
    assert more == Mode("user", 5, ("c", "a", "b", "z", "d"), "ordered")
    assert more.encode(["c", "a", "b", "d", "x"]).tolist() == [0, 1, 2, 4, UNSEEN]
    assert mode.labels == ("c", "a", "b")


def test_a_mode_without_new_labels_is_the_same_one():
    for mode in (Mode("user", 2, ("a", "b")), Mode("user", 3)):
        assert mode.with_more(["1"] if mode.labels is None else ["b", "a"]) is mode
        assert mode.with_more([]) is mode


def test_numbers_become_labels_when_others_join_them():
    more = Mode("user", 3).with_more(["1", "eve", "3"])
    assert more.labels == ("0", "1", "2", "eve", "3")
    assert more.encode([0, 1, 2, "eve", 3]).tolist() == [0, 1, 2, 3, 4]
