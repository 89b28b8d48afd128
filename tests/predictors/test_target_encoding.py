"""Target encoding: which labels are encoded together, and bins that divide a column evenly, more finely at its ends."""

import numpy as np
import pytest

from jointensor.kernels.numba_trees import BINS
from jointensor.predictors import target_encoding as module
from jointensor.predictors.target_encoding import TAIL_BINS, binned, edges_of, subsets_of


def test_labels_and_pairs_of_labels_are_encoded_where_they_can_be_numbered():
    assert subsets_of((4, 3)) == [(0,), (1,)]
    assert subsets_of((2**31, 5, 2**31)) == [(0,), (1,), (2,), (0, 1), (1, 2)]
    assert [s for s in subsets_of((4, 3, 5, 2)) if len(s) > 2] == [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
    assert {len(s) for s in subsets_of((4, 3, 5, 2, 6))} == {1, 2, 4}


def parted(column):
    """Edges of a column, and the bin of every entry: how many edges lie below it."""
    column = column.astype(np.float32)
    edges = edges_of(column)
    assert edges.shape == (BINS - 1,)
    finite = edges[np.isfinite(edges)]
    assert np.array_equal(edges[: len(finite)], finite)  # the others follow
    assert (np.diff(finite) > 0).all()
    bins = binned([column], edges[None])[:, 0]
    assert np.array_equal(bins, np.searchsorted(np.sort(finite), column))
    return finite, bins


def assert_largest_are_told_apart(column, edges):
    """The largest 64th, 128th, … of the entries, down to the largest alone."""
    above = np.array([np.count_nonzero(column.astype(np.float32) > edge) for edge in edges])
    for share in len(column) / 2.0 ** np.arange(6, int(np.log2(len(column))) + 1):
        assert ((share / 2 < above) & (above <= share)).any()


HEAVY = {
    "normal": lambda rng, count: rng.standard_normal(count),
    "pareto": lambda rng, count: rng.pareto(1.0, count),
    "both sides": lambda rng, count: rng.standard_cauchy(count),
}


@pytest.mark.parametrize("count", [400, 20_000])
@pytest.mark.parametrize("law", HEAVY)
def test_bins_part_a_column_evenly_and_more_finely_at_its_ends(law, count):
    column = HEAVY[law](np.random.default_rng(0), count)
    edges, bins = parted(column)
    assert np.bincount(bins).max() <= 1 + count / (BINS - TAIL_BINS)
    assert len(edges) > 0.9 * (BINS - TAIL_BINS)
    assert_largest_are_told_apart(column, edges)
    below = np.searchsorted(np.sort(column.astype(np.float32)), edges, side="right")
    for share in count / 2.0 ** np.arange(6, int(np.log2(count)) - 1):  # the smallest, less finely
        assert ((share / 4 < below) & (below <= share)).any()


@pytest.mark.parametrize("kinds", [1, 2, 3, BINS - 1, BINS])
def test_few_values_are_all_told_apart(kinds):
    rng = np.random.default_rng(0)
    values = np.sort(rng.standard_cauchy(kinds))
    place = np.concatenate([np.arange(kinds), np.minimum(rng.geometric(0.3, 3000), kinds) - 1])  # some of them rare
    edges, bins = parted(values[place])
    assert len(edges) == kinds - 1
    assert np.array_equal(bins, place)


def alone(column, bins, often):
    """How many values occur so often; they share their bin with no other."""
    _, place, counts = np.unique(column.astype(np.float32), return_inverse=True, return_counts=True)
    frequent = np.flatnonzero(counts >= often)
    for k in frequent:
        assert set(place[bins == bins[place == k][0]]) == {k}
    return len(frequent)


def test_frequent_values_are_alone_and_the_others_parted_evenly():
    """Nine entries of ten have the same value: quantiles would leave 25 bins to the others."""
    rng = np.random.default_rng(0)
    column = rng.permutation(np.concatenate([np.full(18_000, 0.5), rng.pareto(1.0, 2000)]))
    edges, bins = parted(column)
    assert alone(column, bins, 100) == 1
    assert np.bincount(bins[column != 0.5]).max() <= 1 + 2000 / (BINS - TAIL_BINS - 2)
    assert_largest_are_told_apart(column, edges)


def test_small_counts_are_alone_and_large_ones_told_apart():
    column = np.random.default_rng(0).zipf(1.5, 20_000).astype(np.float64)
    edges, bins = parted(column)
    assert alone(column, bins, 20_000 / (BINS - TAIL_BINS)) >= 10
    assert_largest_are_told_apart(column, edges)


def test_frequent_values_among_others_take_nothing_from_the_ends():
    """Each of them is a bin between two others, and costs two edges."""
    rng = np.random.default_rng(0)
    often = np.repeat(np.linspace(1, 3, 60), 200)
    column = rng.permutation(np.concatenate([often, 0.5 + rng.pareto(1.0, 8000)]))
    edges, bins = parted(column)
    assert alone(column, bins, 200) == 60
    assert_largest_are_told_apart(column, edges)


def test_bins_are_made_from_some_entries_only(monkeypatch):
    monkeypatch.setattr(module, "MAX_BINNED_ENTRIES", 1000)
    column = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    assert np.array_equal(edges_of(column), edges_of(column[::6].copy()))
