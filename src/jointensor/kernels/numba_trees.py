"""Growing and asking regression trees, compiled by numba: splits are sought in histograms of binned columns."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from jointensor.kernels.numba_rows import CACHE

BINS = 256

MOST_LEAVES = 32
"""Leaves that a tree may have: one bit each."""

BLOCK = 512
"""Entries that ask a tree together: their bins, and the tree, stay near."""

ALL, ONE = np.uint32(0xFFFFFFFF), np.uint64(1)
DE_BRUIJN = np.uint32(0x077CB531)
"""Times a power of two its five highest bits are another number for each."""
BIT = np.zeros(MOST_LEAVES, np.int64)
BIT[[((int(DE_BRUIJN) << bit) & 0xFFFFFFFF) >> 27 for bit in range(MOST_LEAVES)]] = np.arange(MOST_LEAVES)


@njit(parallel=True, cache=CACHE, nogil=True)
def _histograms(bins, rows, left, sums, counts):  # type: ignore[no-untyped-def]
    """Sum and number of what is left by column and bin, ``(columns, BINS)`` each, over some entries."""
    known = left[rows]
    for c in prange(bins.shape[0]):
        column, both = bins[c], np.zeros((BINS, 2))
        for i in range(len(rows)):
            b = column[rows[i]]
            both[b, 0] += known[i]
            both[b, 1] += 1.0
        sums[c], counts[c] = both[:, 0], both[:, 1]


@njit(cache=CACHE, nogil=True)
def _best_split(sums, counts, least):  # type: ignore[no-untyped-def]
    """Gain, column and last bin of the left side; no gain where no side can have ``least`` entries."""
    best, column, bound = 0.0, -1, -1
    whole, many = sums[0].sum(), counts[0].sum()
    for c in range(sums.shape[0]):
        total, count = 0.0, 0.0
        for b in range(BINS - 1):
            total += sums[c, b]
            count += counts[c, b]
            if counts[c, b] == 0.0 or count < least or many - count < least:
                continue
            gain = total**2 / count + (whole - total) ** 2 / (many - count) - whole**2 / many
            if gain > best:
                best, column, bound = gain, c, b
    return best, column, bound


@njit(cache=CACHE, nogil=True)
def _part(rows, column, bound, other):  # type: ignore[no-untyped-def]
    """Rows up to the bound first, in place and in order; how many there are."""
    low, high = 0, 0
    for row in rows:
        if column[row] <= bound:
            rows[low] = row
            low += 1
        else:
            other[high] = row
            high += 1
    rows[low:] = other[:high]
    return low


@njit(cache=CACHE, nogil=True)
def grow_tree(bins, left, most, least, nodes, values):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Grow one tree for what is ``left`` of the values, leaf by leaf where it gains most.

    bins ``(columns, entries)``, left ``(entries,)``; nodes ``(2 most - 1, 4)``: column (-1 in a leaf), last bin of
    the left side, left and right child; values ``(2 most - 1,)``. Returns the number of nodes.
    """
    columns = bins.shape[0]
    rows = np.arange(bins.shape[1]).astype(np.int32)
    other = np.empty_like(rows)
    sums, counts = np.empty((most, columns, BINS)), np.empty((most, columns, BINS))
    begin, end, node = np.zeros(most, np.int64), np.zeros(most, np.int64), np.zeros(most, np.int64)
    gains, where, bounds = np.zeros(most), np.zeros(most, np.int64), np.zeros(most, np.int64)
    end[0] = len(rows)
    _histograms(bins, rows, left, sums[0], counts[0])
    gains[0], where[0], bounds[0] = _best_split(sums[0], counts[0], least)
    leaves, made = 1, 1
    nodes[0, 0] = -1
    while leaves < most:
        one = np.argmax(gains[:leaves])
        if gains[one] <= 0.0:
            break
        a, b = begin[one], end[one]
        middle = a + _part(rows[a:b], bins[where[one]], bounds[one], other)
        parent = node[one]
        nodes[parent, 0], nodes[parent, 1], nodes[parent, 2], nodes[parent, 3] = where[one], bounds[one], made, made + 1
        nodes[made, 0] = nodes[made + 1, 0] = -1
        # the fewer are counted, the others are what is left of their parent
        new = leaves
        small, large = (one, new) if middle - a <= b - middle else (new, one)
        if small == one:
            sums[new], counts[new] = sums[one], counts[one]
            _histograms(bins, rows[a:middle], left, sums[one], counts[one])
        else:
            _histograms(bins, rows[middle:b], left, sums[new], counts[new])
        sums[large] -= sums[small]
        counts[large] -= counts[small]
        begin[one], end[one], node[one] = a, middle, made
        begin[new], end[new], node[new] = middle, b, made + 1
        for leaf in (one, new):
            gains[leaf], where[leaf], bounds[leaf] = _best_split(sums[leaf], counts[leaf], least)
        leaves += 1
        made += 2
    for leaf in range(leaves):
        total = 0.0
        for row in rows[begin[leaf] : end[leaf]]:
            total += left[row]
        values[node[leaf]] = total / max(end[leaf] - begin[leaf], 1)
    return made


@njit(cache=CACHE, nogil=True)
def _spans(nodes):  # type: ignore[no-untyped-def]
    """First leaf below every node of a tree, counted from the left, and how many there are."""
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
        if nodes[at, 0] == column:  # above its bound nobody comes to the left side
            child = nodes[at, 2]
            below = ((ONE << np.uint64(many[child])) - ONE) << np.uint64(first[child])
            others = np.uint32(~below & np.uint64(ALL))
            for b in range(max(nodes[at, 1] + 1, 0), BINS):
                masks[b] &= others


@njit(cache=CACHE, nogil=True)
def _tables(nodes, values, roots, columns):  # type: ignore[no-untyped-def]
    """What is asked of trees: ``masks`` of every tree and column that it looks at, which column that is, where those
    of each tree begin, and values of its leaves from the left, ``(trees, MOST_LEAVES)``.
    """
    begin, leaves = np.zeros(len(roots) + 1, np.int64), np.zeros((len(roots), MOST_LEAVES))
    looked = np.zeros((len(roots), columns), np.bool_)
    for t in range(len(roots)):
        end = roots[t + 1] if t + 1 < len(roots) else len(nodes)
        for at in range(roots[t], end):
            if nodes[at, 0] >= 0:
                looked[t, nodes[at, 0]] = True
        begin[t + 1] = begin[t] + looked[t].sum()
    masks, where = np.empty((begin[-1], BINS), np.uint32), np.empty(begin[-1], np.int64)
    for t in range(len(roots)):
        end = roots[t + 1] if t + 1 < len(roots) else len(nodes)
        tree, k = nodes[roots[t] : end], begin[t]
        first, many = _spans(tree)
        for at in range(len(tree)):
            if tree[at, 0] < 0:
                leaves[t, first[at]] = values[roots[t] + at]
        for column in range(columns):
            if looked[t, column]:
                where[k] = column
                _reached(tree, column, first, many, masks[k])
                k += 1
    return masks, where, begin, leaves


@njit(parallel=True, cache=CACHE, nogil=True)
def ask_trees(bins, nodes, values, roots, answer) -> None:  # type: ignore[no-untyped-def]
    """Add what all trees say of every entry to ``answer``; bins ``(entries, columns)``, nodes of all trees in a row,
    ``roots`` the first of each.

    Nobody walks from node to node, which would wait for memory at every step: columns say one after the other which
    leaves can still be reached, and the leftmost one that all agree on is where the walk would end.
    """
    masks, where, begin, leaves = _tables(nodes, values, roots, bins.shape[1])
    for block in prange((len(bins) + BLOCK - 1) // BLOCK):
        some = bins[block * BLOCK : (block + 1) * BLOCK].T.copy()  # (columns, entries)
        count = some.shape[1]
        reached, total = np.empty(count, np.uint32), np.zeros(count)
        for t in range(len(roots)):
            reached[:] = ALL
            for k in range(begin[t], begin[t + 1]):
                mask, column = masks[k], some[where[k]]
                for i in range(count):
                    reached[i] &= mask[column[i]]
            said = leaves[t]
            for i in range(count):
                lowest = reached[i] & (~reached[i] + np.uint32(1))
                total[i] += said[BIT[np.uint32(lowest * DE_BRUIJN) >> np.uint32(27)]]
        answer[block * BLOCK : (block + 1) * BLOCK] += total
