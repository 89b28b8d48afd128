"""Evaluating many trees at once against walking from node to node."""

import numpy as np
import pytest

from jointensor.kernels.numba_trees import BINS, BLOCK, MAX_LEAVES, add_trees


def random_tree(rng, leaves, columns):
    """Nodes and values of a tree whose leaves are split at random."""
    nodes, open_ = np.zeros((2 * leaves - 1, 4), dtype=np.int32), [0]
    nodes[:, 0] = -1
    for made in range(1, 2 * leaves - 1, 2):
        at = open_.pop(rng.integers(len(open_)))
        nodes[at] = (rng.integers(columns), rng.integers(BINS), made, made + 1)
        open_ += [made, made + 1]
    return nodes, np.where(nodes[:, 0] < 0, rng.standard_normal(2 * leaves - 1), 0.0)


def walk(nodes, values, bins, root=0):
    """Leaf of one entry and its value."""
    at = root
    while nodes[at, 0] >= 0:
        at = root + (nodes[at, 2] if bins[nodes[at, 0]] <= nodes[at, 1] else nodes[at, 3])
    return at, values[at]


@pytest.mark.parametrize("entries", [1, BLOCK, 2 * BLOCK + 7])
def test_the_values_of_all_trees_are_added(entries):
    rng = np.random.default_rng(0)
    bins = rng.integers(BINS, size=(entries, 3)).astype(np.uint8)
    trees = [random_tree(rng, leaves, 3) for leaves in (9, 1, 4, MAX_LEAVES)]
    nodes, values = (np.concatenate(both) for both in zip(*trees, strict=True))
    roots, predictions = np.array([0, 17, 18, 25]), np.arange(float(entries))
    assert len(nodes) - 25 == 2 * MAX_LEAVES - 1
    add_trees(bins, nodes, values, roots, predictions)
    walked = [sum(walk(nodes, values, row, root)[1] for root in roots) for row in bins]
    np.testing.assert_allclose(predictions, np.arange(entries) + walked, rtol=1e-12)
