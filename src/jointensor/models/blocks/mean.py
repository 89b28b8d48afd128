"""``mean``: one number for all entries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jointensor.models.blocks.base import Block, Kind, SolveSteps, no_argument, register


class Mean(Block):
    """One number."""

    level_order = 0

    def __init__(self) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(()))

    def forward(self, indices: Tensor) -> Tensor:
        """The number for every entry, ``(batch, modes)`` → ``(batch,)``."""
        return self.constant.expand(len(indices))

    def init_level(self, level: float, spread: float | None) -> float:
        """Take all of the level."""
        return self.become(level)

    @torch.no_grad()
    def become(self, level: float) -> float:
        """Take all of the level."""
        self.constant.fill_(level)
        return 0.0

    def solve(self, steps: SolveSteps) -> None:
        """The mean of what the other blocks leave."""
        steps.constant(self.constant)


register(Kind("mean", ("mean",), "mean", no_argument, lambda *_: {"mean": Mean()}, streamable=True))
