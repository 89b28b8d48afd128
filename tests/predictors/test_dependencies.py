"""Values that some labels decide: which modes those are, and what is known by them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.tensor import SparseTensor
from jointensor.predictors import dependencies as module
from jointensor.predictors.dependencies import dependency_table, find_dependency, seen_elsewhere


def tensor_of(seed, shape=(6, 5, 4), modes=(0, 2), share=0.7, kinds=50):
    """A number for every combination of labels of some modes, at some of the cells."""
    rng = np.random.default_rng(seed)
    cells = np.argwhere(rng.random(shape) < share)
    by_label = rng.integers(kinds, size=shape) if modes is None else rng.integers(kinds, size=[shape[n] for n in modes])
    values = by_label[tuple(cells.T)] if modes is None else by_label[tuple(cells[:, modes].T)]
    return SparseTensor(cells, values.astype(np.float32), shape)


def by_hand(tensor, modes):
    """Values of every combination of labels."""
    found = {}
    for cell, value in zip(tensor.indices.tolist(), tensor.values.tolist(), strict=True):
        found.setdefault(tuple(cell[n] for n in modes), []).append(value)
    return found


@pytest.mark.parametrize("modes", [(0,), (2,), (0, 1), (0, 2), (1, 2)])
def test_the_modes_that_decide_are_found(modes):
    assert find_dependency(tensor_of(0, modes=modes)) == modes
    assert find_dependency(tensor_of(0, shape=(4, 3, 5, 4), modes=modes)) == modes


def test_where_values_differ_nothing_decides():
    tensor = tensor_of(0)
    assert find_dependency(tensor_of(0, modes=None)) is None
    values = tensor.values.copy()
    values[3] += 1  # its paper and word have it with others, who disagree
    assert find_dependency(tensor.with_values(values)) is None


def test_values_that_are_never_seen_twice_decide_nothing():
    """Every pair once: nobody can know whether pairs decide."""
    cells = np.array([(a, b, (a + b) % 4) for a in range(4) for b in range(4)])
    assert find_dependency(SparseTensor(cells, np.arange(16.0), (4, 4, 4))) is None


@given(
    st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([0.05, 0.3, 0.9]), st.sampled_from([None, (0,), (1, 2)])
)
@settings(max_examples=40, deadline=None)
def test_what_is_said_to_decide_does_so_and_no_fewer_modes_do(seed, kinds, share, modes):
    tensor = tensor_of(seed, shape=(5, 6, 7), modes=modes, share=share, kinds=kinds)
    found = find_dependency(tensor)
    counts = np.unique(tensor.values, return_counts=True)[1] / max(len(tensor), 1)

    def decide(modes):
        groups = by_hand(tensor, modes)
        again = len(tensor) - len(groups)
        enough = (
            again >= module.MIN_REPEATED_SHARE * len(tensor)
            and again * (1 - np.sum(counts**2)) >= module.MIN_EXPECTED_DIFFERENCES
        )
        return enough and all(len(set(one)) == 1 for one in groups.values())

    every = [modes for size in (1, 2) for modes in combinations(range(3), size) if decide(modes)]
    assert found == (min(every, key=lambda modes: (len(modes), modes)) if every else None)


def test_rare_events_that_agree_by_chance_decide_nothing():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cells = rng.permutation(np.argwhere(np.ones((10, 10, 10))))[:100]
        assert find_dependency(SparseTensor(cells, (rng.random(100) < 0.02).astype(float), (10, 10, 10))) is None


def test_one_mode_decides_where_pairs_hardly_ever_repeat():
    rng = np.random.default_rng(0)
    cells = np.unique(rng.integers(200, size=(2000, 3)), axis=0)
    assert find_dependency(SparseTensor(cells, rng.normal(size=200)[cells[:, 0]], (200, 200, 200))) == (0,)


def test_a_sample_of_combinations_is_enough_to_see_that_values_differ(monkeypatch):
    """And where it sees nothing, all entries are looked at."""
    monkeypatch.setattr(module, "SAMPLE_ENTRIES", 100)
    tensor = tensor_of(1, shape=(30, 20, 6))
    assert find_dependency(tensor) == (0, 2)
    values = tensor.values.copy()
    values[:1] += 1
    assert find_dependency(tensor.with_values(values)) is None


def test_known_values_are_those_of_the_combination():
    tensor = tensor_of(2, share=0.3)
    table, known = dependency_table(tensor, (0, 2)), by_hand(tensor, (0, 2))
    cells = np.argwhere(np.ones((7, 5, 4)))  # a first label more than there are
    rows = table.find(cells)
    for cell, row in zip(cells.tolist(), rows.tolist(), strict=True):
        expected = known.get((cell[0], cell[2]))
        assert (row == len(table.keys)) == (expected is None)
        assert expected is None or table.effects[row] == expected[0]


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_entries_that_others_decide_are_those_whose_labels_another_fold_has(seed):
    tensor = tensor_of(seed, share=0.4)
    folds = np.random.default_rng(seed).integers(3, size=len(tensor))
    found = seen_elsewhere(tensor, (0, 2), folds)
    pairs = tensor.indices[:, (0, 2)]
    expected = [
        any((pairs[k] == pairs[j]).all() and folds[k] != folds[j] for j in range(len(pairs))) for k in range(len(pairs))
    ]
    assert found.tolist() == expected
