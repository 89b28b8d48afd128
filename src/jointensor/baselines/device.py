"""The additive biases of :func:`jointensor.baselines.tables.fit_bias` by torch, for entries that are on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from jointensor.baselines.tables import BIAS_SHRINKAGE, DEFAULT_SHRINKAGE, ROUNDS, Table, Tables

Entries = tuple[Tensor, Tensor]
"""Indices ``(entries, modes)`` and values ``(entries,)``."""


def fit_bias_on_device(train: Entries, valid: Entries, shape: Sequence[int]) -> Tables:
    """The same tables, by the same rounds; sums are taken in another order."""
    columns, checked = ([part[0][:, n].contiguous() for n in range(len(shape))] for part in (train, valid))
    counts = [torch.bincount(column, minlength=size).double() for column, size in zip(columns, shape, strict=True)]
    grid = BIAS_SHRINKAGE if len(valid[1]) else (DEFAULT_SHRINKAGE,)
    fits = [_backfit(columns, checked, counts, train[1], valid[1], shrinkage) for shrinkage in grid]
    _, mean, effects, shrinkage = min(fits, key=lambda fit: fit[0])
    tables = [_table(n, shape, counts[n], effect) for n, effect in enumerate(effects)]
    return Tables(mean, tuple(tables), (shrinkage,) * len(shape))


def _backfit(
    columns: list[Tensor], checked: list[Tensor], counts: list[Tensor], values: Tensor, truth: Tensor, shrinkage: float
) -> tuple[float, float, list[Tensor], float]:
    mean = float(values.double().mean())
    left, valid_left = values.double() - mean, truth.double() - mean
    effects = [torch.zeros_like(count) for count in counts]
    lowest, best = math.inf, effects
    for _ in range(ROUNDS):
        for n, count in enumerate(counts):
            sums = torch.bincount(columns[n], left, minlength=len(count)) + count * effects[n]
            step = sums / (count + shrinkage) - effects[n]
            left -= step.index_select(0, columns[n])
            valid_left -= step.index_select(0, checked[n])
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
