"""Boosted regression trees on target-encoded labels, grown by LightGBM.

A tree sees the mean value of the training entries that share labels with an entry, and their number
(:mod:`~jointensor.predictors.target_encoding`). The number of entries of a label often carries information (frequent
posters write short posts), and no factor model sees it.

LightGBM gets the numbers of our bins as its columns: bins that follow the tails of a column predict heavy-tailed values
better than its own. Its trees are stored and evaluated as plain arrays, so that loading a file never runs its parser of
model texts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.split import groups_of
from jointensor.data.tensor import SparseTensor
from jointensor.kernels.numba_trees import BINS, MAX_LEAVES, add_trees
from jointensor.predictors.base import CHUNK, PREDICTORS, Packed, Predictor, is_array, require
from jointensor.predictors.tables import modes_needed, pack_table_list, unpack_table_list
from jointensor.predictors.target_encoding import FOLDS, Encoder, binned, columns_of, edges_of, encode, positions
from jointensor.threads import in_threads

LEAVES, MIN_LEAF_ENTRIES, MAX_TREES = 31, 20, 2000
"""Leaves of a tree, training entries in a leaf, and trees."""

LEARNING_RATE, FAST_LEARNING_RATE, MAX_SLOW_ENTRIES = 0.05, 0.1, 300_000
"""Share of every tree that is added; and the one used with more training entries than this, where a small rate gains
little and takes twice as long."""

PATIENCE = 40
"""Trees without a lower validation error after which growing stops."""

DEFAULT_TREES = 100
"""Trees where there are no validation entries to count them by."""

MAX_TRAIN_ENTRIES, MAX_VALID_ENTRIES = 1_000_000, 200_000
"""Entries that trees are grown from and stopped by; means and counts are those of all entries."""

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
        """Mean and trees, ``(entries, modes)`` → ``(entries,)``; a label never seen is encoded as the mean of all."""
        indices = np.asarray(indices)
        predictions = np.full(len(indices), self.mean)
        for start in range(0, len(indices), CHUNK):
            bins = binned(columns_of(self.encoders, indices[start : start + CHUNK]), self.edges)  # (entries, columns)
            add_trees(bins, self.nodes, self.values, self.roots, predictions[start : start + CHUNK])
        return predictions

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
    require((np.bincount(tree[~inner]) <= MAX_LEAVES).all(), "leaves of trees")


class Grown(NamedTuple):
    """Nodes of some trees."""

    nodes: list[NDArray[np.int32]]
    """Of every tree, ``(nodes, 4)``: column or -1, last bin of the left side, left and right child."""
    values: list[NDArray[np.float64]]
    """Of every tree, ``(nodes,)``; those of inner nodes are zero."""


def fit_trees(
    train: SparseTensor,
    valid: SparseTensor,
    *,
    groups: Sequence[int] = (),
    seed: int = 0,
    seconds: float = math.inf,
    rounds: int = DEFAULT_TREES,
) -> Trees:
    """Grow trees while the validation error falls.

    Parameters
    ----------
    train
        Entries to learn from.
    valid
        Entries that determine how many trees; where there are none it is ``rounds``, or as many as find a split.
    groups
        Modes whose labels, taken together, will be new in the queries: means leave out all entries that share them.
    seed
        Of the folds that means are taken without, and of the entries that trees are grown from.
    seconds
        After which no further tree is grown.
    rounds
        How many trees, where there are no validation entries.
    """
    end = time.monotonic() + seconds
    generator = np.random.default_rng([seed, 31])
    count, member = groups_of(train, tuple(groups))
    fold = generator.integers(FOLDS, size=count)[member]
    encoders, own = encode(train, fold)
    chosen = _sample(len(train), MAX_TRAIN_ENTRIES, generator)
    valid = valid.take(_sample(len(valid), MAX_VALID_ENTRIES, generator))
    columns = [column[chosen] for column in own + positions(train.indices)]
    edges = np.stack(in_threads(edges_of, columns))  # (columns, BINS - 1)
    mean = float(train.values.mean(dtype=np.float64))
    grown = grow(
        (binned(columns, edges), train.values[chosen] - mean),
        (binned(columns_of(encoders, valid.indices), edges), valid.values - mean),
        count=MAX_TREES if len(valid) else rounds,
        rate=LEARNING_RATE if len(train) <= MAX_SLOW_ENTRIES else FAST_LEARNING_RATE,
        end=end,
    )
    sizes = [len(one) for one in grown.values]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    return Trees(mean, encoders, edges, np.concatenate(grown.nodes), np.concatenate(grown.values), roots)


def _sample(count: int, most: int, generator: np.random.Generator) -> NDArray[np.integer]:
    """Positions of all entries, or of a random part, in order."""
    return np.arange(count) if count <= most else np.sort(generator.permutation(count)[:most])


Binned = tuple[NDArray[np.uint8], NDArray[np.floating]]
"""Bins ``(entries, columns)`` and values ``(entries,)``."""


def grow(train: Binned, valid: Binned, *, count: int, rate: float, end: float = math.inf) -> Grown:
    """Trees up to the one with the lowest validation error, at least one; all of them without validation entries.

    Parameters
    ----------
    train, valid
        Bins and values; there may be no validation entries.
    count
        Trees, at most.
    rate
        Share of every tree that is added.
    end
        When, by the monotonic clock, no further tree is grown.
    """
    import lightgbm  # noqa: PLC0415 - it imports many packages, and most commands grow no trees

    scale = float(np.sqrt(np.mean(train[1].astype(np.float64) ** 2))) or 1.0  # its labels have 32 bits
    params = {
        "objective": "regression",
        "boost_from_average": False,
        "learning_rate": rate,
        "num_leaves": LEAVES,
        "min_data_in_leaf": MIN_LEAF_ENTRIES,
        "min_sum_hessian_in_leaf": 0.0,
        "max_bin": BINS,  # one of its bins for each of ours
        "min_data_in_bin": 1,
        "bin_construct_sample_cnt": max(len(train[1]), 1),
        "feature_pre_filter": False,
        "enable_bundle": False,  # columns that are seldom nonzero together would share bins
        "num_threads": torch.get_num_threads(),
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(train[0], train[1] / scale, params=params)
    booster = lightgbm.Booster(params, data)
    if len(valid[1]):
        booster.add_valid(data.create_valid(valid[0], valid[1] / scale, params=params), "valid")
    best, lowest = 1, math.inf
    for grown in range(1, 1 + count):
        finished = booster.update()
        error = booster.eval_valid()[0][2] if len(valid[1]) else -grown
        if error < lowest:
            best, lowest = grown, error
        if finished or grown - best >= PATIENCE or time.monotonic() > end:
            break
    trees = [_arrays_of(text) for text in booster.model_to_string(num_iteration=best).split("\nTree=")[1:]]
    return Grown([nodes for nodes, _ in trees], [scale * values for _, values in trees])


def _arrays_of(text: str) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Nodes and values of a tree that LightGBM has written down.

    Its inner nodes come first, each after its parent; children below zero are leaves, ``-1 - leaf``.
    """
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    leaves = int(fields["num_leaves"])

    def numbers(name: str) -> NDArray[np.float64]:
        return np.array(fields[name].split(), dtype=np.float64)

    nodes, values = np.zeros((2 * leaves - 1, 4), dtype=np.int32), np.zeros(2 * leaves - 1)
    nodes[leaves - 1 :, 0] = -1
    values[leaves - 1 :] = numbers("leaf_value")
    if leaves > 1:
        nodes[: leaves - 1, 0] = numbers("split_feature")
        nodes[: leaves - 1, 1] = np.floor(numbers("threshold"))  # bins are whole numbers
        for column, name in ((2, "left_child"), (3, "right_child")):
            child = numbers(name).astype(np.int32)
            nodes[: leaves - 1, column] = np.where(child < 0, leaves - 2 - child, child)
    return nodes, values
