"""Values that the labels of some modes decide, whatever the other labels are.

Tensors are often made by joining tables: how often a paper has a word is listed once for each of its authors. There the
pair of paper and word decides the value, and where that pair was seen before the answer is known.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys
from jointensor.predictors.base import MAX_CELLS
from jointensor.predictors.tables import Table

REPEATED = 0.05
"""Share of the entries whose combination must have been seen before: a few that agree may do so by chance."""

SURPRISES = 20
"""Entries that would differ from the one before, were it all chance."""

SAMPLE = 200_000
"""Entries, about, that are enough to see that values differ."""

MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Times a key its high bits are as good as random."""


def deciding_modes(tensor: SparseTensor) -> tuple[int, ...] | None:
    """The fewest modes whose labels, taken together, never have two values; ``None`` where there are none."""
    found, tried = None, list(combinations(range(tensor.n_modes), tensor.n_modes - 1))
    while tried:
        agree = [modes for modes in tried if _agree(tensor, modes, SAMPLE) is not None]
        shown = {modes: _agree(tensor, modes, len(tensor)) for modes in agree}
        found = next((modes for modes, enough in shown.items() if enough), found)
        # where those that share more labels differ, those that share fewer do
        rest = [modes for modes, enough in shown.items() if enough is not None]
        tried = sorted({fewer for modes in rest for fewer in combinations(modes, len(modes) - 1) if fewer})
    return found


def decided_values(tensor: SparseTensor, modes: tuple[int, ...]) -> Table:
    """The value of every combination of labels."""
    sizes = tuple(tensor.shape[n] for n in modes)
    keys, rows = distinct_keys(_keys(tensor, modes), math.prod(sizes))
    # a mean, should there be other values after all
    means = np.bincount(rows, tensor.values, len(keys)) / np.maximum(np.bincount(rows, minlength=len(keys)), 1)
    return Table(modes, sizes, keys, np.append(means, 0.0))


def seen_elsewhere(tensor: SparseTensor, modes: tuple[int, ...], folds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which entries have a combination of labels that entries of another fold have too."""
    rows = distinct_keys(_keys(tensor, modes), math.prod(tensor.shape[n] for n in modes))[1]
    together = rows * (int(folds.max(initial=0)) + 1) + folds  # combination and fold, (entries,)
    found: NDArray[np.bool_] = np.bincount(together)[together] < np.bincount(rows)[rows]
    return found


def _keys(tensor: SparseTensor, modes: tuple[int, ...]) -> NDArray[np.int64]:
    return cell_keys(tensor.indices[:, modes], [tensor.shape[n] for n in modes])


def _agree(tensor: SparseTensor, modes: tuple[int, ...], most: int) -> bool | None:
    """Whether entries that share these labels have the same value, and there are enough of them for that to be no
    chance; ``None`` where some differ. By some of the combinations.
    """
    if math.prod(tensor.shape[n] for n in modes) >= MAX_CELLS:
        return None
    keys, values = _keys(tensor, modes), tensor.values
    if len(keys) > most:
        chosen = (keys.astype(np.uint64) * MIXER) >> np.uint64(32) < np.uint64(2**32 * most // len(keys))
        keys, values = keys[chosen], values[chosen]
    order = np.argsort(keys)
    again = np.diff(keys[order]) == 0
    if (again & (np.diff(values[order]) != 0)).any():
        return None
    shares = np.unique(values, return_counts=True)[1] / max(len(values), 1)
    by_chance = float(again.sum() * (1 - np.sum(shares**2)))  # that would differ, if labels had nothing to do with it
    return bool(again.sum() >= REPEATED * len(keys) and by_chance >= SURPRISES)
