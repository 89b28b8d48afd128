"""Θ_L solved, not descended: exact ridge least squares, block by block and row by row.

With f fixed, the loss is quadratic in each factor matrix of g when its others are fixed, so every row has
its optimum in closed form: no learning rate, and no start that is dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels.rows import ModeView, RowSolver, RowSystems, khatri_rao, row_systems
from jointensor.models.blocks.base import Block
from jointensor.models.blocks.fm import SharedPairs
from jointensor.models.joint import evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.implicit_feedback import Seen, solve_implicit_feedback

BATCH = 1 << 19
"""Entries that a block is evaluated on at a time."""

STATE, VALUES = "state/", "values/"
"""Beginnings of names in what is saved: of tables, and of values of training entries."""

LARGE = 1 << 25
"""Values of training entries beyond this number are not written to checkpoints but taken from the tables again."""

COLLAPSED = 1e-6
"""A block whose values stay below this share of the values' spread has collapsed to zero."""


class Pull(NamedTuple):
    """What the rows of one table are drawn to, and how strongly."""

    ridge: Tensor
    """``(I,)``."""
    prior: Tensor | None = None
    """``(I, R)``; zero without one."""
    scale: Tensor | None = None
    """Of every component, ``(R,)``: ridge and prior hold for rows divided by it."""


class Als:
    """Sweeps over the blocks of g; keeps the entries sorted by every mode, and every block's values.

    The ridge of a row is ``ridge · n + pull``, n the number of its entries. ``ridge`` shrinks all rows of a
    component alike; ``pull`` is entries' worth of zeros, which rows of few entries feel most. Both are
    in units of the values' spread, so that values of another scale give the same fit on that scale.

    Parameters
    ----------
    g
        Its tables are changed in place. All its blocks must be products or sums over modes (not ``tucker``).
    indices
        Training entries, ``(entries, modes)``.
    spread
        Standard deviation of the training values.
    solver, systems
        The engine's loops.
    processes
        The processes that have shares of the entries; loops and figures are of all of them.
    """

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
        self.processes = processes
        self.blocks = g.named_blocks
        self.indices, self.spread, self.solver, self.systems = indices, spread, solver, systems
        self.ridge, self.pull = 0.0, 0.0
        """Of blocks over several modes (λ) and of blocks over one (κ)."""
        self.neighbours = g.neighbours
        self.views: dict[tuple[tuple[int, ...], int], ModeView] = {}
        for block in self.blocks.values():
            self._sort(block)
        self.counts = {key: processes.sum_(view.counts) for key, view in self.views.items()}
        """Entries of every row of every table, ``(I,)``, whoever has them."""
        self.implicit_feedback: dict[tuple[str, int], Seen] = {}
        """Matrices of implicit feedback by block and table, made at their first use."""
        self.g = g
        self.values: dict[str, Tensor] = {}
        self.refresh()

    def _sort(self, block: Block) -> None:
        """Views along every table of a block; those over the same modes are shared."""
        if not block.tables or (block.row_key, 0) in self.views:
            return
        columns = block.columns(self.indices)  # (entries, tables)
        for k, table in enumerate(block.tables):
            others = [m for m in range(len(block.tables)) if m != k]
            self.views[block.row_key, k] = ModeView.of(columns, k, others, len(table))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the blocks' values from their tables again, after someone else changed these."""
        self.values = {
            name: evaluate_in_batches(block, self.indices, BATCH).clone() for name, block in self.blocks.items()
        }

    def save(self) -> dict[str, Tensor]:
        """Tables and values as they are now."""
        state = {STATE + name: value.detach().clone() for name, value in self.g.state_dict().items()}
        return state | {VALUES + name: value.clone() for name, value in self.values.items()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to tables and values that were saved; values that are not there are taken from the tables."""
        self.g.load_state_dict({name[len(STATE) :]: value for name, value in saved.items() if name.startswith(STATE)})
        self._set_values({name[len(VALUES) :]: value for name, value in saved.items() if name.startswith(VALUES)})

    def _set_values(self, values: Mapping[str, Tensor]) -> None:
        if values:
            self.values = {name: value.to(self.indices.device, copy=True) for name, value in values.items()}
        else:
            self.refresh()

    def resumable(self) -> dict[str, Any]:
        """What sweeps know beside the tables."""
        few = sum(value.numel() for value in self.values.values()) <= LARGE
        return {"values": self.values if few and not self.processes.shared else {}}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._set_values(state["values"])

    def collapsed(self) -> list[str]:
        """Blocks over several modes whose values are all zero: a ridge that is too large, or a start too small."""
        several = [name for name, block in self.blocks.items() if block.multiplies]
        return [name for name in several if float(self.values[name].abs().max()) <= COLLAPSED * self.spread]

    def total(self) -> Tensor:
        """g of the training entries, ``(entries,)``."""
        return torch.stack(list(self.values.values())).sum(dim=0)

    @torch.no_grad()
    def sweep(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Solve every block once for ``targets``, x − f of the training entries, ``(entries,)``."""
        left = targets - self.total()
        for name in self.blocks:
            wanted = left + self.values[name]  # what the other blocks leave to this one
            left = wanted - self.solve_block(name, wanted, weights)

    @torch.no_grad()
    def solve_block(self, name: str, wanted: Tensor, weights: Tensor | None = None) -> Tensor:
        """Solve one block for what the others leave of the targets, ``(entries,)``; returns its values."""
        self.blocks[name].solve(Steps(self, name, wanted, weights))
        return self.values[name]

    def _solve_constant(self, number: Tensor, wanted: Tensor, weights: Tensor | None) -> Tensor:
        wanted = self._aim(wanted)
        mean = self._mean(wanted, weights)
        number.copy_(mean)
        return mean.expand_as(wanted).clone()

    def _mean(self, wanted: Tensor, weights: Tensor | None) -> Tensor:
        """Of the entries of all processes."""
        if not self.processes.shared:
            return wanted.mean() if weights is None else (weights * wanted).sum() / weights.sum()
        weights = torch.ones_like(wanted) if weights is None else weights
        sums = self.processes.sum_(torch.stack([(weights * wanted).double().sum(), weights.double().sum()]))
        return (sums[0] / sums[1]).to(wanted.dtype)

    def _solve_numbers(self, name: str, count: int | None, wanted: Tensor, weights: Tensor | None) -> Tensor:
        """One number per row: a sum over its entries, without matrices."""
        block = self.blocks[name]
        view, (table,) = self.views[block.row_key, 0], block.tables
        column = view.remember("column", lambda: block.columns(self.indices)[:, 0].long())
        sums = torch.zeros_like(table[:, 0]).index_add_(0, column, wanted if weights is None else weights * wanted)
        sums = self.processes.sum_(sums)
        counts = self.counts[block.row_key, 0].to(table.dtype)
        if weights is not None:
            counts = self.processes.sum_(torch.zeros_like(counts).index_add_(0, column, weights))
        for rows in self._turns(block, 0, table):
            table[rows, 0] = self._numbers(name, sums, counts, table)[rows]
        table[len(table) if count is None else count :] = 0.0
        return table[:, 0].index_select(0, column)

    def _numbers(self, name: str, sums: Tensor, counts: Tensor, table: Tensor) -> Tensor:
        """The number of every row, given sum and count of what is wanted, ``(I,)`` each."""
        near = self._near(self.blocks[name], 0, table)
        if near is not None:
            return (sums + self.pull * near[:, 0]) / (counts + self.pull).clamp_min(1e-30)
        return torch.where(counts > 0, sums / (counts + self.pull).clamp_min(1e-30), 0.0)

    def _turns(self, block: Block, k: int, table: Tensor) -> list[slice]:
        """Rows that are solved at once: all, or every other one where neighbours lean on each other."""
        smooth = k < len(block.table_modes) and block.table_modes[k] in self.neighbours and len(table) > 2
        return [slice(0, None, 2), slice(1, None, 2)] if smooth else [slice(None)]

    def _near(self, block: Block, k: int, table: Tensor) -> Tensor | None:
        """Mean of the two neighbours of every row, ``(I, R)``; ``None`` where they need not be alike."""
        if len(self._turns(block, k, table)) == 1:
            return None
        return self.neighbours[block.table_modes[k]].mean(table)

    def _solve_product(self, name: str, block: Block, wanted: Tensor, weights: Tensor | None) -> Tensor:
        tables, values = block.tables, wanted
        for k, table in enumerate(tables):
            view = self.views[block.row_key, k]
            turns = self._turns(block, k, table)
            for rows in turns:
                pull = self._pull(name, k, table, view)
                others = [other for m, other in enumerate(tables) if m != k]
                if pull.scale is not None:
                    others[0] = others[0] * pull.scale
                solved = table if len(turns) == 1 else table.clone()
                last = k == len(tables) - 1 and len(turns) == 1
                values = self.solver(
                    view, others, self._aim(wanted), weights, pull.ridge, solved, prior=pull.prior, evaluate=last
                )
                if pull.scale is not None:
                    solved.mul_(pull.scale)
                table[rows] = solved[rows]
        if len(turns) > 1:  # the last rows were solved in two turns
            values = evaluate_in_batches(block, self.indices, BATCH)
        rebalance(tables)
        return values

    def _solve_sums(self, name: str, block: SharedPairs, wanted: Tensor, weights: Tensor | None) -> Tensor:
        """A block that has a part without the rows that are solved: what is solved for is a change of rows."""
        values = self.values[name]
        for k, table in enumerate(block.tables):
            view = self.views[block.row_key, k]
            turns = self._turns(block, k, table)
            for rows in turns:
                pull = self._pull(name, k, table, view)
                scale = torch.ones_like(table[0]) if pull.scale is None else pull.scale
                others = [other.detach() * scale for m, other in enumerate(block.whole_tables()) if m != k]
                prior = -table / scale if pull.prior is None else pull.prior - table / scale
                change = torch.zeros_like(table)
                more = self.solver(
                    view, others, self._aim(wanted - values), weights, pull.ridge, change, prior=prior, sums=True
                )
                if len(turns) > 1:
                    more = more * (self.indices[:, k] % 2 == rows.start)
                values = values + more
                table[rows] += (change * scale)[rows]
        return values

    def _solve_implicit_feedback(
        self, name: str, block: SharedPairs, k: int, left: Tensor, weights: Tensor | None
    ) -> Tensor:
        """The k-th table of implicit labels; returns the change of the values."""
        one = block.implicit_feedback[k]
        view = self.views[block.row_key, one.a]
        rest = [table.detach() for m, table in enumerate(block.whole_tables()) if m != one.a]
        systems = self.systems(view, rest, self._aim(left), weights, one.table.shape[1], sums=True)
        ridge, prior = self._pull_implicit_feedback(name, k, one.table.detach())
        if (name, k) not in self.implicit_feedback:
            self.implicit_feedback[name, k] = Seen.of(one)
        change = solve_implicit_feedback(one, self.implicit_feedback[name, k], systems, ridge, prior)
        self.processes.broadcast_(one.table)  # sums in another order must not add up to another table
        values = torch.empty_like(left)
        rows = view.remember("rows", lambda: torch.repeat_interleave(view.counts))  # of the sorted entries
        for start in range(0, len(rows), BATCH):
            part = slice(start, start + BATCH)
            h = khatri_rao(view, rest, part, change, sums=True)
            values[view.order[part].long()] = (h * change.index_select(0, rows[part])).sum(dim=1)
        return values

    def _aim(self, wanted: Tensor) -> Tensor:
        """What rows are solved for, ``(entries,)``."""
        return wanted

    def _pull(self, name: str, k: int, table: Tensor, view: ModeView) -> Pull:
        """What draws the rows of a block's k-th table to zero."""
        block = self.blocks[name]
        unit = self.spread ** (2 - 2 / block.degree)  # rows of k modes have the k-th root of the values' scale
        ridge = unit * self.ridge * self.counts[block.row_key, k].to(table.dtype)  # (I,)
        near = self._near(block, k, table)
        if near is None:
            return Pull(ridge)
        stiff = ridge.mean()  # neighbours weigh as much as the usual ridge
        return Pull(ridge + stiff, near * (stiff / (ridge + stiff))[:, None])

    def _pull_implicit_feedback(self, name: str, k: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """The same for the k-th table of implicit feedback: ridge ``(R,)``, and prior mean ``(I_b, R)``."""
        block = cast(SharedPairs, self.blocks[name])
        counts = self.counts[block.row_key, block.implicit_feedback[k].a]
        counts = counts[counts > 0].to(table.dtype)
        return torch.full_like(table[0], self.spread * self.ridge) * counts.mean(), torch.zeros_like(table)


@dataclass
class Steps:
    """What a block may ask for while it is solved: :class:`jointensor.models.blocks.base.SolveSteps`."""

    als: Als
    name: str
    wanted: Tensor  # (entries,), what the other blocks leave of the targets
    weights: Tensor | None

    @property
    def block(self) -> Block:
        """The block that is solved."""
        return self.als.blocks[self.name]

    def constant(self, number: Tensor) -> None:
        """See :class:`SolveSteps`."""
        self.als.values[self.name] = self.als._solve_constant(number, self.wanted, self.weights)

    def numbers(self, rows: int | None = None) -> None:
        """See :class:`SolveSteps`."""
        self.als.values[self.name] = self.als._solve_numbers(self.name, rows, self.wanted, self.weights)

    def products(self) -> None:
        """See :class:`SolveSteps`."""
        self.als.values[self.name] = self.als._solve_product(self.name, self.block, self.wanted, self.weights)

    def pairs(self) -> None:
        """See :class:`SolveSteps`."""
        block = cast(SharedPairs, self.block)
        self.als.values[self.name] = self.als._solve_sums(self.name, block, self.wanted, self.weights)

    def implicit_feedback(self, k: int) -> None:
        """See :class:`SolveSteps`."""
        block, values = cast(SharedPairs, self.block), self.als.values[self.name]
        change = self.als._solve_implicit_feedback(self.name, block, k, self.wanted - values, self.weights)
        self.als.values[self.name] = values + change


def rebalance(tables: Sequence[Tensor]) -> None:
    """Give every component factors of equal size in all modes; their products stay as they are."""
    sizes = torch.stack([table.square().mean(dim=0).sqrt() for table in tables])  # (modes, R)
    alive = (sizes > 0).all(dim=0)
    common = sizes.clamp_min(1e-30).log().mean(dim=0).exp()
    for table, size in zip(tables, sizes, strict=True):
        table.mul_(torch.where(alive, common / size.clamp_min(1e-30), 1.0))
