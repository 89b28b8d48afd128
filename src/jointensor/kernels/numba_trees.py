"""Evaluating regression trees over binned columns, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.numba_threads import parallel_loop

BINS = 256
"""Bins of a column: one byte."""

MAX_LEAVES = 32
"""Leaves of a tree: one bit each."""

BLOCK = 512
"""Entries that go through a tree together: their bins, and the tree, stay in the cache of a core."""

ALL, ONE = np.uint32(0xFFFFFFFF), np.uint64(1)
DE_BRUIJN = np.uint32(0x077CB531)
"""Times a power of two, its five highest bits differ for each: a way from a bit to its position."""
BIT = np.zeros(MAX_LEAVES, np.int64)
BIT[[((int(DE_BRUIJN) << bit) & 0xFFFFFFFF) >> 27 for bit in range(MAX_LEAVES)]] = np.arange(MAX_LEAVES)


@njit(cache=CACHE, nogil=True)
def _spans(nodes):  # type: ignore[no-untyped-def]
    """First leaf below every node of a tree, counted from the left, and the number of leaves."""
    first, many = np.zeros(len(nodes), np.int64), np.ones(len(nodes), np.int64)
    for at in range(len(nodes) - 1, -1, -1):  # children come after their parents
        if nodes[at, 0] >= 0:
            many[at] = many[nodes[at, 2]] + many[nodes[at, 3]]
    for at in range(len(nodes)):
        if nodes[at, 0] >= 0:
            first[nodes[at, 2]] = first[at]
            first[nodes[at, 3]] = first[at] + many[nodes[at, 2]]
    return first, many


@njit(cache=CACHE, nogil=True)
def _reached(nodes, column, first, many, masks) -> None:  # type: ignore[no-untyped-def]
    """Leaves that an entry can still reach by its bin in one column, a bit each, ``(BINS,)``."""
    masks[:] = ALL
    for at in range(len(nodes)):
        if nodes[at, 0] == column:  # entries above the bound do not reach the left side
            child = nodes[at, 2]
            below = ((ONE << np.uint64(many[child])) - ONE) << np.uint64(first[child])
            others = np.uint32(~below & np.uint64(ALL))
            for b in range(max(nodes[at, 1] + 1, 0), BINS):
                masks[b] &= others


@njit(cache=CACHE, nogil=True)
def _tables(nodes, values, roots, columns):  # type: ignore[no-untyped-def]
    """Lookup tables: ``masks`` of every tree and column that it splits, which column that is, where those of each tree
    begin, and values of its leaves from the left, ``(trees, MAX_LEAVES)``.
    """
    begin, leaves = np.zeros(len(roots) + 1, np.int64), np.zeros((len(roots), MAX_LEAVES))
    splits = np.zeros((len(roots), columns), np.bool_)
    for t in range(len(roots)):
        end = roots[t + 1] if t + 1 < len(roots) else len(nodes)
        for at in range(roots[t], end):
            if nodes[at, 0] >= 0:
                splits[t, nodes[at, 0]] = True
        begin[t + 1] = begin[t] + splits[t].sum()
    masks, where = np.empty((begin[-1], BINS), np.uint32), np.empty(begin[-1], np.int64)
    for t in range(len(roots)):
        end = roots[t + 1] if t + 1 < len(roots) else len(nodes)
        tree, k = nodes[roots[t] : end], begin[t]
        first, many = _spans(tree)
        for at in range(len(tree)):
            if tree[at, 0] < 0:
                leaves[t, first[at]] = values[roots[t] + at]
        for column in range(columns):
            if splits[t, column]:
                where[k] = column
                _reached(tree, column, first, many, masks[k])
                k += 1
    return masks, where, begin, leaves


def add_trees(
    bins: NDArray[np.uint8],
    nodes: NDArray[np.int32],
    values: NDArray[np.float64],
    roots: NDArray[np.int64],
    predictions: NDArray[np.float64],
) -> None:
    """Add the values of all trees for every entry to ``predictions``; bins ``(entries, columns)``, nodes of all trees
    ``(nodes, 4)``: column (-1 in a leaf), last bin of the left side, left and right child within the tree; ``roots``
    the first node of each tree.

    Walking from node to node would wait for memory at every step. Instead, every column in turn rules out the leaves
    that its bin cannot reach; the leftmost leaf that remains is where the walk would end.
    """
    with parallel_loop():
        _add_trees(bins, nodes, values, roots, predictions)


@njit(parallel=True, cache=CACHE, nogil=True)
def _add_trees(bins, nodes, values, roots, predictions) -> None:  # type: ignore[no-untyped-def]
    masks, where, begin, leaves = _tables(nodes, values, roots, bins.shape[1])
    for block in prange((len(bins) + BLOCK - 1) // BLOCK):
        chunk = bins[block * BLOCK : (block + 1) * BLOCK].T.copy()  # (columns, entries)
        count = chunk.shape[1]
        reached, total = np.empty(count, np.uint32), np.zeros(count)
        for t in range(len(roots)):
            reached[:] = ALL
            for k in range(begin[t], begin[t + 1]):
                mask, column = masks[k], chunk[where[k]]
                for i in range(count):
                    reached[i] &= mask[column[i]]
            value = leaves[t]
            for i in range(count):
                lowest = reached[i] & (~reached[i] + np.uint32(1))
                total[i] += value[BIT[np.uint32(lowest * DE_BRUIJN) >> np.uint32(27)]]
        predictions[block * BLOCK : (block + 1) * BLOCK] += total
