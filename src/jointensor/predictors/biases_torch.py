"""The additive biases of :func:`jointensor.predictors.tables.fit_bias` by torch, for entries that are on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from jointensor.predictors.tables import BIAS_SHRINKAGE, DEFAULT_SHRINKAGE, ROUNDS, Table, Tables

Entries = tuple[Tensor, Tensor]
"""Indices ``(entries, modes)`` and values ``(entries,)``."""


def fit_bias_on_device(train: Entries, valid: Entries, shape: Sequence[int]) -> Tables:
    """The same tables, by the same rounds; sums are taken in another order."""
    modes = [_Mode.of(train[0][:, n], valid[0][:, n], size) for n, size in enumerate(shape)]
    grid = BIAS_SHRINKAGE if len(valid[1]) else (DEFAULT_SHRINKAGE,)
    fits = [_backfit(modes, train[1], valid[1], shrinkage) for shrinkage in grid]
    _, mean, effects, shrinkage = min(fits, key=lambda fit: fit[0])
    tables = [_table(n, shape, modes[n].counts, effect) for n, effect in enumerate(effects)]
    return Tables(mean, tuple(tables), (shrinkage,) * len(shape))


class _Mode(NamedTuple):
    """Labels of all entries in one mode, and what sums by label need."""

    column: Tensor
    checked: Tensor
    """Of the validation entries."""
    order: Tensor
    ends: Tensor
    counts: Tensor

    @classmethod
    def of(cls, column: Tensor, checked: Tensor, size: int) -> _Mode:
        counts = torch.bincount(column, minlength=size)
        return cls(column.contiguous(), checked.contiguous(), torch.argsort(column), counts.cumsum(0), counts.double())

    def sums(self, values: Tensor) -> Tensor:
        """Sum per label, ``(entries,)`` → ``(I_n,)``: differences of running sums, since labels of many entries
        would make additions wait for each other.
        """
        running = values.index_select(0, self.order).cumsum(0)
        upto = torch.where(self.ends > 0, running[(self.ends - 1).clamp_min(0)], 0.0)
        return upto.diff(prepend=upto.new_zeros(1))


def _backfit(
    modes: list[_Mode], values: Tensor, truth: Tensor, shrinkage: float
) -> tuple[float, float, list[Tensor], float]:
    mean = float(values.double().mean())
    left, valid_left = values.double() - mean, truth.double() - mean
    effects = [torch.zeros_like(mode.counts) for mode in modes]
    lowest, best = math.inf, effects
    for _ in range(ROUNDS):
        for n, mode in enumerate(modes):
            sums = mode.sums(left) + mode.counts * effects[n]
            step = sums / (mode.counts + shrinkage) - effects[n]
            left -= step.index_select(0, mode.column)
            valid_left -= step.index_select(0, mode.checked)
            effects[n] = effects[n] + step
        penalty = shrinkage * sum(float(effect @ effect) for effect in effects)
        error = math.sqrt(float((valid_left**2).mean())) if len(truth) else _root(left, penalty)
        if error > lowest * (1 - (1e-4 if len(truth) else 1e-9)):
            break
        lowest, best = error, list(effects)
    return lowest, mean, best, shrinkage


def _root(left: Tensor, penalty: float) -> float:
    return math.sqrt((float(left @ left) + penalty) / len(left))


def _table(n: int, shape: Sequence[int], counts: Tensor, effects: Tensor) -> Table:
    seen = counts.nonzero().squeeze(1)
    numbers = torch.cat([effects[seen], effects.new_zeros(1)])
    return Table((n,), (shape[n],), seen.cpu().numpy(), numbers.cpu().numpy())
