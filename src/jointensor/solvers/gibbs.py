"""Θ_L sampled: the same row systems as :mod:`jointensor.solvers.als`, with noise and precisions that are learnt.

    x = g + f + ε,   ε ~ N(0, 1/α),   a_i(r) ~ N(μ_r, 1/λ_r) per table,   μ, λ, α unknown

A draw of a row from its posterior is the solution of the same least-squares problem with noise of the right size added
to its targets and to what it is drawn to (mean and covariance follow by inserting), so the engines' solvers draw
samples as they are. A component that is not needed ends with a large λ_r and is as good as gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels.rows import ModeView, RowSolver, RowSystems, row_systems
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als, Pull

SHAPE, RATE = 1.0, 0.1
"""Of the gamma distributions that precisions come from, in units of the values' spread: two rows' worth."""

WIDE = 16.0
"""Precision with which biases and tables start, in the same units."""

LEAST, MOST, LOUD = 0.1, 1e8, 1e-4
"""Bounds of precisions, in the same units."""


@dataclass
class Level:
    """What the rows of one table are like: μ and λ of every component, ``(R,)`` each."""

    mean: Tensor
    precision: Tensor
    stiffness: Tensor | None = None
    """Precision of the difference to a neighbour, where neighbours are alike."""


class Gibbs(Als):
    """Sweeps that draw every row, then every precision; see :class:`~jointensor.solvers.als.Als`."""

    def __init__(
        self,
        g: Multilinear,
        indices: Tensor,
        *,
        spread: float,
        solver: RowSolver,
        systems: RowSystems = row_systems,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        super().__init__(g, indices, spread=spread, solver=solver, systems=systems, processes=processes)
        self.noise = spread**2
        """1/α, the variance that is left."""
        self.levels: dict[tuple[str, int], Level] = {}
        self.seen = {key: counts > 0 for key, counts in self.counts.items()}

    def resumable(self) -> dict[str, Any]:
        """What sweeps know beside the tables."""
        levels = {key: [one.mean, one.precision, one.stiffness] for key, one in self.levels.items()}
        return {**super().resumable(), "noise": self.noise, "levels": levels}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        super().resume(state)
        device = self.indices.device
        self.noise = state["noise"]
        self.levels = {
            key: Level(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]
            for key, parts in state["levels"].items()
        }

    @torch.no_grad()
    def sweep(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Draw noise and precisions given the rows, then every row."""
        self._draw_noise(targets, weights)
        for name, block in self.blocks.items():
            for k, table in enumerate(block.tables):
                self._draw_level(name, k, table[self.seen[block.row_key, k]])
            for k, table in enumerate(block.extra_tables, start=len(block.tables)):
                self._draw_level(name, k, table)
        super().sweep(targets, weights)

    def _draw_noise(self, targets: Tensor, weights: Tensor | None) -> None:
        left = targets - self.total()
        squares = float((left.square() if weights is None else weights * left.square()).sum())
        squares, count = self.processes.sum(squares, len(left))
        rate = RATE * self.spread**2 + squares / 2
        drawn = _gamma(torch.tensor(SHAPE + count / 2), torch.tensor(rate))
        self.noise = 1 / min(max(float(drawn), LOUD / self.spread**2), MOST / self.spread**2)

    def _draw_level(self, name: str, k: int, rows: Tensor) -> None:
        """μ and λ of a table given its rows, ``(seen rows, R)``; biases and tables of numbers lie around zero."""
        block = self.blocks[name]
        unit = self.spread ** (2 / block.degree)  # rows of k modes have the k-th root of the values' scale
        centred = len(block.tables) == 1 or k >= len(block.tables)
        level = self.levels.get((name, k))
        if level is None and len(block.tables) == 1:  # rows that start at zero would hold each other there
            self.levels[name, k] = Level(torch.zeros_like(rows[0]), torch.full_like(rows[0], WIDE / unit))
            return
        mean = torch.zeros_like(rows[0]) if level is None or centred else level.mean
        squares = (rows - mean).square().sum(dim=0) + (0.0 if centred else mean.square())
        count = len(rows) + (0 if centred else 1)
        precision = _gamma(torch.full_like(squares, SHAPE + count / 2), RATE * unit + squares / 2)
        precision = precision.clamp(LEAST / unit, MOST / unit)
        if not centred:
            mean = rows.sum(dim=0) / count + torch.randn_like(mean) * (precision * count).rsqrt()
        self.levels[name, k] = Level(mean, precision, self._draw_stiffness(name, k, unit))

    def _draw_stiffness(self, name: str, k: int, unit: float) -> Tensor | None:
        """Precision of the differences between neighbouring rows."""
        block = self.blocks[name]
        if k >= len(block.tables) or len(self._turns(block, k, block.tables[k])) == 1:
            return None
        steps = block.tables[k].diff(dim=0).square().sum(dim=0)
        count = torch.full_like(steps, SHAPE + (len(block.tables[k]) - 1) / 2)
        return _gamma(count, RATE * unit + steps / 2).clamp(LEAST / unit, MOST / unit)

    def _drawn_to(self, name: str, k: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """What rows are drawn to, and how precisely: their mean, and their neighbours where these are alike."""
        level, near = self.levels[name, k], self._near(self.blocks[name], k, table)
        if near is None or level.stiffness is None:
            return level.mean, level.precision
        precision = level.precision + 2 * level.stiffness
        return (level.precision * level.mean + 2 * level.stiffness * near) / precision, precision

    def _aim(self, wanted: Tensor) -> Tensor:
        return wanted + self.processes.randn_like(wanted) * self.noise**0.5

    def _pull(self, name: str, k: int, table: Tensor, view: ModeView) -> Pull:
        mean, precision = self._drawn_to(name, k, table)
        ones, root = torch.ones_like(table[:, 0]), precision.sqrt()
        return Pull(ones * self.noise, mean * root + torch.randn_like(table), 1 / root)

    def _numbers(self, name: str, sums: Tensor, counts: Tensor, table: Tensor) -> Tensor:
        mean, drawn = self._drawn_to(name, 0, table)
        if self.levels[name, 0].stiffness is None:
            mean = torch.zeros_like(mean)  # numbers lie around zero
        precision = counts / self.noise + drawn
        centre = (sums / self.noise + drawn * mean.squeeze(-1)) / precision
        return centre + torch.randn_like(sums) * precision.rsqrt()

    def _pull_implicit_feedback(self, name: str, k: int, table: Tensor) -> tuple[Tensor, Tensor]:
        level = self.levels[name, len(self.blocks[name].tables) + k]
        prior = level.mean + torch.randn_like(table) * level.precision.rsqrt()
        return self.noise * level.precision, prior


def _gamma(shape: Tensor, rate: Tensor) -> Tensor:
    """A draw of a gamma distribution, elementwise."""
    return torch._standard_gamma(shape) / rate
