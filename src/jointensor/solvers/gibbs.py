"""Θ_L sampled: the same row systems as :mod:`jointensor.solvers.als`, with noise and precisions that are learnt.

    x = g + f + ε,   ε ~ N(0, 1/α),   a_i(r) ~ N(μ_r, 1/λ_r) per table,   μ, λ, α unknown

A draw of a row from its posterior is the solution of the same least-squares problem with noise of the right size added
to its targets and to its prior mean (mean and covariance follow by inserting), so the engines' solvers draw samples as
they are. A component that is not needed ends with a large λ_r, close to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jointensor.models.multilinear import Multilinear
from jointensor.random_state import normal_like
from jointensor.solvers.als import Als, RowPrior
from jointensor.solvers.linked_rows import LinkPrior, solve_linked
from jointensor.solvers.systems import SystemsInMemory

GAMMA_SHAPE, GAMMA_RATE = 1.0, 0.1
"""Of the gamma prior on precisions, in units of the values' spread; it weighs as much as two rows."""

INITIAL_PRECISION = 16.0
"""Of the rows of biases and tables at the start, in the same units."""

MIN_PRECISION, MAX_PRECISION = 0.1, 1e8
"""Bounds of the precisions of rows, in the same units: no component grows or vanishes beyond what 32 bits hold."""

MIN_NOISE_PRECISION = 1e-4
"""Bound of the precision of values around g, in the same units; it shares the upper bound."""


@dataclass
class Level:
    """Prior on the rows of one table: μ and λ of every component, ``(R,)`` each."""

    mean: Tensor
    precision: Tensor
    stiffness: Tensor | None = None
    """Precision of the differences between linked rows, where there are any."""


class Gibbs(Als):
    """Sweeps that draw every row, then every precision; see :class:`~jointensor.solvers.als.Als`."""

    def __init__(self, g: Multilinear, systems: SystemsInMemory, *, spread: float) -> None:
        super().__init__(g, systems, spread=spread)
        self.generators = systems.generators
        self.noise = spread**2
        """1/α, the variance of the residuals."""
        self.levels: dict[tuple[str, int], Level] = {}
        self.seen = {
            (block.row_key, k): systems.counts(block, k) > 0
            for block in self.blocks.values()
            for k in range(len(block.tables))
        }
        """Rows that have entries, by table."""

    def resumable(self) -> dict[str, Any]:
        """The state of sweeps beside the tables."""
        levels = {key: [one.mean, one.precision, one.stiffness] for key, one in self.levels.items()}
        return {**super().resumable(), "noise": self.noise, "levels": levels}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        super().resume(state)
        device = self.systems.indices.device
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
        residuals = targets - self.total()
        squares = residuals.square() if weights is None else weights * residuals.square()
        total, count = self.processes.sum(float(squares.sum()), len(residuals))
        rate = GAMMA_RATE * self.spread**2 + total / 2
        drawn = self._gamma(torch.tensor(GAMMA_SHAPE + count / 2), torch.tensor(rate))
        self.noise = 1 / min(max(float(drawn), MIN_NOISE_PRECISION / self.spread**2), MAX_PRECISION / self.spread**2)

    def _draw_level(self, name: str, k: int, rows: Tensor) -> None:
        """μ and λ of a table given its rows, ``(seen rows, R)``; the prior mean of numbers is zero."""
        block = self.blocks[name]
        unit = self.spread ** (2 / block.degree)  # rows of k modes have the k-th root of the values' scale
        centred = len(block.tables) == 1 or k >= len(block.tables)
        level = self.levels.get((name, k))
        if level is None and len(block.tables) == 1:  # rows that start at zero would hold each other there
            self.levels[name, k] = Level(torch.zeros_like(rows[0]), torch.full_like(rows[0], INITIAL_PRECISION / unit))
            return
        mean = torch.zeros_like(rows[0]) if level is None or centred else level.mean
        squares = (rows - mean).square().sum(dim=0) + (0.0 if centred else mean.square())
        count = len(rows) + (0 if centred else 1)
        precision = self._gamma(torch.full_like(squares, GAMMA_SHAPE + count / 2), GAMMA_RATE * unit + squares / 2)
        precision = precision.clamp(MIN_PRECISION / unit, MAX_PRECISION / unit)
        if not centred:
            mean = rows.sum(dim=0) / count + self._normal(mean) * (precision * count).rsqrt()
        self.levels[name, k] = Level(mean, precision, self._draw_stiffness(name, k, unit))

    def _draw_stiffness(self, name: str, k: int, unit: float) -> Tensor | None:
        """Precision of the differences between linked rows."""
        block = self.blocks[name]
        links = self.links_of(block, k, 1.0) if k < len(block.tables) else None
        if links is None:
            return None
        steps = links.differences.apply(block.tables[k])  # (differences, R)
        squares = steps.square().sum(dim=0)
        count = torch.full_like(squares, GAMMA_SHAPE + len(steps) / 2)
        return self._gamma(count, GAMMA_RATE * unit + squares / 2).clamp(MIN_PRECISION / unit, MAX_PRECISION / unit)

    def _drawn_links(self, name: str, k: int, scale: Tensor) -> LinkPrior | None:
        """Links with the noise that makes the solution a draw, for rows divided by a scale, ``(R,)``."""
        level = self.levels[name, k]
        if level.stiffness is None:
            return None
        links = self.links_of(self.blocks[name], k, self.noise * level.stiffness * scale.square())
        if links is None:
            return None
        steps = self._normal(links.strength.new_zeros(len(links.differences.rows), len(scale)))
        noise = links.differences.spread(steps, len(self.blocks[name].tables[k]))
        return links._replace(pull=noise * (self.noise * links.strength).sqrt())

    def row_prior(self, name: str, k: int) -> RowPrior:
        """The prior with noise in its mean, in units of the components' standard deviations."""
        level, table = self.levels[name, k], self.blocks[name].tables[k]
        root = level.precision.sqrt()
        links = self._drawn_links(name, k, 1 / root)
        return RowPrior(
            torch.ones_like(table[:, 0]) * self.noise, level.mean * root + self._normal(table), 1 / root, links
        )

    def solve_numbers(self, name: str, sums: Tensor, counts: Tensor) -> Tensor:
        """A draw of every number from its posterior, ``(I,)``; its prior mean is zero."""
        precision = self.levels[name, 0].precision
        links = self._drawn_links(name, 0, torch.ones_like(precision))
        if links is None:
            found = counts / self.noise + precision
            return sums / self.noise / found + self._normal(sums) * found.rsqrt()
        ridge = self.noise * precision.expand_as(sums)
        mean = self._normal(sums)[:, None] * precision.rsqrt()
        drawn = self.blocks[name].tables[0].to(sums.dtype, copy=True)
        right = (sums + self._normal(sums) * (self.noise * counts).sqrt())[:, None]
        solve_linked(lambda rows: (counts[rows, None, None], right[rows]), ridge, mean, links, drawn)
        return drawn[:, 0]

    def implicit_prior(self, name: str, k: int) -> tuple[Tensor, Tensor]:
        """The same for a table of implicit feedback."""
        block = self.blocks[name]
        level, table = self.levels[name, len(block.tables) + k], block.extra_tables[k]
        return self.noise * level.precision, level.mean + self._normal(table) * level.precision.rsqrt()

    def _normal(self, like: Tensor) -> Tensor:
        """Draws of the standard normal distribution, of the shape of a tensor."""
        return normal_like(like, self.generators)

    def _gamma(self, shape: Tensor, rate: Tensor) -> Tensor:
        """A draw of a gamma distribution, elementwise."""
        generators = self.generators
        return torch._standard_gamma(shape, None if generators is None else generators.of(shape)) / rate
