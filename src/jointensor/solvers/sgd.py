"""How a half is trained for one epoch while the other is frozen: by gradients, or exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from jointensor.data.store import Batch, Column, EntryStore, Half, Scores
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.models.joint import LINKS, MIN_BATCH, free_gpu_memory, is_out_of_memory
from jointensor.random_state import Generators, RandomState, seed_of
from jointensor.solvers.als import Als
from jointensor.solvers.data_parallel import sum_gradients
from jointensor.solvers.losses import Loss
from jointensor.threads import threads_for

if TYPE_CHECKING:
    from jointensor.solvers.cuda_graphs import GraphSteps


@dataclass
class FrozenHalf:
    """Scores of the half that is not being trained: constants, evaluated once per turn."""

    train: Scores = 0.0
    valid: Tensor | float = 0.0


class Optimizer(Protocol):
    """The part of torch's optimisers that training uses."""

    param_groups: list[dict[str, Any]]

    def step(self) -> object:
        """Change the parameters by their gradients."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learnt of the gradients so far."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from that."""


class Resumable(Protocol):
    """Has a state beside the parameters of the model."""

    def resumable(self) -> Any:
        """That state: nested dictionaries, lists, numbers and tensors."""

    def resume(self, state: Any) -> None:
        """Continue from such a state."""


class Solver(Resumable, Protocol):
    """Trains a half for one pass over the entries."""

    average: Average | None
    """Running mean of what is trained, which is what is validated and kept; ``None`` without one."""

    def epoch(self, half: Half, frozen: FrozenHalf, train: EntryStore, position: Position | None = None) -> float:
        """One pass, or the rest of one from ``position`` on; returns the mean loss of the training entries."""


PIECES = 16
"""Pieces of an epoch: after each the running mean of the parameters is updated, and a checkpoint may be written."""


ENTRIES_PER_THREAD = 8192
"""Entries of a step that are worth a thread of a CPU. On two idle cores, steps of JULIA 4/16 on up to 4,096 entries
take as long with two threads as with one; on 16,384 entries one takes 1.28 times as long, on 65,536 it takes 1.44
times. Beside two other processes, epochs of small steps take 1.6 times as long with one thread, and 5 to 180 times as
long with two: threads that wait for each other at every operation wait for those processes, too."""


@dataclass(frozen=True)
class Position:
    """A point inside an epoch."""

    piece: int
    """Pieces that are done."""
    total: float
    """Sum of the losses of their entries."""
    random: RandomState
    """Random state at the beginning of the epoch, which its order comes from."""

    @property
    def share(self) -> float:
        """Share of the epoch that is done."""
        return self.piece / PIECES


class Average:
    """Running mean of parameters: what many noisy steps agree on.

    Parameters
    ----------
    parameters
        What is trained.
    epochs
        Over about how many epochs the mean runs; at the start, over all there were.
    """

    def __init__(self, parameters: Sequence[Tensor], epochs: float) -> None:
        self.parameters = list(parameters)
        self.means = [parameter.detach().clone() for parameter in parameters]
        self.most, self.count = max(PIECES * epochs, 1.0), 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the parameters as they are into the mean."""
        self.count += 1
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            mean.lerp_(parameter, 1 / min(self.count, self.most))

    def resumable(self) -> dict[str, Any]:
        """Means and how many states are in them."""
        return {"means": self.means, "count": self.count}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from means that were written."""
        self.count = state["count"]
        for mean, was in zip(self.means, state["means"], strict=True):
            mean.copy_(was)

    @torch.no_grad()
    def settle(self) -> None:
        """Go on from the means, and take new ones from there."""
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            parameter.copy_(mean)
        self.count = 0

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the parameters and their means."""
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(kept)


@dataclass
class Sgd:
    """Stochastic gradient descent over shuffled minibatches, whatever the optimiser and wherever the entries are.

    A batch is the recipe's, whatever the number of processes: each process takes the gradient of its entries of a
    batch, the gradients are summed, and all processes take the same step.
    """

    optimizer: Optimizer
    loss: Loss
    batch_size: int
    average: Average | None = None
    falls_within: int = 0
    """Epochs within which the learning rate falls to zero, in a straight line; 0: it does not fall."""
    epochs: int = 0
    """Epochs so far."""
    pause: Callable[[Position], None] = lambda _: None
    """Called between pieces of an epoch."""
    on_smaller: Callable[[int], None] = lambda _: None
    """Called with the new batch size, where the one before did not fit into a GPU's memory."""
    generators: Generators = field(default_factory=lambda: Generators(torch.device("cpu"), 0))
    processes: ProcessGroup = SINGLE_PROCESS
    runner: GraphSteps | None = None
    """Replays recorded steps where entries are on the device; the loop below takes them without one."""

    def epoch(self, half: Half, frozen: FrozenHalf, train: EntryStore, position: Position | None = None) -> float:
        """One shuffled pass, or the rest of one; the mean loss of the batches as they came.

        It is begun again with smaller batches where a GPU's memory is too small for these.
        """
        while True:
            try:
                return self._epoch(half, frozen, train, position)
            except RuntimeError as error:
                if not is_out_of_memory(error) or not self._halve():
                    raise
            free_gpu_memory()  # out here: the error holds on to what was computed until then
            position = None
            self.on_smaller(self.batch_size)

    def _epoch(self, half: Half, frozen: FrozenHalf, train: EntryStore, position: Position | None) -> float:
        if self.runner is not None and train.resident is not None:
            return self.runner.epoch(self, half, frozen, train.resident)
        steps, done = train.steps(self.batch_size), position.piece if position else 0
        now = self.generators.state()
        began = position.random if position else now
        self.generators.set_state(began)
        batches = train.batches(self.batch_size, frozen.train, self.generators, done * steps // PIECES)
        if position:
            self.generators.set_state(now)
        total = torch.tensor(position.total if position and self.processes.first else 0.0, device=train.device)

        def after(piece: int) -> None:
            (whole,) = self.processes.sum(float(total))
            self.pause(Position(piece, whole, began))

        with threads_for(self.batch_size, ENTRIES_PER_THREAD), closing(batches) as coming:
            for first, last in self.pieces(steps, done, after):
                with self._random_of(began, first):
                    for batch in islice(coming, last - first):
                        total += self.step(half, batch)
        return self.processes.sum(float(total))[0] / train.total

    def _random_of(self, began: RandomState, first: int) -> AbstractContextManager[None]:
        """Random numbers of the network (dropout): of every process its own."""
        return self.processes.own_random(seed_of(began), first) if self.processes.shared else nullcontext()

    def pieces(
        self, steps: int, done: int = 0, after: Callable[[int], None] = lambda _: None
    ) -> Iterator[tuple[int, int]]:
        """The steps of an epoch in a few pieces; after each the running mean is taken, before it the rate is set."""
        for piece in range(done, PIECES):
            first, last = piece * steps // PIECES, (piece + 1) * steps // PIECES
            if first == last:
                continue
            if self.falls_within:
                set_rate(self.optimizer, 1 - (self.epochs + piece / PIECES) / self.falls_within)
            yield first, last
            if self.average:
                self.average.update()
            if piece < PIECES - 1:
                after(piece + 1)
        self.epochs += 1

    def step(self, half: Half, batch: Batch) -> Tensor:
        """One step; the sum of the losses of this process's entries before it."""
        predicted = LINKS[self.loss.link](half(batch.indices) + batch.scores)
        loss = self.loss.elementwise(predicted, batch.values).sum()
        self.optimizer.zero_grad()
        (loss / batch.total).backward()  # type: ignore[no-untyped-call]
        if self.processes.shared:
            sum_gradients([one for group in self.optimizer.param_groups for one in group["params"]], self.processes)
        self.optimizer.step()
        return loss.detach()

    def _halve(self) -> bool:
        """Take half as many entries per step from now on; says whether that is possible.

        Where one of several processes has too little memory the others cannot know; it fails, and all end.
        """
        if self.batch_size <= MIN_BATCH or self.processes.shared:
            return False
        self.batch_size //= 2
        if self.runner is not None:
            self.runner.reset()
        return True

    def resumable(self) -> dict[str, Any]:
        """State of the optimiser, the running means and the learning rate."""
        average = None if self.average is None else self.average.resumable()
        state = {"optimizer": self.optimizer.state_dict(), "average": average, "epochs": self.epochs}
        return {**state, "batch_size": self.batch_size}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from such a state."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs, self.batch_size = state["epochs"], state["batch_size"]
        if self.average is not None:
            self.average.resume(state["average"])

    def settle(self) -> None:
        """End a turn: continue from the running mean, where there is one."""
        if self.average:
            self.average.settle()


def set_rate(optimizer: Optimizer, share: float) -> None:
    """Set every learning rate to a share of the one it started with; in place where it lives on a device."""
    for group in optimizer.param_groups:
        start = group.setdefault("initial_lr", float(group["lr"]))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(start * share)
        else:
            group["lr"] = start * share


@dataclass
class Exact:
    """One sweep of exact least squares over all blocks of g; Huber's loss by reweighting."""

    als: Als
    loss: Loss
    huber_delta: float
    average: Average | None = None

    def epoch(self, half: Half, frozen: FrozenHalf, train: EntryStore, position: Position | None = None) -> float:
        """One sweep over the entries, which ``als`` was made for; the mean loss after it."""
        entries = train.resident
        if entries is None:  # on disk, where the loss is squared
            self.als.sweep(frozen.train)
            return self.als.systems.mean_squared_error()
        assert not isinstance(frozen.train, Column)  # the entries are in memory
        targets = entries.values - frozen.train
        with self.als.threads(len(targets)):
            self.als.sweep(targets, self._huber_weights(targets) if self.loss.name == "huber" else None)
            return self.als.processes.mean(self.loss.elementwise(self.als.total(), targets))

    def _huber_weights(self, targets: Tensor) -> Tensor:
        """Weights that make the squared loss touch Huber's where g is now."""
        away = (targets - self.als.total()).abs().clamp_min(1e-30)
        return (self.huber_delta / away).clamp_max(1.0)

    def resumable(self) -> dict[str, Any]:
        """State of the exact solver beside the tables."""
        links = {n: dict(one.strengths) for n, one in self.als.links.items()}
        return {"ridge": self.als.ridge, "links": links, "als": self.als.resumable()}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from such a state."""
        self.als.ridge = state["ridge"]
        self.als.set_links(state["links"])
        self.als.resume(state["als"])
