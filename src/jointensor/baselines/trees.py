"""Boosted regression trees on what is known of the labels of an entry: what an analyst does with a wide table.

Of every label, and of every pair of labels, a tree sees two columns: the mean value of the training entries that have
it, shrunk, and how many those are; and of every mode the position of the label. How often labels occur is often
telling (who posts much, posts shortly), and no factor model sees it.

An entry must not find its own value in its columns: means of training entries leave out the part of the entries that
theirs is in (the mean of all, which they are shrunk to, does not: it is the same for everybody).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.baselines.tables import MAX_CELLS, Table
from jointensor.data.sparse import SparseTensor, cell_keys, distinct_keys
from jointensor.data.split import groups_of
from jointensor.kernels.numba_trees import BINS, ask_trees, grow_tree
from jointensor.threads import in_threads

SHRINKAGE = 5.0
"""Entries of average value that are added to every mean."""

PARTS = 20
"""Parts of the training entries that means are taken without."""

LEAVES, LEAST, ROUNDS = 31, 20, 2000
"""Leaves of a tree, entries in a leaf, and most trees."""

RATE, FAST, MANY = 0.05, 0.1, 300_000
"""Share of a tree that is taken; and of trees that are grown on the CPU from more than so many entries."""

PATIENCE = 40
"""Trees that may follow the best number of them before growing stops."""

LOOKED_AT = 10
"""Trees after which a GPU is asked how they validate."""

DEFAULT_ROUNDS = 100
"""Trees where there are no validation entries to count them by."""

MOST, MOST_THERE, CHECKED, SAMPLE = 1_000_000, 4_000_000, 200_000, 200_000
"""Entries that trees are grown from on the CPU and on a GPU, are stopped by, and that bins are made for; means and
counts are those of all."""

TAIL = 40
"""Bins that are kept for the ends of a column: squared errors are made by few, large values."""

ROOT = np.zeros(1, dtype=np.int64)

CHUNK = 1 << 18
"""Entries whose columns are there at a time."""


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


@dataclass(frozen=True)
class Trees:
    """A mean and a sum of trees."""

    mean: float
    encoders: tuple[Encoder, ...]
    edges: NDArray[np.float32]
    """Values between bins, ``(columns, BINS - 1)``; infinite where there are fewer bins."""
    nodes: NDArray[np.int32]
    """Of all trees, ``(nodes, 4)``: column or -1, last bin of the left side, left and right child within the tree."""
    values: NDArray[np.float64]
    """Of all leaves, ``(nodes,)``."""
    roots: NDArray[np.int64]
    """First node of every tree."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Mean and trees, ``(entries, modes)`` → ``(entries,)``; a label never seen has no entries, and their mean."""
        indices = np.asarray(indices)
        answer = np.full(len(indices), self.mean)
        for start in range(0, len(indices), CHUNK):
            part = indices[start : start + CHUNK]
            bins = binned(columns_of(self.encoders, part), self.edges)  # (entries, columns)
            ask_trees(bins, self.nodes, self.values, self.roots, answer[start : start + CHUNK])
        return answer

    def n_parameters(self) -> int:
        """The mean, two numbers per combination, and the nodes."""
        return 1 + sum(2 * len(one.table.keys) for one in self.encoders) + len(self.values)


class Plan(NamedTuple):
    """How trees are grown."""

    most: int
    """Trees."""
    rate: float
    """Share of a tree that is taken."""
    end: float = math.inf
    """When, by the clock, no further tree is grown."""


def fit_trees(
    train: SparseTensor,
    valid: SparseTensor,
    *,
    groups: Sequence[int] = (),
    seed: int = 0,
    seconds: float = math.inf,
    rounds: int = DEFAULT_ROUNDS,
    device: torch.device | None = None,
) -> Trees:
    """Grow trees while the validation error falls.

    Parameters
    ----------
    train
        Entries to learn from.
    valid
        Entries that say how many trees; where there are none it is ``rounds``, or as many as find a split.
    groups
        Modes whose labels, taken together, will be new in what is asked: means leave out all entries that share them.
    seed
        Of the parts that means are taken without, and of the entries that trees are grown from.
    seconds
        After which no further tree is grown.
    rounds
        How many trees, where no validation entries say it.
    device
        Where trees are grown; the CPU where it is not said, or there are no kernels for it.
    """
    end = time.monotonic() + seconds
    generator = np.random.default_rng([seed, 31])
    count, member = groups_of(train, groups)
    part = generator.integers(PARTS, size=count)[member]
    encoders, own = _encode(train, part)
    on_gpu = device is not None and device.type == "cuda" and find_spec("triton") is not None
    chosen = _some(len(train), MOST_THERE if on_gpu else MOST, generator)
    valid = valid.take(_some(len(valid), CHECKED, generator))
    columns = [column[chosen] for column in own + _positions(train.indices)]
    edges = np.stack(in_threads(edges_of, columns))  # (columns, BINS - 1)
    bins, checked = binned(columns, edges), binned(columns_of(encoders, valid.indices), edges)
    mean = float(train.values.mean(dtype=np.float64))
    plan = Plan(ROUNDS if len(valid) else rounds, RATE if on_gpu or len(train) <= MANY else FAST, end)
    grow = partial(_grow_there, device=device) if on_gpu else _grow
    nodes, values = grow(bins, train.values[chosen] - mean, checked, valid.values - mean, plan)
    sizes = [len(one) for one in values]
    return Trees(
        mean, encoders, edges, np.concatenate(nodes), np.concatenate(values),
        np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
    )  # fmt: skip


def _some(count: int, most: int, generator: np.random.Generator) -> NDArray[np.integer]:
    """Places of all entries, or of some, in order."""
    return np.arange(count) if count <= most else np.sort(generator.permutation(count)[:most])


def _grow(
    bins: NDArray[np.uint8],
    values: NDArray[np.floating],
    checked: NDArray[np.uint8],
    truth: NDArray[np.floating],
    plan: Plan,
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.float64]]]:
    """Nodes and values of the trees that validate best; at least one. Bins are ``(entries, columns)``."""
    left, right = values.astype(np.float64), truth.astype(np.float64)
    by_column = np.ascontiguousarray(bins.T)
    grown: list[tuple[NDArray[np.int32], NDArray[np.float64]]] = []
    best, lowest = 1, math.inf
    for count in range(1, 1 + plan.most):
        nodes, leaves = np.zeros((2 * LEAVES - 1, 4), dtype=np.int32), np.zeros(2 * LEAVES - 1)
        made = grow_tree(by_column, left, LEAVES, LEAST, nodes, leaves)
        nodes, leaves = nodes[:made], plan.rate * leaves[:made]
        grown.append((nodes, leaves))
        ask_trees(bins, nodes, -leaves, ROOT, left)
        ask_trees(checked, nodes, -leaves, ROOT, right)
        error = float(right @ right) if len(right) else -count
        if error < lowest:
            best, lowest = count, error
        # nothing is left that a split could explain, or nothing is gained, or there is no time
        if made == 1 or count - best >= PATIENCE or time.monotonic() > plan.end:
            break
    return [nodes for nodes, _ in grown[:best]], [leaves for _, leaves in grown[:best]]


def _grow_there(
    bins: NDArray[np.uint8],
    values: NDArray[np.floating],
    checked: NDArray[np.uint8],
    truth: NDArray[np.floating],
    plan: Plan,
    device: torch.device | None = None,
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.float64]]]:
    """The same on a GPU; how they validate is looked at every few trees."""
    from jointensor.kernels.triton_trees import SPLITS, Boosting  # noqa: PLC0415 - only where there is a GPU

    both = torch.from_numpy(np.concatenate([bins, checked])).to(device).T.contiguous()  # (columns, entries)
    left = torch.from_numpy(np.concatenate([values, truth]).astype(np.float32)).to(device)
    boosting = Boosting(both, left, len(bins), LEAVES, LEAST, plan.rate)
    grown: list[tuple[torch.Tensor, ...]] = []
    errors: list[float] = []
    while len(grown) < plan.most:
        for _ in range(min(LOOKED_AT, plan.most - len(grown))):
            boosting.grow()
            made = (boosting.nodes, boosting.values, boosting.next[SPLITS], boosting.error)
            grown.append(tuple(one.clone() for one in made))
        single = [k for k, (_, _, splits, _) in enumerate(grown) if k >= len(errors) and not int(splits)]
        grown = grown[: single[0] + 1] if single else grown  # nothing is left that a split could explain
        errors += [float(error) for *_, error in grown[len(errors) :]]
        if single or time.monotonic() > plan.end or (len(truth) and len(errors) - int(np.argmin(errors)) > PATIENCE):
            break
    best = 1 + int(np.argmin(errors)) if len(truth) else len(grown)
    sizes = [2 * int(splits) + 1 for _, _, splits, _ in grown[:best]]
    nodes = [one[0][:size].cpu().numpy() for one, size in zip(grown, sizes, strict=False)]
    return nodes, [plan.rate * one[1][:size].double().cpu().numpy() for one, size in zip(grown, sizes, strict=False)]


def subsets_of(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Modes whose labels are looked at together: each alone, and pairs."""
    every = [s for k in (1, 2) if k < len(shape) for s in combinations(range(len(shape)), k)]
    return [s for s in every if math.prod(shape[n] for n in s) < MAX_CELLS]


def _encode(train: SparseTensor, part: NDArray[np.integer]) -> tuple[tuple[Encoder, ...], list[NDArray[np.float32]]]:
    """Encoders of all training entries, and the columns of those entries without the part that each is in."""
    values = train.values.astype(np.float64)
    mean = float(values.mean())

    def encoded(modes: tuple[int, ...]) -> tuple[Encoder, list[NDArray[np.float32]]]:
        sizes = tuple(train.shape[n] for n in modes)
        keys, rows = distinct_keys(cell_keys(train.indices[:, modes], sizes), math.prod(sizes))
        sums, counts = np.bincount(rows, values), np.bincount(rows).astype(np.float64)
        effects = np.append((sums + SHRINKAGE * mean) / (counts + SHRINKAGE), mean)
        encoder = Encoder(Table(modes, sizes, keys, effects), np.append(counts, 0).astype(np.float32))
        shared, where = distinct_keys(rows * PARTS + part, len(keys) * PARTS)  # combination and part, (entries,)
        other = sums[rows] - np.bincount(where, values, len(shared))[where]
        many = counts[rows] - np.bincount(where, minlength=len(shared))[where]
        own = ((other + SHRINKAGE * mean) / (many + SHRINKAGE)).astype(np.float32)
        return encoder, [own, many.astype(np.float32)]

    found = in_threads(encoded, subsets_of(train.shape))
    return tuple(one for one, _ in found), [column for _, two in found for column in two]


def columns_of(encoders: Sequence[Encoder], indices: NDArray[np.integer]) -> list[NDArray[np.float32]]:
    """What trees see of entries: means and counts, then positions."""
    found = in_threads(lambda one: one.columns(indices), encoders)
    return [column for two in found for column in two] + _positions(indices)


def _positions(indices: NDArray[np.integer]) -> list[NDArray[np.float32]]:
    return [indices[:, n].astype(np.float32) for n in range(indices.shape[1])]


def edges_of(column: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values that part a column into bins, ``(BINS - 1,)``.

    Values that many entries share have a bin of their own, the others bins of about as many entries each; and there
    are more of them towards both ends.
    """
    column = column[:: 1 + len(column) // SAMPLE]
    values, counts = np.unique(column, return_counts=True)
    between = values[:-1]
    if len(values) > BINS:
        ends = 1 - 0.5 ** np.linspace(6, math.log2(len(column)), 3 * TAIL // 4)  # half of the rest, half of that, …
        tails = np.quantile(column, np.concatenate([ends, 1 - ends[::3]]), method="lower")
        for bins in range(BINS - TAIL, 0, -8):  # frequent values that lie apart from each other cost two edges each
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
