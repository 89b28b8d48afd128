"""Blocks with one row per label: the base of ``bias``, ``cp``, ``pairs`` and ``fm``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor

from jointensor.kernels.cp import cp_values
from jointensor.models.blocks.base import Block, SolveSteps
from jointensor.models.blocks.growth import NewEntries, solve_new_rows
from jointensor.models.factors import Factors, grown_table


class FactorBlock(Block):
    """A block whose tables have a row for every label of their mode."""

    learns_rows = True
    draw_name: ClassVar[str] = "factors.stacked"
    """Name of the rows in a draw."""
    new_rows_are_means: ClassVar[bool] = True
    """Whether rows of new labels start at the mean of the known ones, not at zero."""

    def __init__(self, shape: Sequence[int], modes: Sequence[int], rank: int) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.factors = Factors([shape[n] for n in modes], rank)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """One table per mode of the block."""
        return self.factors.tables

    def columns(self, indices: Tensor) -> Tensor:
        """Labels of the block's modes, ``(batch, all modes)`` → ``(batch, modes)``."""
        if len(self.modes) == indices.shape[1]:
            return indices
        return torch.stack([indices[:, n] for n in self.modes], dim=1)

    def grow_from(self, old: Block) -> None:
        """Rows of new labels are the mean of the known ones, or zero."""
        self.factors.grow_from(cast(FactorBlock, old).factors, centre=self.new_rows_are_means)

    def grow_draw(self, old: Block, draw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same for a draw."""
        old_tables = torch.split(draw[self.draw_name].cpu(), list(cast(FactorBlock, old).factors.sizes))
        pairs = zip(old_tables, self.factors.sizes, strict=True)
        return {self.draw_name: torch.cat([grown_table(table, size, centre=True) for table, size in pairs])}

    def learn_new_labels(self, new: NewEntries, targets: Tensor, draw: Mapping[str, Tensor] | None = None) -> None:
        """Ridge least squares, one mode after the other."""
        stacked = self.factors.stacked.detach() if draw is None else draw[self.draw_name]
        tables = torch.split(stacked, list(self.factors.sizes))
        solve_new_rows(tables, self.modes, self.columns(new.indices), new, targets, sums=self.sums)


class Product(FactorBlock):
    """Σ_r Π_{n ∈ modes} A_n(i_n, r)."""

    def __init__(self, shape: Sequence[int], modes: Sequence[int], rank: int) -> None:
        super().__init__(shape, modes, rank)
        self.fuses = "cp_values" if len(self.modes) > 1 else None
        self.fused: Callable[[Tensor, Tensor], Tensor] | None = None
        """Values of rows by a compiled engine, see :class:`jointensor.kernels.Engine`."""

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, all modes)`` → ``(batch,)``."""
        values = cp_values if self.fused is None else self.fused
        return values(self.factors.stacked, self.factors.places(self.columns(indices)))

    def solve(self, steps: SolveSteps) -> None:
        """Rows of one mode after the other."""
        steps.products()


@torch.no_grad()
def init_around(tables: Sequence[Tensor], rank: int, level: float, spread: float | None) -> None:
    """Draw factors whose CP of the given rank lies around ``level``; standard normal ones without a spread."""
    mean, deviation = (0.0, 1.0) if spread is None else product_scales(abs(level), spread, rank, len(tables))
    for table in tables:
        torch.nn.init.normal_(table, mean, deviation)
    if level < 0:
        tables[0].neg_()


def product_scales(level: float, spread: float, rank: int, modes: int) -> tuple[float, float]:
    """Mean a and standard deviation b of factors whose CP has the given mean and standard deviation.

    Independent factors a + b·ε give ``R aᴺ`` and ``R ((a² + b²)ᴺ − a²ᴺ)``; solved for a and b.
    """
    power = level / rank  # aᴺ
    centre = power ** (1 / modes)
    second = (spread**2 / rank + power**2) ** (1 / modes)  # a² + b²
    return centre, math.sqrt(max(second - centre**2, 0.0))
