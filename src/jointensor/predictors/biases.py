"""Additive biases, ``x̂ = mean + Σ_n b_n(i_n)``: ridge regression with one λ for all labels, by backfitting.

One mode after the other, biases are refitted to the residuals that the biases of the other modes leave:

    b_n(i) = Σ over entries of label i of (residual + b_n(i)) / (number of those entries + λ),

in rounds over all modes. λ and the number of rounds are those with the lowest validation error. Without validation
entries λ is :data:`DEFAULT_SHRINKAGE`, and rounds go on until the penalised training error has converged.

All that the algorithm needs of the training entries is the sum of their residuals by label (:class:`BiasEntries`), so
entries may lie in memory (:func:`fit_bias`; :func:`fit_bias_on_device` takes tensors on a device) or in shards on disk
(:func:`fit_bias_streamed`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.data.shard_writer import ShardedTensor
from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels import Engine
from jointensor.kernels.numba_tables import subtract_by_row
from jointensor.kernels.terms import Term, Terms, add_numbers
from jointensor.predictors.tables import (
    DEFAULT_SHRINKAGE,
    MAX_ROUNDS,
    MIN_IMPROVEMENT,
    MIN_OBJECTIVE_IMPROVEMENT,
    Table,
    Tables,
)

SHRINKAGE_GRID = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Values of λ, in entries, that are tried."""

Vector = Any
"""A vector of 64-bit floats: a NumPy array, or a tensor on the device of the entries."""


@dataclass
class BiasFit:
    """The biases for one λ while they are fitted."""

    shrinkage: float
    effects: list[Vector]
    """b_n, ``(I_n,)`` each."""
    squares: float
    """Sum of the squared training residuals."""
    lowest: float = math.inf
    best: list[Vector] = field(default_factory=list)
    """Biases of the round with the lowest error."""
    rounds: int = 0
    """That round, counted from 1."""
    running: bool = True

    def refit(self, n: int, sums: Vector, counts: Vector) -> Vector:
        """New biases of one mode from sums of residuals by label; returns by how much they changed, ``(I_n,)``."""
        old = self.effects[n]
        step = (sums + counts * old) / (counts + self.shrinkage) - old
        self.effects[n] = old + step
        self.squares += float(step**2 @ counts - 2 * step @ sums)
        return step

    def score(self, round_: int, validation_error: float | None) -> None:
        """Keep the biases where they are better than those of earlier rounds; stop where they hardly improve."""
        if validation_error is None:  # squared errors improve by twice the share of their roots
            error = self.squares + self.shrinkage * sum(float(one @ one) for one in self.effects)
            improvement = 2 * MIN_OBJECTIVE_IMPROVEMENT
        else:
            error, improvement = validation_error, MIN_IMPROVEMENT
        if error > self.lowest * (1 - improvement):
            self.running = False
        else:
            self.lowest, self.best, self.rounds = error, list(self.effects), round_


class BiasEntries(ABC):
    """Passes over training entries, as backfitting needs them."""

    mean: float
    """Of the training values."""
    squares: float
    """Sum of their squared deviations from it."""
    counts: Sequence[Vector]
    """Training entries of every label, ``(I_n,)`` for each mode."""

    @abstractmethod
    def residual_sums(self, n: int, fits: Sequence[BiasFit]) -> Sequence[Vector]:
        """For every fit: residuals summed by label of mode n, ``(I_n,)``."""

    @abstractmethod
    def changed(self, n: int, step: Vector) -> None:
        """Told after every step of a fit: residuals that are kept are updated."""

    @abstractmethod
    def validation_error(self, fit: BiasFit) -> float | None:
        """RMSE of the validation entries; ``None`` where there are none."""


def backfit(entries: BiasEntries, grid: Sequence[float]) -> BiasFit:
    """The best fit among the λ of a grid, which are fitted side by side so that a pass serves all of them."""
    fits = [BiasFit(shrinkage, [0.0 * counts for counts in entries.counts], entries.squares) for shrinkage in grid]
    for round_ in range(1, MAX_ROUNDS + 1):
        running = [fit for fit in fits if fit.running]
        if not running:
            break
        for n, counts in enumerate(entries.counts):
            for fit, sums in zip(running, entries.residual_sums(n, running), strict=True):
                entries.changed(n, fit.refit(n, sums, counts))
        for fit in running:
            fit.score(round_, entries.validation_error(fit))
    return min(fits, key=lambda fit: fit.lowest)


def _as_tables(fit: BiasFit, entries: BiasEntries) -> Tables:
    """The biases as a predictor that knows which labels were seen."""
    tables = []
    for n, (effects, counts) in enumerate(zip(fit.best, entries.counts, strict=True)):
        seen = np.flatnonzero(_to_numpy(counts)).astype(np.int64)
        tables.append(Table((n,), (len(counts),), seen, np.append(_to_numpy(effects)[seen], 0.0)))
    shrinkage = (fit.shrinkage,) * len(tables)
    return Tables(entries.mean, tuple(tables), shrinkage, (shrinkage,) * fit.rounds)


def _to_numpy(values: Vector) -> NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


Entries = tuple[Tensor, Tensor]
"""Indices ``(entries, modes)`` and values ``(entries,)``, on a device."""


class _EntriesInMemory(BiasEntries):
    """Entries whose residuals are kept and updated: one fit at a time, so that they are kept once."""

    def __init__(self, train: Entries, valid: Entries, shape: Sequence[int]) -> None:
        self.labels, self.valid_labels = ([column.contiguous() for column in one[0].T] for one in (train, valid))
        self.values, self.valid_values = train[1].double(), valid[1].double()  # (entries,) each
        self.mean = float(self.values.mean())
        self.squares = float((self.values - self.mean).square().sum())
        self.sum_by_label = [_sums_by_label(column, size) for column, size in zip(self.labels, shape, strict=True)]
        self.counts = [sums(torch.ones_like(self.values)) for sums in self.sum_by_label]

    def fit(self) -> Tables:
        """The biases, with the λ that validates best."""
        grid = SHRINKAGE_GRID if len(self.valid_values) else (DEFAULT_SHRINKAGE,)
        return _as_tables(min(map(self._fit_one, grid), key=lambda fit: fit.lowest), self)

    def _fit_one(self, shrinkage: float) -> BiasFit:
        self.residuals, self.valid_residuals = self.values - self.mean, self.valid_values - self.mean
        return backfit(self, (shrinkage,))

    def residual_sums(self, n: int, fits: Sequence[BiasFit]) -> Sequence[Vector]:
        return [self.sum_by_label[n](self.residuals) for _ in fits]

    def changed(self, n: int, step: Vector) -> None:
        for labels, residuals in ((self.labels, self.residuals), (self.valid_labels, self.valid_residuals)):
            if residuals.is_cuda:
                residuals -= step[labels[n]]
            else:  # three times as fast as a gather and a difference
                subtract_by_row(labels[n].numpy(), step.numpy(), residuals.numpy())

    def validation_error(self, fit: BiasFit) -> float | None:
        return math.sqrt((self.valid_residuals**2).mean()) if len(self.valid_values) else None


def fit_bias(train: SparseTensor, valid: SparseTensor) -> Tables:
    """The additive ridge-bias predictor: a mean, one number per label, one λ for all of them."""
    given = [tuple(map(torch.as_tensor, (part.indices.copy(), part.values.copy()))) for part in (train, valid)]
    return fit_bias_on_device(given[0], given[1], train.shape)  # type: ignore[arg-type]


def fit_bias_on_device(train: Entries, valid: Entries, shape: Sequence[int]) -> Tables:
    """The same from tensors, which stay on their device."""
    return _EntriesInMemory(train, valid, shape).fit()


def _sums_by_label(labels: Tensor, size: int) -> Callable[[Tensor], Tensor]:
    """Sums per label, ``(entries,)`` → ``(I_n,)``; on a GPU as differences of running sums, since additions to the same
    label would wait for each other.
    """
    if not labels.is_cuda:
        return lambda values: torch.bincount(labels, values, minlength=size)
    order, ends = torch.argsort(labels), torch.bincount(labels, minlength=size).cumsum(0)

    def sums(values: Tensor) -> Tensor:
        running = values.index_select(0, order).cumsum(0)
        upto = torch.where(ends > 0, running[(ends - 1).clamp_min(0)], 0.0)
        return upto.diff(prepend=upto.new_zeros(1))

    return sums


class _EntriesOnDisk(BiasEntries):
    """Entries in shards: residuals are computed anew in every pass."""

    def __init__(self, tensor: ShardedTensor, engine: Engine, processes: ProcessGroup) -> None:
        self.train, self.counts, self.valid = tensor.train, tensor.counts, tensor.valid
        self.mean, self.squares = tensor.summary.mean, tensor.summary.squares
        self.engine, self.processes = engine, processes

    def residual_sums(self, n: int, fits: Sequence[BiasFit]) -> Sequence[Vector]:
        terms = [Terms(self.mean, tuple(starmap(_term, enumerate(fit.effects)))) for fit in fits]
        sums = torch.zeros(len(fits), len(self.counts[n]), dtype=torch.float64)
        for block in self.train.blocks():
            indices, values = torch.from_numpy(block.indices), torch.from_numpy(block.values)
            for one, total in zip(terms, sums, strict=True):
                residuals = values.clone()
                self.engine.subtract_terms(one, indices, residuals)
                add_numbers(indices, n, residuals, total)
        summed: NDArray[np.float64] = self.processes.sum_(sums.to(self.processes.device)).cpu().numpy()
        return list(summed)

    def changed(self, n: int, step: Vector) -> None:
        pass

    def validation_error(self, fit: BiasFit) -> float | None:
        valid = self.valid
        if not len(valid):
            return None
        predicted = sum(effects[valid.indices[:, n]] for n, effects in enumerate(fit.effects))
        return math.sqrt(np.mean((valid.values - self.mean - predicted) ** 2))


def _term(mode: int, effects: NDArray[np.float64]) -> Term:
    return Term((mode,), (torch.from_numpy(effects[:, None].astype(np.float32)),))


def fit_bias_streamed(tensor: ShardedTensor, engine: Engine, processes: ProcessGroup = SINGLE_PROCESS) -> Tables:
    """The same from entries on disk, of which every process has its share; the engine's loops sum the residuals."""
    entries = _EntriesOnDisk(tensor, engine, processes)
    return _as_tables(backfit(entries, SHRINKAGE_GRID if len(tensor.valid) else (DEFAULT_SHRINKAGE,)), entries)
