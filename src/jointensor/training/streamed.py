"""A fit whose training entries are on disk: the same phases, fed a shard at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jointensor.data.shard_writer import ShardedTensor
from jointensor.data.shards import Block
from jointensor.errors import ConfigError
from jointensor.kernels import pick_engine
from jointensor.models.blocks import KINDS, parse_blocks
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.predictors.tables import Tables
from jointensor.solvers.als import Als
from jointensor.solvers.entries import Entries, Fixed, Half
from jointensor.solvers.random_state import Generators, RandomState
from jointensor.solvers.sgd import PIECES, Average, Descent, Exact, Position
from jointensor.solvers.streamed_entries import Column, StreamedEntries
from jointensor.solvers.systems_on_disk import SystemsOnDisk
from jointensor.training.checkpoint import Slot
from jointensor.training.fit import Fit, check_values, finish, run_trainer
from jointensor.training.history import OnEpoch
from jointensor.training.init import Levels, initialise
from jointensor.training.recipe import Recipe
from jointensor.training.trainer import Trainer

FIXED = Column("fixed")
"""Where the half that is fixed is kept; there is one at a time."""


@dataclass
class StreamedDescent(Descent):
    """Minibatches of shards in a random order, shuffled inside."""

    def epoch(self, half: Half, fixed: Fixed, train: Entries, position: Position | None = None) -> float:
        """One pass, or the rest of one; the mean loss of the batches as they came."""
        assert isinstance(train, StreamedEntries)  # what the streamed trainer hands over
        column, level = _parts(fixed)
        seed, began = _drawn(self.generators, position)
        done, total = (position.piece, torch.tensor(position.total)) if position else (0, torch.zeros(()))

        def after(piece: int) -> None:
            self.pause(Position(piece, float(total), began))

        steps = sum(self._batches(count) for count in train.shards.counts)
        with closing(self._in_batches(train.blocks(column, rng=np.random.default_rng(seed)))) as batches:
            for _ in range(done * steps // PIECES):  # what was trained before the interruption
                next(batches)
            for first, last in self.pieces(steps, done, after):
                for block in islice(batches, last - first):
                    entries = Entries(torch.from_numpy(block.indices).long(), torch.from_numpy(block.values))
                    rest = level if block.column is None else torch.from_numpy(block.column)
                    total += self.step(half, rest, entries)
        return float(total) / len(train)

    def _batches(self, entries: int) -> int:
        """Steps that a shard takes: batches of about the same size."""
        return max(1, round(entries / self.batch_size))

    def _in_batches(self, blocks: Iterator[Block]) -> Generator[Block]:
        for block in blocks:
            edges = np.linspace(0, len(block), self._batches(len(block)) + 1).astype(np.int64)
            for first, last in pairwise(edges.tolist()):
                column = None if block.column is None else block.column[first:last]
                yield Block(block.indices[first:last], block.values[first:last], column)


def _parts(fixed: Fixed) -> tuple[Column | None, float]:
    """The half that is fixed: a column on disk, or one number."""
    if isinstance(fixed.train, Column):
        return fixed.train, 0.0
    return None, float(fixed.train)


def _drawn(generators: Generators, position: Position | None) -> tuple[int, RandomState]:
    """The seed of an epoch's order, and the random state it came from; of an interrupted one the same order."""
    now = generators.state()
    began = position.random if position else now
    generators.set_state(began)
    seed = int(torch.randint(2**62, (), generator=generators.cpu))
    if position:
        generators.set_state(now)
    return seed, began


@dataclass
class StreamedExact(Exact):
    """One sweep of exact least squares over entries on disk."""

    def epoch(self, half: Half, fixed: Fixed, train: Entries, position: Position | None = None) -> float:
        """One sweep; the mean squared error after it."""
        column, level = _parts(fixed)
        self.als.sweep(level if column is None else column)
        return self.als.systems.mean_squared_error()


class StreamedTrainer(Trainer):
    """Runs epochs over training entries on disk; validation entries are in memory."""

    train: StreamedEntries
    systems = 1 << 30
    """Bytes for the systems of an exact solve."""

    @property
    def evaluation_batch(self) -> int:
        """Entries per forward pass where no gradients are needed."""
        return min(super().evaluation_batch, self.state.batch_limit)

    def _initialise(self, start: str) -> Levels:
        """Two values of the same mean and spread stand for all."""
        mean, spread = self.train.mean, self.train.spread
        return initialise(self.model, torch.tensor([mean - spread, mean + spread]), start=start)

    def _new_descent(self, settings: list[dict[str, Any]], average: Average | None) -> Descent:
        made = super()._new_descent(settings, average)
        return StreamedDescent(made.optimizer, made.loss, made.batch_size, made.average, pause=made.pause)

    def exact(self, g: Multilinear) -> Exact:
        """The exact solver of g."""
        systems = SystemsOnDisk(g, self.train, self.engine, self.systems)
        als = Als(g, systems, spread=self.train.spread or 1.0)
        return StreamedExact(als, self.loss, self.recipe.huber_delta)

    def freeze(self, half: Half) -> Fixed:
        """Evaluate a half that stays as it is during a turn, and keep it on disk."""

        def of(indices: Tensor) -> Tensor:
            return half(indices.long())

        for k, block in enumerate(self.train.shards.blocks()):
            numbers = evaluate_in_batches(of, torch.from_numpy(block.indices), self.evaluation_batch)
            self.train.shards.write_column(k, FIXED.name, numbers.float().numpy())
        return Fixed(FIXED, evaluate_in_batches(half, self.valid.indices, self.evaluation_batch))  # type: ignore[arg-type]


def check_streamed(linear: str, recipe: Recipe) -> None:
    """Refuse what needs all entries in memory.

    Raises
    ------
    ConfigError
        Which says what to do instead.
    """
    without = "; leave it out, or fit without --memory"
    possible = [name for name, kind in KINDS.items() if kind.streamable]
    for piece in parse_blocks(linear):
        if not piece.kind.streamable:
            raise ConfigError(
                f"block '{piece.kind.name}' needs all entries in memory{without} (possible are {', '.join(possible)})"
            )
    if recipe.linear_solver == "gibbs":
        raise ConfigError(f"linear_solver=gibbs needs all entries in memory{without}")
    if recipe.solves and recipe.loss == "huber":
        raise ConfigError(
            "the exact solver needs all entries in memory for the huber loss; add --set linear_solver=adam, or fit "
            "without --memory"
        )


def fit_streamed(  # noqa: PLR0913 - everything that decides a fit
    model: JointModel,
    dealt: ShardedTensor,
    recipe: Recipe,
    fallback: Tables,
    *,
    seed: int,
    systems: int,
    batch: int,
    budget: float = math.inf,
    engine: str = "auto",
    on_epoch: OnEpoch | None = None,
    on_note: Callable[[str], None] | None = None,
    checkpoint: Slot | None = None,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Fit:
    """Train a model on entries that were dealt to shards; as :func:`jointensor.training.fit.fit`, on the CPU.

    Parameters
    ----------
    model
        Trained in place, from a new random start.
    dealt
        Training and validation entries; test entries are not read.
    recipe
        Every number of training.
    fallback
        Bias predictor for unseen labels.
    seed
        Of everything random here.
    systems
        Bytes for the systems of an exact solve.
    batch
        Most entries of a step.
    budget
        Seconds after which training stops with the best state so far; looked at between shards.
    engine, on_epoch, on_note, checkpoint, stopping, clock
        As for :func:`jointensor.training.fit.fit`.
    """
    begin = clock()
    check_values(dealt.summary.low, dealt.summary.high, recipe)
    place, kernels = torch.device("cpu"), pick_engine(engine, "cpu")
    if kernels.first_use and recipe.solves and on_note is not None:
        on_note(kernels.first_use)
    model.to(place)
    kernels.equip(model, short=recipe.precision == "short")
    train, valid = StreamedEntries.of_shards(dealt, begin + budget), Entries.of(dealt.valid, place)

    trainer = StreamedTrainer(
        model, train, valid, recipe, seed=seed, deadline=begin + budget, clock=clock, on_epoch=on_epoch,
        on_note=on_note, engine=kernels, checkpoint=checkpoint, stopping=stopping,
    )  # fmt: skip
    trainer.systems, trainer.state.batch_limit = systems, batch
    resumed = run_trainer(trainer)
    return finish(trainer, fallback, dealt.valid, kernels, begin=begin, resumed=resumed)
