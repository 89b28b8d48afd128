"""Target encoding: the columns of an entry for boosted trees, from the training values of its labels.

For every label, every pair of labels, and all labels but one there are two columns: the mean value of the training
entries that have them, shrunk, and their number; and for every mode the position of the label. All labels but one are
used where entries share them and where two of them do not determine the others: such entries are often much the same
(one message to several people, one place in the hours of a day).

An entry must not find its own value in its columns: means of training entries leave out the fold that the entry is in.
(The mean of all, to which they are shrunk, does not: it is the same for every entry.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys
from jointensor.kernels.numba_trees import BINS
from jointensor.predictors.base import MAX_CELLS
from jointensor.predictors.tables import Table
from jointensor.threads import in_threads

SHRINKAGE, CLOSE_SHRINKAGE = 5.0, 0.5
"""Entries of average value that are added to every mean; and to means of entries that share all labels but one, which
are more alike."""

MIN_SHARING = 1.25
"""Entries per combination of all labels but one, on average, for these columns to be used: else most have no other."""

FOLDS = 20
"""Folds of the training entries that means are taken without."""

TAIL_BINS = 40
"""Bins that are reserved for the ends of a column: squared errors are made by few, large values."""

MAX_BINNED_ENTRIES = 200_000
"""Entries, about, from which bins are made."""

Columns = list[NDArray[np.float32]]


@dataclass(frozen=True)
class Encoder:
    """Mean and number of training entries by the labels of some modes."""

    table: Table
    """Shrunk means; the last one is for combinations that were never observed."""
    counts: NDArray[np.float32]
    """``(combinations + 1,)``, the last one 0."""

    def columns(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The two columns of entries."""
        rows = self.table.find(indices)
        return self.table.effects[rows].astype(np.float32), self.counts[rows]


def subsets_of(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Modes whose labels may be encoded together: each alone, pairs, and all but one."""
    counts = sorted({1, 2, len(shape) - 1})
    every = [s for k in counts if 0 < k < len(shape) for s in combinations(range(len(shape)), k)]
    return [s for s in every if math.prod(shape[n] for n in s) < MAX_CELLS]


def encode(train: SparseTensor, fold: NDArray[np.integer]) -> tuple[tuple[Encoder, ...], Columns]:
    """Encoders from all training entries, and the columns of these entries, each without the fold that it is in."""
    every = subsets_of(train.shape)
    found = in_threads(lambda modes: _encoded(train, fold, modes, {}), [s for s in every if len(s) <= 2])
    cells = {one.table.modes: len(one.table.keys) for one, _ in filter(None, found)}
    found += in_threads(lambda modes: _encoded(train, fold, modes, cells), [s for s in every if len(s) > 2])
    kept = list(filter(None, found))
    return tuple(encoder for encoder, _ in kept), [column for _, two in kept for column in two]


def _encoded(
    train: SparseTensor, fold: NDArray[np.integer], modes: tuple[int, ...], cells: Mapping[tuple[int, ...], int]
) -> tuple[Encoder, Columns] | None:
    """Encoder and columns of some modes; ``None`` for three or more that carry no more than one entry or two labels do.

    ``cells``: how many combinations the labels of two modes form.
    """
    sizes, values = tuple(train.shape[n] for n in modes), train.values.astype(np.float64)
    mean, shrinkage = float(values.mean()), SHRINKAGE if len(modes) <= 2 else CLOSE_SHRINKAGE
    keys, rows = distinct_keys(cell_keys(train.indices[:, modes], sizes), math.prod(sizes))
    if len(modes) > 2 and (
        len(train) < MIN_SHARING * len(keys) or len(keys) in [cells.get(two) for two in combinations(modes, 2)]
    ):
        return None
    sums, counts = np.bincount(rows, values), np.bincount(rows).astype(np.float64)
    effects = np.append((sums + shrinkage * mean) / (counts + shrinkage), mean)
    encoder = Encoder(Table(modes, sizes, keys, effects), np.append(counts, 0).astype(np.float32))
    shared, where = distinct_keys(rows * FOLDS + fold, len(keys) * FOLDS)  # combination and fold, (entries,)
    other = sums[rows] - np.bincount(where, values, len(shared))[where]
    many = counts[rows] - np.bincount(where, minlength=len(shared))[where]
    own = ((other + shrinkage * mean) / (many + shrinkage)).astype(np.float32)
    return encoder, [own, many.astype(np.float32)]


def columns_of(encoders: Sequence[Encoder], indices: NDArray[np.integer]) -> Columns:
    """Columns of any entries: means and counts, then positions."""
    found = in_threads(lambda one: one.columns(indices), encoders)
    return [column for two in found for column in two] + positions(indices)


def positions(indices: NDArray[np.integer]) -> Columns:
    """Labels as numbers, one column per mode."""
    return [indices[:, n].astype(np.float32) for n in range(indices.shape[1])]


def edges_of(column: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values that divide a column into bins, ``(BINS - 1,)``; infinite where there are fewer.

    Values that many entries share have a bin of their own, the others bins of about as many entries each; and there
    are more of them towards both ends.
    """
    column = column[:: 1 + len(column) // MAX_BINNED_ENTRIES]
    values, counts = np.unique(column, return_counts=True)
    between = values[:-1]
    if len(values) > BINS:
        ends = 1 - 0.5 ** np.linspace(
            6, math.log2(len(column)), 3 * TAIL_BINS // 4
        )  # half of the rest, half of that, …
        tails = np.quantile(column, np.concatenate([ends, 1 - ends[::3]]), method="lower")
        for bins in range(
            BINS - TAIL_BINS, 0, -8
        ):  # frequent values that lie apart from each other cost two edges each
            between = np.union1d(_evenly(values, counts, bins), tails[tails < values[-1]])
            if len(between) < BINS:
                break
    return np.pad(between, (0, BINS - 1 - len(between)), constant_values=np.inf).astype(np.float32)


def _evenly(values: NDArray[np.float32], counts: NDArray[np.integer], bins: int) -> NDArray[np.float32]:
    """Last value of every bin but the last: bins hold as many entries each, or one value that has more than that."""
    alone = np.zeros(len(values), dtype=np.bool_)
    while True:
        size = counts[~alone].sum() / max(bins - alone.sum(), 1)
        more = alone | (counts >= size)
        if (more == alone).all() or more.sum() >= bins - 1:
            break
        alone = more
    filled = np.cumsum(np.where(alone, 0, counts)) // size
    last = (np.diff(filled) > 0) | alone[:-1] | alone[1:]
    return values[:-1][last]


def binned(columns: Sequence[NDArray[np.float32]], edges: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Number of the bin of every value, ``(entries, columns)``: how many edges lie below it."""
    bins = np.empty((len(columns[0]), len(columns)), dtype=np.uint8)

    def fill(c: int) -> None:
        bins[:, c] = np.searchsorted(edges[c], columns[c])

    in_threads(fill, range(len(columns)))
    return bins
