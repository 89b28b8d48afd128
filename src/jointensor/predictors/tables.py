"""Shrunk means over subsets of modes, added up: ``x̂ = mean + Σ_S t_S(i_S)``.

One table holds a number per *observed* combination of the labels of a subset S. With singletons only
this is the additive ridge-bias predictor; with larger subsets it is what a careful analyst tabulates
first. Tables are fitted in turn on what the others leave (backfitting): the number of a combination is
the mean of its ``n`` residuals, shrunk towards zero by ``n / (n + λ)``, with λ of each table chosen on
the validation entries; ``λ = ∞`` leaves the table out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys
from jointensor.threads import in_threads

SHRINKAGE = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, math.inf)
"""Values of λ that are tried for each table."""

BIAS_SHRINKAGE = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Values of λ that are tried for the biases, all of them together."""

DEFAULT_SHRINKAGE = 10.0
"""λ where there are no validation entries to choose it."""

ROUNDS = 20
"""Most passes over all tables; fitting stops earlier when validation no longer improves."""

REFITS = 4
"""Passes over all tables where only their last shrinkage is known."""

CHECKED = 200_000
"""Validation entries that are enough to choose the shrinkage of tables."""

MAX_CELLS = 2**62
"""Cells that can be numbered: beyond it the keys of training entries and of queries would not agree."""

MAX_SUBSETS = 30
"""Most tables in a model; smaller subsets come first."""


@dataclass(frozen=True)
class Mean:
    """One number for every entry: the mean of the training values."""

    mean: float

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """The mean, once per entry."""
        return np.full(len(indices), self.mean)

    def n_parameters(self) -> int:
        """One."""
        return 1


@dataclass(frozen=True)
class Table:
    """Numbers for the observed label combinations of some modes."""

    modes: tuple[int, ...]
    sizes: tuple[int, ...]
    keys: NDArray[np.int64]
    """Sorted cell keys of the combinations, shape ``(combinations,)``."""
    effects: NDArray[np.float64]
    """One number per combination and a last 0 for all others, shape ``(combinations + 1,)``."""

    def find(self, indices: NDArray[np.integer]) -> NDArray[np.int32]:
        """Row of each entry's combination; the last row where it was never observed."""
        columns = indices[:, self.modes]
        known = np.all((columns >= 0) & (columns < np.array(self.sizes)), axis=1)  # later labels are not in it either
        keys = cell_keys(np.where(known[:, None], columns, 0), self.sizes)
        rows = np.searchsorted(self.keys, keys)
        rows[rows == len(self.keys)] = 0
        return np.where(known & (self.keys[rows] == keys), rows, len(self.keys)).astype(np.int32)


@dataclass(frozen=True)
class Tables:
    """A mean and a sum of tables."""

    mean: float
    tables: tuple[Table, ...]
    shrinkage: tuple[float, ...]
    passes: tuple[tuple[float, ...], ...] = ()
    """λ of every table in every pass over them, as they were chosen; empty where nobody kept them."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Sum of the numbers found; a combination never observed adds nothing."""
        value = np.full(len(indices), self.mean)
        for table in self.tables:
            value += table.effects[table.find(indices)]
        return value

    def n_parameters(self) -> int:
        """The mean, and one number per combination of every table that was not shrunk away."""
        return 1 + sum(int(np.count_nonzero(table.effects)) for table in self.tables)


def fit_bias(train: SparseTensor, valid: SparseTensor) -> Tables:
    """The additive ridge-bias predictor: a mean, one number per label, one λ for all of them."""
    parts = [_Fitting(train, valid, (n,)) for n in range(train.n_modes)]
    grid = BIAS_SHRINKAGE if len(valid) else (DEFAULT_SHRINKAGE,)
    fits = [_backfit(parts, train, valid, (shrinkage,)) for shrinkage in grid]
    return min(fits, key=lambda fit: fit[0])[1]


def fit_tables(train: SparseTensor, valid: SparseTensor) -> Tables:
    """Tables over every proper subset of modes, small subsets first; those over too many cells are left out."""
    every = [s for k in range(1, train.n_modes) for s in combinations(range(train.n_modes), k)]
    subsets = [s for s in every if math.prod(train.shape[n] for n in s) < MAX_CELLS]
    valid = valid.take(np.arange(0, len(valid), 1 + len(valid) // CHECKED))
    parts = in_threads(lambda modes: _Fitting(train, valid, modes), subsets[:MAX_SUBSETS])
    return _backfit(parts, train, valid, SHRINKAGE if len(valid) else (DEFAULT_SHRINKAGE,))[1]


def refit_tables(like: Tables, train: SparseTensor) -> Tables:
    """Tables of the same modes for other entries, shrunk alike in every pass; those that end shrunk away are left out.

    The last shrinkage alone would not do: what a table leaves to others depends on how it was shrunk before.
    """
    passes = like.passes or (like.shrinkage,) * REFITS
    used = [n for n, each in enumerate(zip(*passes, strict=True)) if min(each) < math.inf]
    none = train.take(np.zeros(0, dtype=np.int64))
    parts = in_threads(lambda n: _Fitting(train, none, like.tables[n].modes), used)
    mean = float(train.values.mean(dtype=np.float64))
    left = train.values.astype(np.float64) - mean
    for chosen in passes:
        for n, part in zip(used, parts, strict=True):
            part.refit(left, np.zeros(0), (chosen[n],))
    kept = [(n, part) for n, part in zip(used, parts, strict=True) if part.shrinkage < math.inf]
    tables, shrinkage = tuple(part.table for _, part in kept), tuple(part.shrinkage for _, part in kept)
    return Tables(mean, tables, shrinkage, tuple(tuple(chosen[n] for n, _ in kept) for chosen in passes))


class _Fitting:
    """One table while it is fitted: where each training and validation entry finds its number."""

    def __init__(self, train: SparseTensor, valid: SparseTensor, modes: tuple[int, ...]) -> None:
        sizes = tuple(train.shape[n] for n in modes)
        keys, rows = distinct_keys(cell_keys(train.indices[:, modes], sizes), math.prod(sizes))
        self.table = Table(modes, sizes, keys, np.zeros(len(keys) + 1))
        self.train_rows = rows.astype(np.int32)
        self.valid_rows = self.table.find(valid.indices)
        self.counts = np.bincount(rows, minlength=len(keys) + 1)
        self.shrinkage = math.inf

    def refit(self, left: NDArray[np.float64], valid_left: NDArray[np.float64], grid: Sequence[float]) -> None:
        """Best table for what is left of the values; ``left`` and ``valid_left`` are updated in place."""
        old = self.table.effects
        sums = np.bincount(self.train_rows, left, minlength=len(old)) + self.counts * old
        if len(grid) == 1:
            (self.shrinkage,) = grid
        else:
            there, many, before = (one[self.valid_rows] for one in (sums, self.counts, old))
            errors = [np.sum((valid_left - there / (many + one) + before) ** 2) for one in grid]
            self.shrinkage = grid[int(np.argmin(errors))]
        step = sums / (self.counts + self.shrinkage) - old
        left -= step[self.train_rows]
        valid_left -= step[self.valid_rows]
        self.table = replace(self.table, effects=old + step)

    @property
    def penalty(self) -> float:
        """What ridge regression adds to the squared error for this table."""
        return self.shrinkage * float(self.table.effects @ self.table.effects)

    def reset(self) -> None:
        """Forget what was fitted."""
        self.table = replace(self.table, effects=np.zeros(len(self.table.effects)))


def _backfit(
    parts: Sequence[_Fitting], train: SparseTensor, valid: SparseTensor, grid: Sequence[float]
) -> tuple[float, Tables]:
    """Validation error and tables of the round that validates best.

    Without validation entries it is the penalised training error, which falls until the tables are the
    ridge regression's.
    """
    mean = float(train.values.mean(dtype=np.float64))
    left = train.values.astype(np.float64) - mean  # (training entries,)
    valid_left = valid.values.astype(np.float64) - mean
    lowest, best = math.inf, Tables(mean, (), ())
    passes: list[tuple[float, ...]] = []
    for part in parts:
        part.reset()
    for _ in range(ROUNDS):
        for part in parts:
            part.refit(left, valid_left, grid)
        passes.append(tuple(part.shrinkage for part in parts))
        if len(valid):
            error = math.sqrt(np.mean(valid_left**2))
        else:
            error = math.sqrt((left @ left + sum(part.penalty for part in parts)) / len(left))
        if error > lowest * (1 - (1e-4 if len(valid) else 1e-9)):
            break
        lowest, best = error, Tables(mean, tuple(part.table for part in parts), passes[-1], tuple(passes))
    return lowest, best
