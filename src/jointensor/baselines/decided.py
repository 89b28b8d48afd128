"""Values that the labels of some modes decide, whatever the other labels are.

Tensors are often made by joining tables: how often a paper has a word is listed once for each of its authors. There the
pair of paper and word decides the value, and where that pair was seen before the answer is known.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from jointensor.baselines.tables import MAX_CELLS, Table
from jointensor.data.sparse import SparseTensor, cell_keys, distinct_keys

REPEATED = 0.05
"""Share of the entries whose combination must have been seen before: a few that agree may do so by chance."""

SAMPLE = 200_000
"""Entries, about, that are enough to see that values differ."""

MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Times a key its high bits are as good as random."""


def deciding_modes(tensor: SparseTensor) -> tuple[int, ...] | None:
    """The fewest modes whose labels, taken together, never have two values; ``None`` where there are none."""
    found, tried = None, list(combinations(range(tensor.n_modes), tensor.n_modes - 1))
    while tried:
        good = [modes for modes in tried if _decide(tensor, modes, SAMPLE) and _decide(tensor, modes, len(tensor))]
        found = good[0] if good else found
        # what more modes do not decide, fewer do not
        tried = sorted({fewer for modes in good for fewer in combinations(modes, len(modes) - 1) if fewer})
    return found


def decided_values(tensor: SparseTensor, modes: tuple[int, ...]) -> Table:
    """The value of every combination of labels."""
    sizes = tuple(tensor.shape[n] for n in modes)
    keys, rows = distinct_keys(_keys(tensor, modes), math.prod(sizes))
    effects = np.zeros(len(keys) + 1)
    effects[rows] = tensor.values
    return Table(modes, sizes, keys, effects)


def seen_elsewhere(tensor: SparseTensor, modes: tuple[int, ...], folds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which entries have a combination of labels that entries of another fold have too."""
    rows = distinct_keys(_keys(tensor, modes), math.prod(tensor.shape[n] for n in modes))[1]
    together = rows * (int(folds.max(initial=0)) + 1) + folds  # combination and fold, (entries,)
    found: NDArray[np.bool_] = np.bincount(together)[together] < np.bincount(rows)[rows]
    return found


def _keys(tensor: SparseTensor, modes: tuple[int, ...]) -> NDArray[np.int64]:
    return cell_keys(tensor.indices[:, modes], [tensor.shape[n] for n in modes])


def _decide(tensor: SparseTensor, modes: tuple[int, ...], most: int) -> bool:
    """Whether entries that agree in these labels, and there are many, have the same value; by some combinations."""
    if math.prod(tensor.shape[n] for n in modes) >= MAX_CELLS:
        return False
    keys, values = _keys(tensor, modes), tensor.values
    if len(keys) > most:
        chosen = (keys.astype(np.uint64) * MIXER) >> np.uint64(32) < np.uint64(2**32 * most // len(keys))
        keys, values = keys[chosen], values[chosen]
    order = np.argsort(keys)
    again = np.diff(keys[order]) == 0
    differ = np.diff(values[order]) != 0
    return bool(again.sum() >= max(REPEATED * len(keys), 1) and not (again & differ).any())
