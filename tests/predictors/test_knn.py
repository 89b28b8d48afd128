"""Partners against sums in plain Python, planted twins and chains, folds that tell nothing of themselves."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.predictors import fit_bias
from jointensor.predictors import knn as module
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.fibers import fiber_keys
from jointensor.predictors.knn import MAX_NEIGHBOURS, RIDGE_GRID, SELECTION_RIDGE, KnnResiduals, fit_knn
from jointensor.predictors.residual_stack import MIN_GAIN, fit_residual_stack
from jointensor.predictors.storage import load_predictor, save_predictor

SIZES = (30, 8, 25)


def entries_of(dense, share=0.5, seed=0):
    """Some cells of a dense array in random order, their values, and the other cells."""
    cells = np.random.default_rng(seed).permutation(np.argwhere(np.ones(dense.shape)))
    count = round(share * len(cells))
    return cells[:count], dense[tuple(cells[:count].T)], cells[count:]


def twins(noise=0.3, seed=0, sizes=SIZES):
    """Labels 2k and 2k + 1 of the first mode are alike in every fiber, others have nothing in common."""
    rng = np.random.default_rng(seed)
    shared = np.repeat(rng.standard_normal((sizes[0] // 2, *sizes[1:])), 2, axis=0)
    return shared + noise * rng.standard_normal(sizes)


def folds_of(cells, many=3, seed=5):
    return np.random.default_rng(seed).integers(many, size=len(cells))


def by_hand(cells, residuals, mode, label, ridge):
    """Partners of a label and their weights, from all entries; residuals are those of fibers of even size."""
    fibers = defaultdict(dict)
    for cell, value in zip(cells.tolist(), residuals.tolist(), strict=True):
        fibers[tuple(cell[:mode] + cell[mode + 1 :])][cell[mode]] = value
    size = np.mean(residuals**2)
    even = []
    for fiber in fibers.values():
        spread = sum(value**2 for value in fiber.values()) / len(fiber)
        even.append({name: value / (size + spread) ** 0.5 for name, value in fiber.items()})
    mine = [fiber for fiber in even if label in fiber]
    gains = {}
    for other in {name for fiber in mine for name in fiber} - {label}:
        both = [(fiber[label], fiber[other]) for fiber in mine if other in fiber]
        gains[other] = sum(a * b for a, b in both) ** 2 / (sum(b * b for _, b in both) + SELECTION_RIDGE)
    chosen = sorted(gains, key=lambda name: -gains[name])[:MAX_NEIGHBOURS]
    seen = np.array([[fiber.get(name, 0.0) for name in chosen] for fiber in mine])
    truth = np.array([fiber[label] for fiber in mine])
    return chosen, np.linalg.solve(seen.T @ seen + ridge * np.eye(len(chosen)), seen.T @ truth)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_neighbours_and_weights_are_those_of_plain_sums(monkeypatch, mode):
    monkeypatch.setattr(module, "RIDGE_GRID", (30.0,))
    cells, residuals, others = entries_of(twins())
    part, _ = fit_knn(cells, residuals, folds_of(cells), mode, SIZES)
    known = {tuple(cell): value for cell, value in zip(cells.tolist(), residuals.tolist(), strict=True)}
    for label in range(0, SIZES[mode], 3):
        chosen, weights = by_hand(cells, residuals, mode, label, 30.0)
        mine = part.neighbours[label]
        assert set(mine[mine >= 0].tolist()) == set(chosen)
        expected = dict(zip(chosen, weights, strict=True))
        found = dict(zip(mine.tolist(), part.weights[label].tolist(), strict=True))
        for name in chosen:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)
        for cell in others[others[:, mode] == label][:5].tolist():
            gains = [known.get((*cell[:mode], name, *cell[mode + 1 :]), 0.0) * expected[name] for name in chosen]
            assert part.predict(np.array([cell]))[0] == pytest.approx(sum(gains), rel=1e-4, abs=1e-6)


def test_twins_find_each_other_and_tell_of_new_entries():
    dense = twins(sizes=(30, 20, 25))
    cells, residuals, others = entries_of(dense)
    part, predictions = fit_knn(cells, residuals, folds_of(cells), 0, dense.shape)
    assert np.array_equal(part.neighbours[:, 0], np.arange(30) ^ 1)
    truth = dense[tuple(others.T)]
    # half of the entries have no twin; of the others, noise of the twin remains
    assert np.mean((truth - part.predict(others)) ** 2) < 0.68 * np.mean(truth**2)
    # what folds say of each other is what new entries show
    gains = [
        1 - np.mean((a - b) ** 2) / np.mean(a**2) for a, b in ((residuals, predictions), (truth, part.predict(others)))
    ]
    assert gains[0] == pytest.approx(gains[1], abs=0.05)


def test_noise_predicts_nothing():
    noise = np.random.default_rng(1).standard_normal((30, 20, 25))
    cells, residuals, _ = entries_of(noise)
    for mode in range(3):
        _, predictions = fit_knn(cells, residuals, folds_of(cells), mode, noise.shape)
        assert np.mean((residuals - predictions) ** 2) > (1 - MIN_GAIN) * np.mean(residuals**2)


def test_one_fiber_of_large_residuals_makes_no_neighbours():
    """If fibers were not normalised, all labels in it would be neighbours of each other."""
    dense = 0.1 * np.random.default_rng(2).standard_normal((40, 10, 30))
    dense[:, 3, 7] += 50.0
    cells, residuals, others = entries_of(dense)
    part, _ = fit_knn(cells, residuals, folds_of(cells), 0, dense.shape)
    calm = others[(others[:, 1] != 3) | (others[:, 2] != 7)]
    assert np.mean(part.predict(calm) ** 2) < 0.1 * 0.01


@pytest.mark.parametrize("entry", [0, 17, 911])
def test_an_entry_says_nothing_of_itself(entry):
    """Its residual changes the predictions of others, never its own."""
    cells, residuals, _ = entries_of(twins())
    changed = residuals.copy()
    changed[entry] *= -1  # as large as before: fibers stay even
    before, after = (fit_knn(cells, one, folds_of(cells), 0, SIZES)[1] for one in (residuals, changed))
    assert after[entry] == pytest.approx(before[entry], rel=1e-9)
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "mode"),
    [({"MAX_PAIRS": 10.0}, 0), ({"MAX_LABELS": 29}, 0)],
    ids=["fibers that are long", "many labels"],
)
def test_what_would_take_too_long_is_not_tried(monkeypatch, changes, mode):
    cells, residuals, _ = entries_of(twins())
    assert fit_knn(cells, residuals, folds_of(cells), mode, SIZES) is not None
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    assert fit_knn(cells, residuals, folds_of(cells), mode, SIZES) is None


def test_entries_alone_in_their_fiber_have_no_neighbours():
    cells = np.array([[0, 0], [1, 1], [2, 2], [0, 3]])
    assert fit_knn(cells, np.ones(4), np.arange(4) % 3, 1, (3, 4)) is not None  # 0 was seen with 3
    assert fit_knn(cells, np.ones(4), np.arange(4) % 3, 0, (3, 4)) is None
    assert fit_knn(cells, np.zeros(4), np.arange(4) % 3, 1, (3, 4)) is None


def test_labels_that_were_never_seen_are_predicted_as_zero():
    cells, residuals, _ = entries_of(twins())
    part, _ = fit_knn(cells, residuals, folds_of(cells), 0, SIZES)
    assert not part.predict(np.array([[-1, 3, 2], [2, -1, 2], [30, 0, 0], [0, 99, 0]])).any()
    assert part.predict(np.zeros((0, 3), dtype=np.int64)).shape == (0,)


def test_answers_do_not_depend_on_how_many_are_asked_at_once(monkeypatch):
    cells, residuals, others = entries_of(twins())
    part, _ = fit_knn(cells, residuals, folds_of(cells), 0, SIZES)
    at_once = part.predict(others)
    monkeypatch.setattr(module, "CHUNK", 7)
    np.testing.assert_array_equal(part.predict(others), at_once)


def tensor_of(dense):
    cells, residuals, others = entries_of(dense)
    modes = [Mode(name, size) for name, size in zip(("shop", "ware", "week"), dense.shape, strict=True)]
    return SparseTensor(cells, residuals, modes), others


def test_a_stack_keeps_neighbours_where_they_help():
    dense = twins(sizes=(30, 20, 25))
    tensor, others = tensor_of(dense)
    stack = fit_residual_stack(tensor, tensor.values, folds_of(tensor.indices, 5), tables=False, beside=(0, 1, 2))
    assert stack.names == ["knn:shop"]
    assert isinstance(stack.models[0], KnnResiduals)
    assert {name for name, _ in stack.notes} == {"knn:shop", "knn:ware", "knn:week"}
    truth = dense[tuple(others.T)]
    assert np.mean((truth - stack.models[0].predict(others)) ** 2) < 0.68 * np.mean(truth**2)
    np.testing.assert_allclose(stack.first(0).residuals, tensor.values, atol=1e-5)
    without = fit_residual_stack(tensor, tensor.values, folds_of(tensor.indices, 5), tables=False)
    assert without.models == ()


def test_later_neighbours_are_fitted_to_the_residuals_of_the_first():
    """Both twins of a pair of modes: the second ones learn from what the first ones leave."""
    dense = twins(noise=0.1, sizes=(30, 20, 25)) + np.swapaxes(twins(noise=0.1, seed=3, sizes=(20, 30, 25)), 0, 1)
    tensor, others = tensor_of(dense)
    stack = fit_residual_stack(tensor, tensor.values, folds_of(tensor.indices, 5), tables=False, beside=(0, 1, 2))
    assert set(stack.names) == {"knn:shop", "knn:ware"}
    truth, predictions = dense[tuple(others.T)], sum(part.predict(others) for part in stack.models)
    first = stack.models[0].predict(others)
    assert np.mean((truth - predictions) ** 2) < 0.95 * np.mean((truth - first) ** 2)
    assert np.mean(stack.residuals**2) == pytest.approx(np.mean((truth - predictions) ** 2), rel=0.1)


@pytest.fixture
def ensemble():
    tensor, others = tensor_of(twins(sizes=(30, 20, 25)))
    stack = fit_residual_stack(tensor, tensor.values, folds_of(tensor.indices), tables=False, beside=(0,))
    bias = fit_bias(tensor, tensor.take(np.arange(0)))
    return Ensemble((Member("bias", 1.0, (bias,)),), stack.models, bias, -9.0, 9.0), others


def test_neighbours_are_written_and_read_unchanged(ensemble, tmp_path):
    whole, others = ensemble
    save_predictor(whole, tmp_path / "weights.safetensors")
    again = load_predictor(tmp_path / "weights.safetensors")
    assert isinstance(again.residual_models[0], KnnResiduals)
    np.testing.assert_array_equal(again.predict(others), whole.predict(others))
    kept = whole.residual_models[0]
    assert kept.n_parameters() == len(kept.residuals) + 2 * (kept.neighbours >= 0).sum()


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, neighbours=one.neighbours + 25),
        lambda one: replace(one, neighbours=one.neighbours[:, :3].copy()),
        lambda one: replace(one, weights=one.weights[:5].copy()),
        lambda one: replace(one, keys=one.keys[::-1].copy()),
        lambda one: replace(one, keys=one.keys[:0], residuals=one.residuals[:0]),
        lambda one: replace(one, residuals=one.residuals[1:].copy()),
        lambda one: replace(one, mode=3),
    ],
)
def test_neighbours_that_cannot_be_are_refused(ensemble, change, tmp_path):
    whole, _ = ensemble
    save_predictor(
        replace(whole, residual_models=(change(whole.residual_models[0]),)), tmp_path / "weights.safetensors"
    )
    with pytest.raises(RunError):
        load_predictor(tmp_path / "weights.safetensors")


def test_more_ridge_is_less_weight():
    assert list(RIDGE_GRID) == sorted(RIDGE_GRID)
    cells, residuals, _ = entries_of(twins())
    keys = fiber_keys(cells, SIZES, 0)
    fibers = module.Fibers(np.sort(keys), residuals[np.argsort(keys)], 30)
    everyone = np.ones(len(cells), dtype=np.bool_)
    weights = fibers.weigh(everyone, fibers.select(everyone))
    sizes = np.square(weights).sum(axis=(1, 2))
    assert (np.diff(sizes) < 0).all()
