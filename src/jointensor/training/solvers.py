"""How a half is trained for one epoch while the other is fixed: by gradients, or exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jointensor.models.joint import LINKS
from jointensor.training.als import Als
from jointensor.training.losses import Loss
from jointensor.training.state import Entries, Fixed, Half


class Solver(Protocol):
    """Trains a half for one pass over the entries."""

    def epoch(self, half: Half, fixed: Fixed, train: Entries) -> float:
        """One pass; returns the mean loss of the training entries."""


@dataclass
class Descent:
    """Shuffled minibatches of entries that are on the device already."""

    optimizer: torch.optim.Optimizer
    loss: Loss
    batch_size: int

    def epoch(self, half: Half, fixed: Fixed, train: Entries) -> float:
        """One shuffled pass; the mean loss of the batches as they came."""
        link, device = LINKS[self.loss.link], train.values.device
        order = torch.randperm(len(train), device=device)
        total = torch.zeros((), device=device)
        for start in range(0, len(train), self.batch_size):
            batch = order[start : start + self.batch_size]
            rest = fixed.train[batch] if isinstance(fixed.train, Tensor) else fixed.train
            predicted = link(half(train.indices[batch]) + rest)
            loss = self.loss.elementwise(predicted, train.values[batch]).mean()
            total += loss.detach() * len(batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return float(total) / len(train)


@dataclass
class Exact:
    """One sweep of exact least squares over all blocks of g; Huber's loss by reweighting."""

    als: Als
    loss: Loss
    huber_delta: float

    def epoch(self, half: Half, fixed: Fixed, train: Entries) -> float:
        """One sweep; the mean loss after it. ``half`` is the g that the sweeps are for."""
        targets = train.values - fixed.train
        self.als.sweep(targets, self._weights(targets))
        return float(self.loss.elementwise(self.als.total(), targets).mean())

    def _weights(self, targets: Tensor) -> Tensor | None:
        """Weights that make the squared loss touch Huber's where g is now; none for the squared loss itself."""
        if self.loss.name == "squared":
            return None
        away = (targets - self.als.total()).abs().clamp_min(1e-30)
        return (self.huber_delta / away).clamp_max(1.0)
