"""How a half is trained for one epoch while the other is fixed: by gradients, or exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from jointensor.models.joint import LINKS, MIN_BATCH
from jointensor.solvers.als import Als
from jointensor.solvers.entries import Entries, Fixed, Half
from jointensor.solvers.losses import Loss
from jointensor.solvers.random_state import Generators, RandomState


class Optimizer(Protocol):
    """What a descent needs of an optimiser of torch's, or of one of ours."""

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

    def epoch(self, half: Half, fixed: Fixed, train: Entries, position: Position | None = None) -> float:
        """One pass, or the rest of one from ``position`` on; returns the mean loss of the training entries."""

    def halve(self) -> bool:
        """Take half as much memory from now on; says whether that is possible."""


PIECES = 16
"""Pieces of an epoch: after each the running mean of the parameters is updated, and a checkpoint may be written."""


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
class Descent:
    """Shuffled minibatches of entries that are on the device already."""

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
    generators: Generators = field(default_factory=lambda: Generators(torch.device("cpu"), 0))

    def epoch(self, half: Half, fixed: Fixed, train: Entries, position: Position | None = None) -> float:
        """One shuffled pass; the mean loss of the batches as they came."""
        device, starts = train.values.device, range(0, len(train), self.batch_size)
        order, began = shuffled(len(train), self.generators, position)
        total = torch.tensor(position.total if position else 0.0, device=device)

        def after(piece: int) -> None:
            self.pause(Position(piece, float(total), began))

        for first, last in self.pieces(len(starts), position.piece if position else 0, after):
            for start in starts[first:last]:
                total += self._step(half, fixed, train, order[start : start + self.batch_size])
        return float(total) / len(train)

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

    def _step(self, half: Half, fixed: Fixed, train: Entries, batch: Tensor) -> Tensor:
        rest = fixed.train.index_select(0, batch) if isinstance(fixed.train, Tensor) else fixed.train
        return self.step(half, rest, Entries(train.indices.index_select(0, batch), train.values.index_select(0, batch)))

    def step(self, half: Half, rest: Tensor | float, batch: Entries) -> Tensor:
        """One step for some entries, ``rest`` what the fixed half says of them; the sum of their losses before it."""
        predicted = LINKS[self.loss.link](half(batch.indices) + rest)
        loss = self.loss.elementwise(predicted, batch.values).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach() * len(batch)

    def halve(self) -> bool:
        """Take half as many entries per step from now on; says whether that is possible."""
        if self.batch_size <= MIN_BATCH:
            return False
        self.batch_size //= 2
        return True

    def resumable(self) -> dict[str, Any]:
        """What the optimiser knows, and where the running means and the learning rate are."""
        average = None if self.average is None else self.average.resumable()
        known = {"optimizer": self.optimizer.state_dict(), "average": average, "epochs": self.epochs}
        return {**known, "batch_size": self.batch_size}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs, self.batch_size = state["epochs"], state["batch_size"]
        if self.average is not None:
            self.average.resume(state["average"])

    def settle(self) -> None:
        """End a turn: go on from the running mean, where there is one."""
        if self.average:
            self.average.settle()


def shuffled(count: int, generators: Generators, position: Position | None) -> tuple[Tensor, RandomState]:
    """The order of an epoch, ``(entries,)``, and the random state it came from; the same again from a position."""
    now = generators.state()
    began = position.random if position else now
    generators.set_state(began)
    order = torch.randperm(count, device=generators.device, generator=generators.local)
    if position:
        generators.set_state(now)
    return order, began


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

    def epoch(self, half: Half, fixed: Fixed, train: Entries, position: Position | None = None) -> float:
        """One sweep; the mean loss after it. ``half`` is the g that the sweeps are for."""
        targets = train.values - fixed.train
        self.als.sweep(targets, self._weights(targets))
        return self.als.processes.mean(self.loss.elementwise(self.als.total(), targets))

    def resumable(self) -> dict[str, Any]:
        """State of the exact solver beside the tables."""
        return {"ridge": self.als.ridge, "als": self.als.resumable()}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from such a state."""
        self.als.ridge = state["ridge"]
        self.als.resume(state["als"])

    def halve(self) -> bool:
        """The memory of a sweep is fixed."""
        return False

    def _weights(self, targets: Tensor) -> Tensor | None:
        """Weights that make the squared loss touch Huber's where g is now; none for the squared loss itself."""
        if self.loss.name == "squared":
            return None
        away = (targets - self.als.total()).abs().clamp_min(1e-30)
        return (self.huber_delta / away).clamp_max(1.0)
