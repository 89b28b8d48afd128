"""Boosted trees against exact arithmetic in plain Python, entries held out of their own columns, planted counts."""

import subprocess
import sys
import warnings
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise, product
from unittest.mock import patch

import lightgbm
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jointensor.data.tensor import SparseTensor
from jointensor.kernels.numba_trees import BINS
from jointensor.metrics import rmse
from jointensor.predictors import Mean, fit_bias, fit_tables, fit_trees
from jointensor.predictors import trees as module
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.target_encoding import (
    CLOSE_SHRINKAGE,
    FOLDS,
    SHRINKAGE,
    columns_of,
    subsets_of,
)
from jointensor.predictors.trees import PATIENCE
from tests.kernels.test_numba_trees import walk

SHAPE, NOBODY = (20, 15, 10), np.arange(0)


def tensor_of(seed, entries, shape=SHAPE, value=lambda cells, rng: rng.standard_normal(len(cells))):
    """Some cells of a tensor in random order, and a value for each."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.unravel_index(rng.permutation(np.prod(shape))[:entries], shape), axis=1)
    return SparseTensor(cells, value(cells, rng), shape)


def wavy(cells, rng):
    """Slopes that differ by label, and noise; in 64ths, so that sums are exact."""
    return np.round(64 * ((cells[:, 0] % 3) * cells[:, 1] / 8 + 0.25 * rng.standard_normal(len(cells)))) / 64


def cut(tensor, *ends):
    return [tensor.take(np.arange(a, b)) for a, b in pairwise((0, *ends))]


def grow(bins, left, leaves, least, count=1, rate=1.0):
    """Trees of so many leaves, with so many entries in each, without validation entries."""
    with patch.multiple(module, LEAVES=leaves, MIN_LEAF_ENTRIES=least):
        return module.grow((bins, left), (bins[:0], left[:0]), count=count, rate=rate)


def spread(left, rows):
    """Squared distance from the mean, exactly."""
    numbers = [Fraction(left[row]) for row in rows]
    return sum(x * x for x in numbers) - sum(numbers) ** 2 / max(len(numbers), 1)


def best_split(bins, left, rows, least):
    """Every column and bound is tried: gain, column, bound; the first of equals."""
    best = (Fraction(0), None, None)
    for column, bound in product(range(bins.shape[1]), sorted({int(b) for b in bins[rows].ravel()})):
        sides = [[row for row in rows if (bins[row, column] <= bound) == side] for side in (True, False)]
        if min(map(len, sides)) >= least:
            gain = spread(left, rows) - sum(spread(left, side) for side in sides)
            best = max(best, (gain, column, bound), key=lambda one: one[0])
    return best


def leaf_wise(bins, left, most, least):
    """Leaves, as sets of entries, of a tree grown where it gains most."""
    leaves = [list(range(len(bins)))]
    while len(leaves) < most:
        splits = [best_split(bins, left, rows, least) for rows in leaves]
        gain, column, bound = max(splits, key=lambda one: one[0])
        if gain == 0:
            break
        rows = leaves.pop(splits.index((gain, column, bound)))
        leaves += [[r for r in rows if (bins[r, column] <= bound) == side] for side in (True, False)]
    return leaves


def small_data(seed, entries, columns, kinds):
    """Some bins, and large whole numbers: sums are exact, gains are not equal by chance."""
    rng = np.random.default_rng(seed)
    levels = rng.choice([0, 1, 2, 100, 101, BINS - 4, BINS - 3, BINS - 2, BINS - 1], kinds, replace=False)
    return rng.choice(levels, (entries, columns)).astype(np.uint8), rng.integers(-(2**20), 2**20, entries)


@given(st.integers(0, 2**32), *(st.integers(a, b) for a, b in ((2, 24), (1, 4), (1, 9), (2, 7), (1, 6))))
@example(1, 4, 4, 5, 2, 2)  # columns that LightGBM would bundle
@settings(max_examples=40, deadline=None)
def test_a_tree_has_the_leaves_of_plain_python(seed, entries, columns, kinds, most, least):
    bins, left = small_data(seed, entries, columns, kinds)
    (nodes,), (values,) = grow(bins, left, most, least)
    found = defaultdict(list)
    for row in range(entries):
        found[walk(nodes, values, bins[row])[0]].append(row)
    assert sorted(found.values()) == sorted(leaf_wise(bins, left.tolist(), most, least))
    assert np.count_nonzero(nodes[:, 0] < 0) == len(found) <= most
    size = np.sqrt(np.mean(np.square(left, dtype=np.float64)))
    assert all(values[at] == pytest.approx(left[rows].mean(), rel=1e-5, abs=1e-6 * size) for at, rows in found.items())


def test_every_tree_is_fitted_to_the_residuals_of_those_before():
    bins, left = small_data(1, 40, 3, 8)
    rest, grown = left.astype(np.float64), grow(bins, left, 4, 3, count=5, rate=0.5)
    assert len(grown.nodes) == 5
    for tree in zip(*grown, strict=True):
        said = np.array([walk(*tree, row)[1] for row in bins])
        for rows in leaf_wise(bins, rest.tolist(), 4, 3):
            assert said[rows] == pytest.approx(np.full(len(rows), 0.5 * rest[rows].mean()), rel=1e-4)
        rest -= said


def test_as_many_trees_are_kept_as_validate_best(monkeypatch):
    rng = np.random.default_rng(0)
    bins = rng.integers(BINS, size=(1500, 4)).astype(np.uint8)
    truth = np.sin(bins[:, 0] / 40) + 0.5 * rng.standard_normal(1500)
    train, valid = (bins[:900], truth[:900]), (bins[900:], truth[900:])
    every = module.grow(train, (bins[:0], truth[:0]), count=150, rate=0.1)
    rest, errors, tried, update = truth[900:].copy(), [], [], lightgbm.Booster.update
    monkeypatch.setattr(lightgbm.Booster, "update", lambda booster: tried.append(0) or update(booster))
    kept, _ = module.grow(train, valid, count=150, rate=0.1)
    for nodes, leaves in zip(*every, strict=True):
        rest -= [walk(nodes, leaves, row)[1] for row in bins[900:]]
        errors.append(rest @ rest)
    assert 3 < len(kept) == 1 + np.argmin(errors[: len(tried)])
    assert len(tried) == len(kept) + PATIENCE < 150


def test_a_heavy_tail_is_learnt_from_its_few_entries(monkeypatch):
    """Values as large as those of their label: most of the squared error is made by a hundredth of the entries."""

    def heavy(cells, rng):
        return 1 / (1 + cells[:, 0]) ** 1.5 * 1000 + rng.standard_normal(len(cells))

    train, valid, test = cut(tensor_of(5, 40_000, (400, 30, 20), heavy), 30_000, 35_000, 40_000)
    found = rmse(fit_trees(train, valid).predict(test.indices), test.values)

    def quantiles(column):
        between = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1], method="lower"))
        return np.pad(between, (0, BINS - 1 - len(between)), constant_values=np.inf).astype(np.float32)

    monkeypatch.setattr(module, "edges_of", quantiles)
    assert found < 0.6 * rmse(fit_trees(train, valid).predict(test.indices), test.values)


def columns_by_hand(train, cells, trusted, subsets=None):
    """Means and counts by labels taken together, and positions; cell k sees the training entries ``trusted[k]``."""
    mean, rows = train.values.mean(dtype=np.float64), []
    for cell, seen in zip(cells, trusted, strict=True):
        rows.append([])
        for modes in map(list, subsets or subsets_of(train.shape)):
            own = train.values[seen][(train.indices[seen][:, modes] == cell[modes]).all(axis=1)].tolist()
            shrinkage = SHRINKAGE if len(modes) <= 2 else CLOSE_SHRINKAGE
            rows[-1] += [(sum(own) + shrinkage * mean) / (len(own) + shrinkage), len(own)]
    return np.hstack([rows, cells])


def test_answers_are_those_of_plain_sums_and_walks():
    train, valid, test = cut(tensor_of(0, 420, (9, 8, 7), wavy), 300, 380, 420)
    trees = fit_trees(train, valid)
    cells = np.concatenate([test.indices, [[-1, 3, 2], [-1, -1, -1], [9, 99, 7]]])  # the last three were never seen
    columns = np.stack(columns_of(trees.encoders, cells), axis=1)
    np.testing.assert_allclose(columns, columns_by_hand(train, cells, [np.arange(300)] * len(cells)), rtol=1e-6)
    bins = (trees.edges[None] < columns[:, :, None]).sum(axis=2)  # (entries, columns)
    answers = [trees.mean + sum(walk(trees.nodes, trees.values, row, r)[1] for r in trees.roots) for row in bins]
    np.testing.assert_allclose(trees.predict(cells), answers, rtol=1e-9)
    combinations = sum(len(np.unique(train.indices[:, modes], axis=0)) for modes in subsets_of(train.shape))
    assert trees.n_parameters() == 1 + 2 * combinations + len(trees.values)


@pytest.fixture
def seen(monkeypatch):
    """What fit_trees encodes: the part of every entry, and its columns."""
    pairs, encode = [], module.encode

    def spy(train, part):
        encoders, own = encode(train, part)
        pairs.append((part, np.stack(own, axis=1)))
        return encoders, own

    monkeypatch.setattr(module, "encode", spy)
    return pairs


@pytest.mark.parametrize("groups", [(), (1,), (0, 2)])
def test_columns_of_training_entries_leave_out_exactly_their_part(seen, groups):
    train = tensor_of(1, 250, (9, 8, 7), wavy)
    fit_trees(train, train.take(NOBODY), groups=groups)
    part, own = seen[0]
    others = [np.flatnonzero(part != p) for p in part]
    np.testing.assert_allclose(own, columns_by_hand(train, train.indices, others)[:, :-3], rtol=1e-6)
    group = [tuple(cell[list(groups)]) if groups else k for k, cell in enumerate(train.indices)]
    assert len(set(zip(group, part, strict=True))) == len(set(group))
    assert len(set(part)) > min(FOLDS, len(set(group))) / 2


def test_all_labels_but_one_are_looked_at_where_they_tell_more_than_two_of_them(seen):
    cells = tensor_of(0, 900, (12, 15, 10)).indices
    cells = np.insert(cells, 2, cells[:, 0] % 3, axis=1)  # mode 0 tells mode 2
    train = SparseTensor(cells, wavy(cells, np.random.default_rng(1)), (12, 15, 3, 10))
    trees = fit_trees(train, train.take(NOBODY))
    kept = [one.table.modes for one in trees.encoders]
    assert [s for s in kept if len(s) < 3] == [s for s in subsets_of(train.shape) if len(s) < 3]
    # two labels tell the third of (0, 1, 2) and (0, 2, 3), no two entries share (0, 1, 3)
    assert [s for s in kept if len(s) > 2] == [(1, 2, 3)]
    part, own = seen[0]
    others = [np.flatnonzero(part != p) for p in part]
    np.testing.assert_allclose(own, columns_by_hand(train, train.indices, others, kept)[:, :-4], rtol=1e-6)
    everything = [np.arange(len(train))] * 50
    asked = np.random.default_rng(1).integers(0, train.shape, size=(50, 4))
    columns = np.stack(columns_of(trees.encoders, asked), axis=1)
    np.testing.assert_allclose(columns, columns_by_hand(train, asked, everything, kept), rtol=1e-6)


def test_what_entries_share_but_for_one_label_is_learnt():
    """A message has its words whoever reads it: sender, word and day tell a value, no two of them do."""

    def message(cells, rng):
        return rng.standard_normal((12, 25, 20))[cells[:, 0], cells[:, 1], cells[:, 2]]

    train, valid, test = cut(tensor_of(7, 30_000, (12, 25, 20, 10), message), 24_000, 27_000, 30_000)
    found = fit_trees(train, valid).predict(test.indices)
    assert rmse(found, test.values) < 0.4 * test.values.std()


@pytest.mark.parametrize("groups", [(), (0,)])
def test_the_values_of_a_part_are_not_in_its_columns(seen, groups):
    train = tensor_of(2, 600, value=lambda cells, rng: rng.integers(-50, 50, len(cells)))
    fit_trees(train, train.take(NOBODY), groups=groups)
    part, before = seen[0]
    mine = part == part[0]
    values, change = train.values.copy(), np.random.default_rng(0).integers(1000, size=mine.sum())
    values[mine] += change - np.roll(change, 1)  # the mean of all stays
    fit_trees(train.with_values(values), train.take(NOBODY), groups=groups)
    changed = (seen[1][1] != before).any(axis=1)
    assert not changed[mine].any()
    assert changed[~mine].mean() > 0.5


def test_how_often_a_label_occurs_is_learnt_by_trees_and_not_by_tables():
    rng = np.random.default_rng(0)
    labels, often = rng.permutation(1200), np.where(np.arange(1200) % 2, 8, 2)
    cells = np.stack([np.repeat(labels, often), *(rng.integers(size, size=often.sum()) for size in (500, 90))], axis=1)
    cells = rng.permutation(np.unique(cells, axis=0))
    truth = np.where(often[np.argsort(labels)][cells[:, 0]] == 8, 1.0, -1.0)
    tensor = SparseTensor(cells, truth + 2 * rng.standard_normal(len(cells)), (1200, 500, 90))
    train, valid, test = cut(tensor, 4500, 5400, len(cells))
    trees, tables = (fit(train, valid).predict(test.indices) for fit in (fit_trees, fit_tables))
    assert rmse(trees, truth[5400:]) < 0.5 * truth[5400:].std()
    assert rmse(tables, truth[5400:]) > 0.85 * truth[5400:].std()


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_left_alone(seed):
    train, valid, test = cut(tensor_of(seed, 3000), 1500, 2000, 3000)
    trees = fit_trees(train, valid)
    assert len(trees.roots) < 10
    assert rmse(trees.predict(test.indices), test.values) < 1.03 * test.values.std()


def test_an_answer_is_written_and_read_unchanged(tmp_path):
    tensor = tensor_of(3, 1500, value=wavy)
    trees = fit_trees(*cut(tensor, 1000, 1200))
    members = Member("trees", 0.5, (trees,)), Member("mean", 0.5, (Mean(2.0),))
    both = Ensemble(members, (), fit_bias(*cut(tensor, 1000, 1200)), -9.0, 9.0, None)
    cells = np.concatenate([tensor.indices, [[-1, 0, 99], [-1, -1, -1]]])
    for one in (trees, both):
        save_predictor(one, tmp_path / "one")
        again = load_predictor(tmp_path / "one")
        assert np.array_equal(again.predict(cells), one.predict(cells))
        assert again.n_parameters() == one.n_parameters()


def test_a_seed_determines_the_answers_and_they_follow_the_values(monkeypatch):
    train, valid, test = cut(tensor_of(4, 1500, value=wavy), 1000, 1200, 1500)

    def ask(seed=3, scale=1, shift=0):
        parts = [part.with_values(scale * part.values + shift) for part in (train, valid)]
        return fit_trees(*parts, seed=seed).predict(test.indices)

    answers = ask()
    assert not np.array_equal(ask(seed=4), answers)
    assert np.array_equal(ask(scale=4), 4 * answers)
    for shift in (-2, 512):  # not exact: splits of equal gain may fall differently
        assert rmse(ask(shift=shift) - shift, answers) < 0.1 * answers.std()
    monkeypatch.setattr(module, "CHUNK", 7)
    assert np.array_equal(ask(), answers)


def test_without_validation_entries_there_are_so_many_trees():
    train, test = cut(tensor_of(6, 1500, (40, 50), wavy), 1200, 1500)
    trees, bias = (fit(train, train.take(NOBODY)) for fit in (fit_trees, fit_bias))
    assert len(trees.roots) == module.DEFAULT_TREES
    errors = [rmse(one.predict(test.indices), test.values) for one in (trees, bias)]
    assert errors[0] < 0.8 * errors[1]


def test_rounds_say_how_many_trees_where_nothing_else_does():
    train, valid = cut(tensor_of(8, 900, value=wavy), 800, 900)
    nothing = train.take(NOBODY)
    few, more = (fit_trees(train, nothing, rounds=count) for count in (7, 12))
    assert (len(few.roots), len(more.roots)) == (7, 12)
    assert np.array_equal(more.values[: len(few.values)], few.values)
    assert np.array_equal(fit_trees(train, valid, rounds=3).values, fit_trees(train, valid).values)


def test_trees_do_not_depend_on_the_number_of_threads():
    train, valid = cut(tensor_of(6, 2500, value=wavy), 2000, 2500)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(fit_trees(train, valid))
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found[0].nodes, found[1].nodes)
    assert np.array_equal(found[0].values, found[1].values)


@pytest.mark.parametrize("entries", [1, 30, 600])
def test_nothing_is_printed_or_warned(entries, capfd):
    tensor = tensor_of(6, entries, value=wavy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_trees(tensor, tensor)
        fit_trees(tensor, tensor.take(NOBODY), rounds=3)
    assert capfd.readouterr() == ("", "")


def test_stored_trees_predict_without_lightgbm(tmp_path):
    tensor = tensor_of(6, 600, value=wavy)
    trees = fit_trees(tensor, tensor)
    save_predictor(trees, tmp_path / "trees")
    code = """if True:
        import sys
        sys.modules["lightgbm"] = None  # importing it fails
        from pathlib import Path
        import numpy as np
        from jointensor.predictors.storage import load_predictor
        print(load_predictor(Path(sys.argv[1])).predict(np.array([[1, 2, 3]]))[0])
    """
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "trees"], capture_output=True, text=True, check=True)
    assert float(done.stdout) == trees.predict(np.array([[1, 2, 3]]))[0]


def test_no_tree_is_grown_after_the_time_is_up():
    train, valid = cut(tensor_of(6, 2500, value=wavy), 2000, 2500)
    assert len(fit_trees(train, valid, seconds=-1.0).roots) == 1


@pytest.mark.parametrize("entries", [1, 2, 200])
@pytest.mark.parametrize("shape", [(20, 15), SHAPE])
def test_equal_values_are_the_answer_everywhere(entries, shape):
    tensor = tensor_of(7, entries, shape, lambda cells, _: np.full(len(cells), 0.1))
    asked = np.array([[0, 0, 0], [-1, -1, -1], [99, 3, 2]])[:, : len(shape)]
    for valid in (tensor, tensor.take(NOBODY)):
        np.testing.assert_allclose(fit_trees(tensor, valid).predict(asked), 0.1, rtol=1e-6)


def test_trees_are_grown_from_some_entries_and_means_from_all(monkeypatch):
    train, valid, test = cut(tensor_of(8, 2500, value=wavy), 1800, 2100, 2500)
    every = fit_trees(train, valid)
    monkeypatch.setattr(module, "MAX_TRAIN_ENTRIES", 700)
    some = fit_trees(train, valid)
    assert all(one.counts.sum() == 1800 for one in some.encoders)
    errors = [rmse(one.predict(test.indices), test.values) for one in (every, some)]
    assert errors[0] < errors[1] < 0.7 * test.values.std()
