"""Functional dependencies: the labels of some modes determine the value, whatever the other labels are.

Tensors are often made by joining tables: how often a paper has a word is listed once for each of its authors. There the
pair of paper and word determines the value, and wherever that pair was observed the value is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys
from jointensor.predictors.base import MAX_CELLS
from jointensor.predictors.tables import Table

MIN_REPEATED_SHARE = 0.05
"""Share of the entries whose combination must occur more than once: a few that agree may do so by chance."""

MIN_EXPECTED_DIFFERENCES = 20
"""Repeated entries that would differ from another of their combination if labels and values were independent."""

SAMPLE_ENTRIES = 200_000
"""Entries, about, that are enough to see that values differ."""

HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Multiplicative hashing: the high bits of a key times this are as good as random."""


def find_dependency(tensor: SparseTensor) -> tuple[int, ...] | None:
    """The fewest modes whose labels, taken together, never have two values; ``None`` where there are none."""
    found, candidates = None, list(combinations(range(tensor.n_modes), tensor.n_modes - 1))
    while candidates:
        agree = [modes for modes in candidates if _agree(tensor, modes, SAMPLE_ENTRIES) is not None]
        shown = {modes: _agree(tensor, modes, len(tensor)) for modes in agree}
        found = next((modes for modes, enough in shown.items() if enough), found)
        # where entries that share more labels differ, so do those that share fewer
        rest = [modes for modes, enough in shown.items() if enough is not None]
        candidates = sorted({fewer for modes in rest for fewer in combinations(modes, len(modes) - 1) if fewer})
    return found


def in_words(deciding: tuple[int, ...] | None, modes: Sequence[Mode]) -> str:
    """What follows from modes that decide the value, for a user; empty where there are none."""
    if deciding is None:
        return ""
    names = " and ".join(modes[n].name for n in deciding)
    return f"{names} decide the value, so that entries whose combination was seen before have the value seen there"


def dependency_table(tensor: SparseTensor, modes: tuple[int, ...]) -> Table:
    """The value of every observed combination of the modes' labels."""
    # the mean, should the entries of a combination differ after all
    return Table.of_means(modes, tensor.shape, tensor.indices, tensor.values)


def seen_elsewhere(tensor: SparseTensor, modes: tuple[int, ...], folds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which entries have a combination of labels that an entry of another fold has too."""
    rows = distinct_keys(_keys(tensor, modes), math.prod(tensor.shape[n] for n in modes))[1]
    together = rows * (int(folds.max(initial=0)) + 1) + folds  # combination and fold, (entries,)
    found: NDArray[np.bool_] = np.bincount(together)[together] < np.bincount(rows)[rows]
    return found


def seen_before(tensor: SparseTensor, modes: tuple[int, ...], folds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """The same of folds in time: entries of earlier folds, which have larger numbers, or of none (-1), the earliest."""
    combination = distinct_keys(_keys(tensor, modes), math.prod(tensor.shape[n] for n in modes))[1]
    age = np.where(folds < 0, np.iinfo(np.int64).max, folds.astype(np.int64))  # (entries,)
    oldest = np.zeros(int(combination.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(oldest, combination, age)
    found: NDArray[np.bool_] = oldest[combination] > age
    return found


def _keys(tensor: SparseTensor, modes: tuple[int, ...]) -> NDArray[np.int64]:
    return cell_keys(tensor.indices[:, modes], [tensor.shape[n] for n in modes])


def _agree(tensor: SparseTensor, modes: tuple[int, ...], most: int) -> bool | None:
    """Whether entries that share these labels have the same value, and enough of them do for it to be no chance;
    ``None`` where some differ. Judged by a random part of the combinations, about ``most`` entries.
    """
    if math.prod(tensor.shape[n] for n in modes) >= MAX_CELLS:
        return None
    keys, values = _keys(tensor, modes), tensor.values
    if len(keys) > most:
        chosen = (keys.astype(np.uint64) * HASH_MULTIPLIER) >> np.uint64(32) < np.uint64(2**32 * most // len(keys))
        keys, values = keys[chosen], values[chosen]
    order = np.argsort(keys)
    again = np.diff(keys[order]) == 0
    if (again & (np.diff(values[order]) != 0)).any():
        return None
    shares = np.unique(values, return_counts=True)[1] / max(len(values), 1)
    expected = float(again.sum() * (1 - np.sum(shares**2)))
    return bool(again.sum() >= MIN_REPEATED_SHARE * len(keys) and expected >= MIN_EXPECTED_DIFFERENCES)
