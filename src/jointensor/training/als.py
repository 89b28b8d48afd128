"""Θ_L solved, not descended: exact ridge least squares, block by block and row by row.

With f fixed, the loss is quadratic in each factor matrix of g when its others are fixed, so every row has
its optimum in closed form: no learning rate, and no start that is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from jointensor.kernels.rows import ModeView, RowSolver
from jointensor.models.joint import evaluate_in_batches
from jointensor.models.multilinear import Multilinear, Product

BATCH = 1 << 19
"""Entries that a block is evaluated on at a time."""

COLLAPSED = 1e-6
"""A block whose values stay below this share of the values' spread has collapsed to zero."""


class Saved(NamedTuple):
    """Where sweeps can go on from."""

    state: dict[str, Tensor]
    values: dict[str, Tensor]


class Als:
    """Sweeps over the blocks of g; keeps the entries sorted by every mode, and every block's values.

    The ridge of a row is ``ridge · n + pull``, n the number of its entries. ``ridge`` shrinks all rows of a
    component alike; ``pull`` is entries' worth of zeros, which rows of few entries feel most. Both are
    in units of the values' spread, so that values of another scale give the same fit on that scale.

    Parameters
    ----------
    g
        Its tables are changed in place. All its blocks must be products over modes (not ``tucker``).
    indices
        Training entries, ``(entries, modes)``.
    spread
        Standard deviation of the training values.
    solver
        The engine.
    """

    def __init__(self, g: Multilinear, indices: Tensor, *, spread: float, solver: RowSolver) -> None:
        self.blocks = {name: cast(Product, block) for name, block in g.blocks.items()}
        self.indices, self.spread, self.solver = indices, spread, solver
        self.ridge, self.pull = 0.0, 0.0
        """Of blocks over several modes (λ) and of blocks over one (κ)."""
        self.views = {
            (block.modes, n): ModeView.of(indices, n, [m for m in block.modes if m != n], len(table))
            for block in self.blocks.values()
            if block.factors is not None
            for n, table in zip(block.modes, block.factors.tables, strict=True)
        }
        self.g = g
        self.values: dict[str, Tensor] = {}
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the blocks' values from their tables again, after someone else changed these."""
        self.values = {
            name: evaluate_in_batches(block, self.indices, BATCH).clone() for name, block in self.blocks.items()
        }

    def save(self) -> Saved:
        """Tables and values as they are now."""
        state = {name: value.detach().clone() for name, value in self.g.state_dict().items()}
        return Saved(state, {name: value.clone() for name, value in self.values.items()})

    def restore(self, saved: Saved) -> None:
        """Go back to tables and values that were saved."""
        self.g.load_state_dict(saved.state)
        self.values = {name: value.clone() for name, value in saved.values.items()}

    def collapsed(self) -> list[str]:
        """Blocks over several modes whose values are all zero: a ridge that is too large, or a start too small."""
        several = [name for name, block in self.blocks.items() if len(block.modes) > 1]
        return [name for name in several if float(self.values[name].abs().max()) <= COLLAPSED * self.spread]

    def total(self) -> Tensor:
        """g of the training entries, ``(entries,)``."""
        return torch.stack(list(self.values.values())).sum(dim=0)

    @torch.no_grad()
    def sweep(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Solve every block once for ``targets``, x − f of the training entries, ``(entries,)``."""
        left = targets - self.total()
        for name, block in self.blocks.items():
            wanted = left + self.values[name]  # what the other blocks leave to this one
            solve = self._solve_mean if block.factors is None else self._solve_rows
            self.values[name] = solve(block, wanted, weights)
            left = wanted - self.values[name]

    def _solve_mean(self, block: Product, wanted: Tensor, weights: Tensor | None) -> Tensor:
        assert block.constant is not None  # a block without modes is one number
        mean = wanted.mean() if weights is None else (weights * wanted).sum() / weights.sum()
        block.constant.copy_(mean)
        return mean.expand_as(wanted).clone()

    def _solve_rows(self, block: Product, wanted: Tensor, weights: Tensor | None) -> Tensor:
        assert block.factors is not None  # a block over modes has tables
        tables = block.factors.tables
        unit = self.spread ** (2 - 2 / len(tables))  # rows of k modes have the k-th root of the values' scale
        values = wanted
        for k, n in enumerate(block.modes):
            view = self.views[block.modes, n]
            counts = view.counts.to(wanted.dtype)  # (I_n,)
            ridge = unit * self.ridge * counts if len(tables) > 1 else torch.full_like(counts, unit * self.pull)
            others = [table for m, table in enumerate(tables) if m != k]
            last = k == len(tables) - 1
            values = self.solver(view, others, wanted, weights, ridge, tables[k], evaluate=last)
        if len(tables) > 1:
            rebalance(tables)
        return values


def rebalance(tables: Sequence[Tensor]) -> None:
    """Give every component factors of equal size in all modes; their products stay as they are."""
    sizes = torch.stack([table.square().mean(dim=0).sqrt() for table in tables])  # (modes, R)
    alive = (sizes > 0).all(dim=0)
    common = sizes.clamp_min(1e-30).log().mean(dim=0).exp()
    for table, size in zip(tables, sizes, strict=True):
        table.mul_(torch.where(alive, common / size.clamp_min(1e-30), 1.0))
