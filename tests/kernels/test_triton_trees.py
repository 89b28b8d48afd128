"""Boosting by Triton against numba's trees: on a GPU where there is one, else by Triton's interpreter on the CPU."""

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # there by the interpreter, see tests/conftest.py
pytest.importorskip("triton")

from jointensor.kernels.numba_trees import BINS, ask_trees, grow_tree
from jointensor.kernels.triton_trees import BLOCK, LEAF, NEW, SMALL, SPLITS, Boosting
from jointensor.predictors import trees as module
from jointensor.predictors.trees import Plan

ROOT = np.zeros(1, dtype=np.int64)


def numbers(entries, columns, seed=0, kinds=BINS):
    """Bins ``(entries, columns)``, and whole numbers so small that sums in single precision are exact."""
    rng = np.random.default_rng(seed)
    bins = rng.integers(kinds, size=(entries, columns)).astype(np.uint8)
    steps = 300 * (bins[:, 0] > 90) + 200 * (bins[:, -1] > 40) * (bins[:, 0] > 90)
    return bins, steps + rng.integers(-200, 201, entries)


def boosting_of(bins, left, count, leaves=4, least=20, rate=0.5):
    both = torch.from_numpy(bins.T.copy()).to(DEVICE)
    return Boosting(both, torch.from_numpy(left.astype(np.float32)).to(DEVICE), count, leaves, least, rate)


def assert_next_tree_is_that_of_numba(boosting):
    """Grow one more, from what is left now; returns its nodes."""
    bins, left = boosting.bins.T.contiguous().cpu().numpy(), boosting.left.double().cpu().numpy()
    size = 2 * boosting.leaves - 1
    nodes, values = np.zeros((size, 4), dtype=np.int32), np.zeros(size)
    by_column = np.ascontiguousarray(bins[: boosting.count].T)
    made = grow_tree(by_column, left[: boosting.count], boosting.leaves, boosting.least, nodes, values)
    ask_trees(bins, nodes[:made], -boosting.rate * values[:made], ROOT, left)

    boosting.grow()
    assert 2 * int(boosting.next[SPLITS]) + 1 == made
    assert boosting.nodes.tolist() == nodes.tolist()
    ends = nodes[:made, 0] < 0  # what is said of nodes that are parted is never asked
    np.testing.assert_allclose(boosting.values.cpu().numpy()[:made][ends], values[:made][ends], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(boosting.left.cpu().numpy(), left, rtol=1e-5, atol=1e-3)
    assert float(boosting.error) == pytest.approx(np.sum(left[boosting.count :] ** 2), rel=1e-5)
    return nodes[:made]


@pytest.mark.parametrize(
    ("entries", "columns", "kinds"),
    [(300, 1, BINS), (300, 3, BINS), (500, 5, 7), (BLOCK, 4, BINS), (BLOCK + 200, 6, BINS)],
)
def test_trees_in_a_row_are_those_of_numba(entries, columns, kinds):
    bins, left = numbers(entries, columns, kinds=kinds)
    boosting = boosting_of(bins, left, entries - 60)
    grown = [assert_next_tree_is_that_of_numba(boosting) for _ in range(3)]
    assert [len(nodes) for nodes in grown] == [7, 7, 7]
    assert not np.array_equal(grown[0], grown[2])  # a tree is not the one before, replayed


@pytest.mark.parametrize("leaves", [1, 2, 9])
def test_any_number_of_leaves_may_be_allowed(leaves):
    boosting = boosting_of(*numbers(400, 3, seed=leaves), 400, leaves=leaves, least=5)
    assert [len(assert_next_tree_is_that_of_numba(boosting)) for _ in range(2)] == [2 * leaves - 1] * 2
    assert float(boosting.error) == 0.0


def test_there_are_fewer_leaves_where_they_would_have_too_few_entries():
    """And a tree after a larger one keeps nothing of it."""
    bins, left = numbers(400, 3)
    boosting = boosting_of(bins, left, 300, leaves=8, least=120)
    assert len(assert_next_tree_is_that_of_numba(boosting)) == 3
    assert int(boosting.next[LEAF]) == -1
    boosting.least = 10
    boosting.replay = None  # a recorded tree has its numbers already
    assert len(assert_next_tree_is_that_of_numba(boosting)) == 15
    boosting.least, boosting.replay = 120, None
    assert len(assert_next_tree_is_that_of_numba(boosting)) == 3


@pytest.mark.parametrize("least", [1, 5, 30])
def test_a_leaf_has_as_many_entries_as_it_must(least):
    """A few entries lie far off: they would be a leaf of their own."""
    bins, left = numbers(300, 2)
    left[np.argsort(bins[:, 1], kind="stable")[-4:]] += 20_000
    boosting = boosting_of(bins, left, 240, least=least)
    assert_next_tree_is_that_of_numba(boosting)
    sizes = np.bincount(boosting.leaf[:240].long().cpu().numpy(), minlength=4)
    assert sizes.min() >= least


@pytest.mark.parametrize("reason", ["too few entries", "one bin", "equal values"])
def test_without_a_split_a_tree_is_the_mean(reason):
    bins, left = numbers(100, 3)
    if reason == "one bin":
        bins[:] = BINS - 1
    if reason == "equal values":
        left[:] = 3
    boosting = boosting_of(bins, left, 80, least=41 if reason == "too few entries" else 5)
    for _ in range(2):
        mean = boosting.left[:80].mean()
        assert assert_next_tree_is_that_of_numba(boosting).tolist() == [[-1, 0, 0, 0]]
        torch.testing.assert_close(boosting.values[0], mean)


def test_rounding_is_no_reason_to_split():
    """Sums of single precision differ from what they should be by a little, and more of it on a GPU."""
    bins, left = numbers(BLOCK + 200, 3)
    boosting = boosting_of(bins, 0.0 * left + 1 / 3, BLOCK)
    boosting.grow()
    assert int(boosting.next[SPLITS]) == 0


def test_nothing_is_split_once_everything_is_explained():
    """And the number of splits is not that of the tree before."""
    bins, _ = numbers(64, 2)
    bins[:, 1] = np.arange(64) % 2
    boosting = boosting_of(bins, 8 * bins[:, 1], 64, rate=1.0)
    assert [len(assert_next_tree_is_that_of_numba(boosting)) for _ in range(2)] == [3, 1]
    assert not boosting.left.any()


def test_of_equal_splits_the_first_is_taken():
    bins = np.repeat(np.array([5, 6, 200], dtype=np.uint8), 32)[:, None].repeat(3, axis=1)
    boosting = boosting_of(bins, np.repeat([4, -8, 4], 32), 96, leaves=2)
    assert assert_next_tree_is_that_of_numba(boosting)[0, :2].tolist() == [0, 5]


@pytest.mark.parametrize(("bound", "small"), [(90, 0), (180, 1)])
def test_the_side_with_fewer_entries_is_summed_up(bound, small):
    """Either would do, one in less time; validation entries, most of them on the other side, do not say which."""
    bins, _ = numbers(300, 1)
    bins[200:] = 0 if small == 0 else BINS - 1
    boosting = boosting_of(bins, 8 * (bins[:, 0] > bound), 200, leaves=2)
    assert_next_tree_is_that_of_numba(boosting)
    assert boosting.next[[NEW, SMALL]].tolist() == [1, small]
    assert int(np.argmin(np.bincount(boosting.leaf[:200].long().cpu().numpy()))) == small


def test_validation_entries_are_moved_and_never_counted():
    bins, left = numbers(500, 3)
    boosting = boosting_of(bins, left, 200)
    other_bins, other_left = bins.copy(), left.copy()
    other_bins[200:], other_left[200:] = numbers(300, 3, seed=9)
    other_left[200:] += 5000
    others = boosting_of(other_bins, other_left, 200)
    alone = boosting_of(bins[:200], left[:200], 200)
    for _ in range(2):
        for one in (boosting, others, alone):
            assert_next_tree_is_that_of_numba(one)
            torch.testing.assert_close(one.nodes, boosting.nodes, rtol=0, atol=0)
            torch.testing.assert_close(one.values, boosting.values)
            torch.testing.assert_close(one.left[:200], boosting.left[:200])
    assert float(others.error) > 10 * float(boosting.error) > 0
    assert float(alone.error) == 0


# --- trees as they are fitted


@pytest.fixture
def both_ways(monkeypatch):
    """Trees grown by numba and by Triton, as pairs of nodes and values."""
    for name, number in {"LEAVES": 3, "LEAST": 15, "PATIENCE": 4}.items():
        monkeypatch.setattr(module, name, number)

    def grow(bins, left, count, most, looked_at):
        monkeypatch.setattr(module, "LOOKED_AT", looked_at)
        given = (bins[:count], left[:count], bins[count:], left[count:], Plan(most, 0.4))
        return [
            list(zip(*grown, strict=True))
            for grown in (module._grow(*given), module._grow_there(*given, device=torch.device(DEVICE)))
        ]

    return grow


def assert_same_trees(expected, found):
    assert len(found) == len(expected)
    for (nodes, values), (other, said) in zip(expected, found, strict=True):
        assert other.tolist() == nodes.tolist()
        ends = nodes[:, 0] < 0
        np.testing.assert_allclose(said[ends], values[ends], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("looked_at", [1, 3, 10])
def test_without_validation_entries_there_are_as_many_trees_as_asked_for(both_ways, looked_at):
    expected, found = both_ways(*numbers(300, 3), 300, 7, looked_at)
    assert len(expected) == 7
    assert_same_trees(expected, found)


@pytest.mark.parametrize("looked_at", [1, 3])
def test_the_trees_that_validate_best_are_kept(both_ways, looked_at):
    expected, found = both_ways(*numbers(500, 3), 200, 30, looked_at)
    assert 1 < len(expected) < 20
    assert_same_trees(expected, found)


def test_growing_ends_with_the_time(monkeypatch):
    monkeypatch.setattr(module, "LOOKED_AT", 2)
    bins, left = numbers(100, 2)
    nodes, values = module._grow_there(bins, left, bins[:0], left[:0], Plan(9, 0.4, -1.0), device=torch.device(DEVICE))
    assert len(nodes) == len(values) == 2  # the clock is looked at as often as the validation entries


@pytest.mark.parametrize("count", [100, 70])
def test_one_tree_is_the_last_where_nothing_can_be_split(both_ways, count):
    bins, left = numbers(100, 2)
    bins[:] = 7
    expected, found = both_ways(bins, left, count, 5, 3)
    assert len(expected) == 1
    assert_same_trees(expected, found)
