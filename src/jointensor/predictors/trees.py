"""Boosted regression trees on what is known of the labels of an entry: what an analyst does with a wide table.

A tree sees the mean value of the entries that share labels with this one, and their number
(:mod:`~jointensor.predictors.target_encoding`). The number of entries of a label often carries information (frequent
posters write short posts), and no factor model sees it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.split import groups_of
from jointensor.data.tensor import SparseTensor
from jointensor.kernels.numba_trees import BINS, MOST_LEAVES, ask_trees, grow_tree
from jointensor.predictors.base import PREDICTORS, Packed, Predictor, is_array, require
from jointensor.predictors.tables import modes_needed, pack_table_list, unpack_table_list
from jointensor.predictors.target_encoding import PARTS, Encoder, binned, columns_of, edges_of, encode, positions
from jointensor.threads import in_threads

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

MOST, MOST_THERE, CHECKED = 1_000_000, 4_000_000, 200_000
"""Entries that trees are grown from on the CPU and on a GPU, and are stopped by; means and counts are those of all."""

ROOT = np.zeros(1, dtype=np.int64)

CHUNK = 1 << 18
"""Entries whose columns are there at a time."""


ARRAYS = ("edges", "nodes", "values", "roots")


@PREDICTORS.register("trees")
@dataclass(frozen=True)
class Trees(Predictor):
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

    def supports(self, n_modes: int) -> bool:
        """As many modes as there are columns for."""
        return modes_needed(one.table for one in self.encoders) == n_modes

    def explain(self) -> dict[str, Any]:
        """How many trees, and which modes are encoded together."""
        subsets = [list(one.table.modes) for one in self.encoders]
        return super().explain() | {"trees": len(self.roots), "subsets": subsets}

    def pack(self) -> Packed:
        """Encoders and nodes."""
        packed = pack_table_list([one.table for one in self.encoders])
        packed.config["mean"] = self.mean
        packed.arrays.update({f"{n}.counts": torch.as_tensor(one.counts) for n, one in enumerate(self.encoders)})
        packed.arrays.update({name: torch.as_tensor(getattr(self, name)) for name in ARRAYS})
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored trees, if every node leads to one of its tree."""
        tables = unpack_table_list(packed)
        encoders = tuple(Encoder(table, packed.array(f"{n}.counts")) for n, table in enumerate(tables))
        require(all(one.counts.shape == one.table.effects.shape for one in encoders), "counts of trees")
        edges, nodes, values, roots = map(packed.array, ARRAYS)
        _check_nodes(2 * len(encoders) + modes_needed(tables), edges, nodes, values, roots)
        return cls(float(packed.config["mean"]), encoders, edges, nodes, values, roots)


def _check_nodes(
    columns: int, edges: NDArray[Any], nodes: NDArray[Any], values: NDArray[Any], roots: NDArray[Any]
) -> None:
    """Every node but a root is the child of one before it in its tree, and no tree has more leaves than there are bits
    to mark them.
    """
    require(is_array(edges, np.float32, columns, BINS - 1), "edges of trees")
    require(nodes.ndim == 2 and is_array(nodes, np.int32, len(nodes), 4), "nodes of trees")
    require(is_array(values, np.float64, len(nodes)), "values of trees")
    require(roots.ndim == 1 and roots.dtype == np.int64, "roots of trees")
    if not len(roots):
        return
    require(roots[0] == 0 and (np.diff(roots) > 0).all() and roots[-1] < len(nodes), "roots of trees")
    position = np.arange(len(nodes))
    tree = np.searchsorted(roots, position, side="right") - 1
    ends = np.append(roots[1:], len(nodes))
    inner = nodes[:, 0] >= 0
    children = nodes[inner, 2:].astype(np.int64) + roots[tree[inner], None]
    later = (children > position[inner, None]) & (children < ends[tree[inner], None])
    require((nodes[:, 0] < columns).all() and later.all(), "nodes of trees")
    require(np.array_equal(np.sort(children, axis=None), np.setdiff1d(position, roots)), "nodes of trees")
    require((np.bincount(tree[~inner]) <= MOST_LEAVES).all(), "leaves of trees")


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
    encoders, own = encode(train, part)
    on_gpu = device is not None and device.type == "cuda" and find_spec("triton") is not None
    chosen = _some(len(train), MOST_THERE if on_gpu else MOST, generator)
    valid = valid.take(_some(len(valid), CHECKED, generator))
    columns = [column[chosen] for column in own + positions(train.indices)]
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
