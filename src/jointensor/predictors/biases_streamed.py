"""The additive ridge-bias predictor from entries on disk: :func:`~jointensor.predictors.tables.fit_bias`, in passes.

All values of λ are tried side by side, so that a pass over the entries serves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jointensor.data.shards import Block
from jointensor.data.tensor import SparseTensor
from jointensor.kernels.terms import Biases, Loops
from jointensor.predictors.tables import BIAS_SHRINKAGE, DEFAULT_SHRINKAGE, ROUNDS, Table, Tables

Pass = Callable[[], Iterator[Block]]
"""Begins a pass over the training entries."""


@dataclass
class _Trial:
    """The biases for one λ."""

    shrinkage: float
    effects: list[NDArray[np.float64]]  # (I_n,) each
    lowest: float = math.inf
    best: list[NDArray[np.float64]] = field(default_factory=list)
    rounds: int = 0
    squares: float = 0.0
    """Of what is left of the training values."""
    going: bool = True

    def refit(self, n: int, sums: NDArray[np.float64], counts: NDArray[np.int64], squares: float) -> None:
        """New biases of one mode, from the sums of what was left."""
        old = self.effects[n]
        step = (sums + counts * old) / (counts + self.shrinkage) - old
        self.effects[n] = old + step
        self.squares = squares - 2 * float(step @ sums) + float(step**2 @ counts)

    def judge(self, round_: int, mean: float, valid: SparseTensor) -> None:
        """Keep the biases where they validate better than those before; stop where they hardly do."""
        if len(valid):
            said = sum(one[valid.indices[:, n]] for n, one in enumerate(self.effects))
            error = math.sqrt(np.mean((valid.values - mean - said) ** 2))
        else:
            error = self.squares + sum(self.shrinkage * float(one @ one) for one in self.effects)
        if error > self.lowest * (1 - (1e-4 if len(valid) else 2e-9)):
            self.going = False
        else:
            self.lowest, self.best, self.rounds = error, [one.copy() for one in self.effects], round_


def fit_bias_streamed(
    entries: Pass, mean: float, counts: tuple[NDArray[np.int64], ...], valid: SparseTensor, loops: Loops
) -> Tables:
    """A mean, one number per label, one λ for all of them.

    Parameters
    ----------
    entries
        Begins a pass over the training entries.
    mean
        Of the training values.
    counts
        Training entries of every label, ``(I_n,)`` for each mode.
    valid
        Entries that choose λ and the number of rounds; there may be none.
    loops
        The engine's.
    """
    grid = BIAS_SHRINKAGE if len(valid) else (DEFAULT_SHRINKAGE,)
    trials = [_Trial(one, [np.zeros(len(labels)) for labels in counts]) for one in grid]
    starts = np.cumsum([0, *(len(labels) for labels in counts)])[:-1]
    for round_ in range(1, ROUNDS + 1):
        going = [trial for trial in trials if trial.going]
        if not going:
            break
        for n, labels in enumerate(counts):
            effects = [np.concatenate([trial.effects[m] for m in range(len(counts))]) for trial in going]
            biases = Biases(mean, np.stack(effects, axis=1), starts)
            sums, squares = np.zeros((len(labels), len(going))), np.zeros(len(going))
            for block in entries():
                squares += loops.biases(biases, n, (block.indices, block.values), sums)
            for k, trial in enumerate(going):
                trial.refit(n, sums[:, k], labels, float(squares[k]))
        for trial in going:
            trial.judge(round_, mean, valid)
    best = min(trials, key=lambda trial: trial.lowest)
    tables = tuple(_table(n, one, labels) for n, (one, labels) in enumerate(zip(best.best, counts, strict=True)))
    shrinkage = (best.shrinkage,) * len(counts)
    return Tables(mean, tables, shrinkage, (shrinkage,) * best.rounds)


def _table(n: int, effects: NDArray[np.float64], counts: NDArray[np.int64]) -> Table:
    seen = np.flatnonzero(counts)
    return Table((n,), (len(counts),), seen.astype(np.int64), np.append(effects[seen], 0.0))
