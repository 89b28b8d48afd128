"""Shrunk means over subsets of modes, added up: ``x̂ = mean + Σ_S t_S(i_S)``.

One table holds a number per *observed* combination of the labels of a subset S. Tables are fitted in turn to the
residuals of the others (backfitting): the number of a combination is the mean of its ``n`` residuals, shrunk towards
zero by ``n / (n + λ)``, with λ of each table chosen on the validation entries; ``λ = ∞`` leaves the table out.

With singletons only and one λ this is the additive ridge-bias predictor, see :mod:`jointensor.predictors.biases`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.tensor import MAX_MARKED_KEYS, SparseTensor, cell_keys, distinct_keys
from jointensor.kernels.numba_tables import squared_errors, subtract_by_row, sums_by_row
from jointensor.predictors.base import MAX_CELLS, PREDICTORS, Packed, Predictor, require, whole_numbers
from jointensor.threads import in_threads

SHRINKAGE_GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, math.inf)
"""Values of λ, in entries, that are tried for each table."""

DEFAULT_SHRINKAGE = 10.0
"""λ, in entries, where there are no validation entries to choose it."""

MAX_ROUNDS = 20
"""Passes over all tables; fitting stops earlier when validation no longer improves."""

REFIT_ROUNDS = 4
"""Passes over all tables where only their last λ is known."""

MIN_IMPROVEMENT = 1e-4
"""Share by which the validation error must fall for another round to be worth its time."""

MIN_OBJECTIVE_IMPROVEMENT = 1e-9
"""The same of the root of the penalised training error, where there are no validation entries: close to convergence."""

MAX_VALID_ENTRIES = 200_000
"""Validation entries that are enough to choose the shrinkage of tables."""

MAX_SUBSETS = 30
"""Tables in a model; smaller subsets come first."""


@PREDICTORS.register("mean")
@dataclass(frozen=True)
class Mean(Predictor):
    """One number for every entry: the mean of the training values."""

    mean: float

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """The mean, once per entry."""
        return np.full(len(indices), self.mean)

    def n_parameters(self) -> int:
        """One."""
        return 1

    def supports(self, n_modes: int) -> bool:
        """Any number of modes."""
        return True

    def pack(self) -> Packed:
        """The mean."""
        return Packed({"mean": self.mean}, {})

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored mean."""
        return cls(float(packed.config["mean"]))


@dataclass(frozen=True)
class Table:
    """Numbers for the observed label combinations of some modes."""

    modes: tuple[int, ...]
    sizes: tuple[int, ...]
    keys: NDArray[np.int64]
    """Sorted cell keys of the combinations, shape ``(combinations,)``."""
    effects: NDArray[np.float64]
    """One number per combination and a last 0 for all others, shape ``(combinations + 1,)``."""

    @classmethod
    def of_means(
        cls, modes: tuple[int, ...], shape: Sequence[int], indices: NDArray[np.integer], values: NDArray[np.floating]
    ) -> Self:
        """The mean value of every observed combination of the modes' labels; at most 2⁶² combinations are possible."""
        sizes = tuple(shape[n] for n in modes)
        keys, rows = distinct_keys(cell_keys(indices[:, modes], sizes), math.prod(sizes))
        means = np.bincount(rows, values, len(keys)) / np.maximum(np.bincount(rows, minlength=len(keys)), 1)
        return cls(modes, sizes, keys, np.append(means, 0.0))

    @cached_property
    def row_of_label(self) -> NDArray[np.int32]:
        """Row of every label, of a table over one mode, ``(labels + 2,)``; the ends are for labels that it lacks."""
        rows = np.full(self.sizes[0] + 2, len(self.keys), dtype=np.int32)
        rows[self.keys + 1] = np.arange(len(self.keys))
        return rows

    def find(self, indices: NDArray[np.integer]) -> NDArray[np.int32]:
        """Row of each entry's combination; the last row where it was never observed."""
        if len(self.modes) == 1 and self.sizes[0] <= MAX_MARKED_KEYS:  # looking up is faster than searching
            return np.take(self.row_of_label, indices[:, self.modes[0]] + 1, mode="clip")
        columns = indices[:, self.modes]
        inside = np.all((columns >= 0) & (columns < np.array(self.sizes)), axis=1)
        keys = cell_keys(np.where(inside[:, None], columns, 0), self.sizes)
        rows = np.searchsorted(self.keys, keys)
        rows[rows == len(self.keys)] = 0
        return np.where(inside & (self.keys[rows] == keys), rows, len(self.keys)).astype(np.int32)

    def observed(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a combination that the table knows, ``(entries,)``."""
        found: NDArray[np.bool_] = self.find(indices) < len(self.keys)
        return found

    def pack(self) -> Packed:
        """Modes, sizes, keys and effects."""
        arrays = {"keys": self.keys, "effects": self.effects}
        config = {"modes": list(map(int, self.modes)), "sizes": list(map(int, self.sizes))}
        return Packed(config, {name: torch.as_tensor(np.ascontiguousarray(one)) for name, one in arrays.items()})

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored table, if its keys and effects belong together."""
        modes, sizes = whole_numbers(packed.config["modes"]), whole_numbers(packed.config["sizes"])
        keys, effects = packed.array("keys"), packed.array("effects")
        require(len(modes) == len(sizes) > 0 and math.prod(sizes) > 0, "tables")
        require(keys.dtype == np.int64 and keys.ndim == 1 and len(keys), "keys of tables")
        require((keys >= 0).all() and (keys < math.prod(sizes)).all(), "keys of tables")
        require(effects.dtype.kind == "f" and effects.shape == (len(keys) + 1,), "effects of tables")
        return cls(modes, sizes, keys, effects)


def pack_table_list(tables: Sequence[Table]) -> Packed:
    """Tables by their position."""
    packed = Packed({}, {})
    packed.config["tables"] = [packed.add(str(n), table.pack()) for n, table in enumerate(tables)]
    return packed


def unpack_table_list(packed: Packed) -> tuple[Table, ...]:
    """What :func:`pack_table_list` described."""
    return tuple(Table.unpack(packed.part(config, str(n))) for n, config in enumerate(packed.config["tables"]))


def modes_needed(tables: Iterable[Table]) -> int:
    """Number of modes that an entry must have for all tables to find theirs."""
    return 1 + max((mode for table in tables for mode in table.modes), default=-1)


@PREDICTORS.register("tables")
@dataclass(frozen=True)
class Tables(Predictor):
    """A mean and a sum of tables."""

    mean: float
    tables: tuple[Table, ...]
    shrinkage: tuple[float, ...]
    passes: tuple[tuple[float, ...], ...] = ()
    """λ of every table in every pass over them, as they were chosen; empty where they were not recorded."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Sum of the numbers found; a combination never observed adds nothing."""
        value = np.full(len(indices), self.mean)
        for table in self.tables:
            value += table.effects[table.find(indices)]
        return value

    def unseen(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a combination that some table does not know; of biases: a label never seen."""
        return ~np.logical_and.reduce([table.observed(indices) for table in self.tables])

    def n_parameters(self) -> int:
        """The mean, and one number per combination of every table that was not shrunk away."""
        return 1 + sum(int(np.count_nonzero(table.effects)) for table in self.tables)

    def supports(self, n_modes: int) -> bool:
        """At least as many modes as the tables look at."""
        return modes_needed(self.tables) <= n_modes

    def explain(self) -> dict[str, Any]:
        """Modes and λ of every table."""
        shrinkage = _without_infinity(self.shrinkage)
        subsets = [list(table.modes) for table in self.tables]
        return super().explain() | {"subsets": subsets, "shrinkage": shrinkage}

    def pack(self) -> Packed:
        """Mean, tables and λ."""
        packed = pack_table_list(self.tables)
        passes = [_without_infinity(one) for one in self.passes]
        packed.config.update(mean=self.mean, shrinkage=_without_infinity(self.shrinkage), passes=passes)
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored tables."""
        config, tables = packed.config, unpack_table_list(packed)
        shrinkage, *passes = (
            tuple(math.inf if one is None else float(one) for one in some)
            for some in (config["shrinkage"], *config["passes"])
        )
        require(all(len(one) == len(tables) for one in passes), "shrinkage of tables")
        return cls(float(config["mean"]), tables, shrinkage, tuple(passes))

    @classmethod
    def unpack_biases(cls, packed: Packed) -> Self:
        """Stored tables that must be additive biases: one table per mode, in their order."""
        biases = cls.unpack(packed)
        singletons = all(table.modes == (n,) for n, table in enumerate(biases.tables))
        require(len(biases.tables) > 1 and singletons, "biases")
        return biases


def _without_infinity(shrinkage: Iterable[float]) -> list[float | None]:
    """λ as JSON can hold it; ``None`` for a table that is left out."""
    return [one if math.isfinite(one) else None for one in shrinkage]


def fit_tables(train: SparseTensor, valid: SparseTensor) -> Tables:
    """Tables over every proper subset of modes, small subsets first; those over too many cells are left out."""
    every = [s for k in range(1, train.n_modes) for s in combinations(range(train.n_modes), k)]
    subsets = [s for s in every if math.prod(train.shape[n] for n in s) < MAX_CELLS]
    valid = valid.take(np.arange(0, len(valid), 1 + len(valid) // MAX_VALID_ENTRIES))
    fits = in_threads(lambda modes: _TableFit.of(train, valid, modes), subsets[:MAX_SUBSETS])
    return _backfit(fits, train, valid, SHRINKAGE_GRID if len(valid) else (DEFAULT_SHRINKAGE,))


def refit_tables(like: Tables, train: SparseTensor) -> Tables:
    """Tables of the same modes for other entries, shrunk alike in every pass; those that end shrunk away are left out.

    The last λ alone would not do: what a table leaves to the others depends on how it was shrunk before.
    """
    passes, fits = _unfitted(like, train)
    mean = _refit(fits, passes, train.values)
    kept = [n for n, fit in fits.items() if fit.shrinkage < math.inf]
    tables, shrinkage = tuple(fits[n].table for n in kept), tuple(fits[n].shrinkage for n in kept)
    return Tables(mean, tables, shrinkage, tuple(tuple(chosen[n] for n in kept) for chosen in passes))


def predict_by_others(like: Tables, train: SparseTensor, folds: NDArray[np.integer]) -> NDArray[np.float64]:
    """Predictions for every entry by tables that are refitted to the other folds, ``(entries,)``.

    Combinations of labels are looked up once for all folds.
    """
    passes, fits = _unfitted(like, train)
    predictions = np.empty(len(train))

    def of_fold(fold: int) -> None:
        others, out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        parts = {n: fit.over(others) for n, fit in fits.items()}
        mean = _refit(parts, passes, train.values[others])
        predictions[out] = mean + sum(parts[n].table.effects[fit.train_rows[out]] for n, fit in fits.items())

    in_threads(of_fold, np.unique(folds).tolist())
    return predictions


def _unfitted(like: Tables, train: SparseTensor) -> tuple[Sequence[Sequence[float]], dict[int, _TableFit]]:
    """λ of every table in every pass, and the tables that are not shrunk away in all of them, by their numbers."""
    passes = like.passes or (like.shrinkage,) * REFIT_ROUNDS
    used = [n for n, each in enumerate(zip(*passes, strict=True)) if min(each) < math.inf]
    none = train.take(np.zeros(0, dtype=np.int64))
    fits = in_threads(lambda n: _TableFit.of(train, none, like.tables[n].modes), used)
    return passes, dict(zip(used, fits, strict=True))


def _refit(fits: Mapping[int, _TableFit], passes: Sequence[Sequence[float]], values: NDArray[np.float32]) -> float:
    """Fit tables to some values in passes with a given λ; returns the mean of the values."""
    mean = float(values.mean(dtype=np.float64))
    residuals = values.astype(np.float64) - mean
    for chosen in passes:
        for n, fit in fits.items():
            fit.refit(residuals, np.zeros(0), (chosen[n],))
    return mean


class _TableFit:
    """One table while it is fitted: where each training and validation entry finds its number."""

    def __init__(self, table: Table, train_rows: NDArray[np.int32], valid_rows: NDArray[np.int32]) -> None:
        self.table, self.train_rows, self.valid_rows = table, train_rows, valid_rows
        self.counts = np.bincount(train_rows, minlength=len(table.effects))
        self.shrinkage = math.inf

    @classmethod
    def of(cls, train: SparseTensor, valid: SparseTensor, modes: tuple[int, ...]) -> Self:
        """The table of some modes, with effects of zero."""
        sizes = tuple(train.shape[n] for n in modes)
        keys, rows = distinct_keys(cell_keys(train.indices[:, modes], sizes), math.prod(sizes))
        table = Table(modes, sizes, keys, np.zeros(len(keys) + 1))
        return cls(table, rows.astype(np.int32), table.find(valid.indices))

    def over(self, where: NDArray[np.integer]) -> _TableFit:
        """The same of some of the training entries; effects of other combinations stay zero."""
        return _TableFit(self.table, self.train_rows[where], self.valid_rows)

    def refit(
        self, residuals: NDArray[np.float64], valid_residuals: NDArray[np.float64], grid: Sequence[float]
    ) -> None:
        """Best table for the residuals of the others; both arrays of residuals are updated in place."""
        old = self.table.effects
        sums = sums_by_row(self.train_rows, residuals, len(old)) + self.counts * old
        if len(grid) == 1:
            (self.shrinkage,) = grid
        else:
            errors = squared_errors(self.valid_rows, valid_residuals, sums, self.counts, old, grid)
            self.shrinkage = grid[int(np.argmin(errors))]
        step = sums / (self.counts + self.shrinkage) - old
        subtract_by_row(self.train_rows, step, residuals)
        subtract_by_row(self.valid_rows, step, valid_residuals)
        self.table = replace(self.table, effects=old + step)

    @property
    def penalty(self) -> float:
        """What ridge regression adds to the squared error for this table."""
        return self.shrinkage * float(self.table.effects @ self.table.effects)


def _backfit(fits: Sequence[_TableFit], train: SparseTensor, valid: SparseTensor, grid: Sequence[float]) -> Tables:
    """Tables of the round that validates best.

    Without validation entries it is the penalised training error, which falls until the tables are the ridge
    regression's.
    """
    mean = float(train.values.mean(dtype=np.float64))
    residuals = train.values.astype(np.float64) - mean  # (training entries,)
    valid_residuals = valid.values.astype(np.float64) - mean
    lowest, best = math.inf, Tables(mean, (), ())
    passes: list[tuple[float, ...]] = []
    for _ in range(MAX_ROUNDS):
        for fit in fits:
            fit.refit(residuals, valid_residuals, grid)
        passes.append(tuple(fit.shrinkage for fit in fits))
        if len(valid):
            error = math.sqrt(np.mean(valid_residuals**2))
        else:
            error = math.sqrt((residuals @ residuals + sum(fit.penalty for fit in fits)) / len(residuals))
        if error > lowest * (1 - (MIN_IMPROVEMENT if len(valid) else MIN_OBJECTIVE_IMPROVEMENT)):
            break
        lowest, best = error, Tables(mean, tuple(fit.table for fit in fits), passes[-1], tuple(passes))
    return best
