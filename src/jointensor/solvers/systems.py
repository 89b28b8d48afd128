"""Systems of rows from training entries in memory: :class:`jointensor.solvers.als.Systems`."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.distributed.sharded_rows import share_engine
from jointensor.kernels import Engine
from jointensor.kernels.rows import ModeView, RowEntries, khatri_rao, row_values
from jointensor.models.blocks.base import Block
from jointensor.models.blocks.fm import SharedPairs
from jointensor.models.joint import evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.random_state import Generators, normal_like
from jointensor.solvers.als import BATCH, RowPrior, Systems
from jointensor.solvers.linked_rows import solve_linked


class SystemsInMemory(Systems):
    """Keeps the entries sorted by every mode, and every block's values.

    Parameters
    ----------
    g
        Whose blocks are solved.
    indices
        Training entries of this process, ``(entries, modes)``.
    engine
        Its loops are used.
    processes
        The processes that have shares of the entries; sums are over all of them.
    generators
        Random numbers of a sampler in one process; torch's own state if not given.
    """

    def __init__(
        self,
        g: Multilinear,
        indices: Tensor,
        engine: Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
        generators: Generators | None = None,
    ) -> None:
        super().__init__(g, indices, processes)
        self.generators = generators
        self.engine = share_engine(engine, processes)
        self.views: dict[tuple[tuple[int, ...], int], ModeView] = {}
        """Entries sorted by the rows of a table; blocks that look up the same rows share them."""
        for block in self.blocks.values():
            self._sort(block)
        self.row_counts = {key: processes.sum_(view.counts) for key, view in self.views.items()}
        self.refresh()

    def _sort(self, block: Block) -> None:
        if not block.tables or (block.row_key, 0) in self.views:
            return
        columns = block.columns(self.indices)  # (entries, tables)
        for k, table in enumerate(block.tables):
            others = [m for m in range(len(block.tables)) if m != k]
            self.views[block.row_key, k] = ModeView.of(columns, k, others, len(table))

    def counts(self, block: Block, k: int) -> Tensor:
        """Entries of every row, of all processes."""
        return self.row_counts[block.row_key, k]

    def begin_sweep(self, targets: Tensor, weights: Tensor | None) -> None:
        """``targets``: x − f of the training entries, ``(entries,)``."""
        self.weights = weights
        self.residuals = targets - torch.stack(list(self.values.values())).sum(dim=0)  # of all blocks, (entries,)

    def begin_block(self, name: str) -> None:
        """Targets of a block are the residuals of all others."""
        super().begin_block(name)
        self.targets = self.residuals + self.values[name]  # (entries,)

    def end_block(self) -> None:
        """Update the residuals."""
        self.residuals = self.targets - self.values[self.name]
        del self.targets  # as large as the values of a block

    def mean_squared_error(self) -> float:
        """Of all training entries."""
        return self.processes.mean(self.residuals.square())

    def solve_constant(self, number: Tensor, noise: float) -> None:
        """The mean of the targets of all processes."""
        targets = self._noisy(self.targets, noise)
        mean = self._mean(targets)
        number.copy_(mean)
        self.values[self.name] = mean.expand_as(targets).clone()

    def _mean(self, targets: Tensor) -> Tensor:
        weights = self.weights
        if not self.processes.shared:
            return targets.mean() if weights is None else (weights * targets).sum() / weights.sum()
        weights = torch.ones_like(targets) if weights is None else weights
        sums = self.processes.sum_(torch.stack([(weights * targets).double().sum(), weights.double().sum()]))
        return (sums[0] / sums[1]).to(targets.dtype)

    def sums_by_row(self) -> tuple[Tensor, Tensor]:
        """Sums of targets and weights, ``(I,)`` each."""
        like, column, weights = self.block.tables[0][:, 0], self._column(), self.weights
        weighed = self.targets if weights is None else weights * self.targets
        sums = self.processes.sum_(torch.zeros_like(like).index_add_(0, column, weighed))
        if weights is None:
            return sums, self.counts(self.block, 0).to(like.dtype)
        return sums, self.processes.sum_(torch.zeros_like(like).index_add_(0, column, weights))

    def end_numbers(self, table: Tensor, sums: Tensor, counts: Tensor) -> None:
        """Values are the numbers of the entries' rows."""
        self.values[self.name] = table[:, 0].index_select(0, self._column())

    def _column(self) -> Tensor:
        """Row of every entry in the block's only table, ``(entries,)``."""
        view = self.views[self.block.row_key, 0]
        return view.remember("column", lambda: self.block.columns(self.indices)[:, 0].long())

    def solve_rows(self, k: int, prior: RowPrior, out: Tensor, *, noise: float, last: bool) -> None:
        """Solve by the engine; values change with the rows."""
        sums, view, scale = self.block.sums, self.views[self.block.row_key, k], prior.scale
        others = [table for m, table in enumerate(self.block.effective_tables()) if m != k]
        if scale is not None:  # once in a product, in every term of a sum
            others = [table * scale if sums or m == 0 else table for m, table in enumerate(others)]
        targets = self._noisy(self.targets - self.values[self.name] if sums else self.targets, noise)
        entries = RowEntries(view, others, targets, self.weights, sums)
        if prior.links is None:
            values = self.engine.solve_rows(entries, prior.ridge, out, prior=prior.mean, evaluate=last)
        else:
            out.copy_(out if scale is None else out / scale)
            solve_linked(partial(self._row_systems, entries), prior.ridge, prior.mean, prior.links, out)
            values = row_values(entries, out) if last and sums else targets
        if scale is not None:
            out.mul_(scale)
        if last and prior.links is not None and not sums:
            values = evaluate_in_batches(self.block, self.indices, BATCH)
        if last:
            self.values[self.name] = self.values[self.name] + values if sums else values

    def _row_systems(self, entries: RowEntries, rows: slice) -> tuple[Tensor, Tensor]:
        """Of some rows."""
        return self.engine.row_systems(entries.of_rows(rows), entries.others[0].shape[1])

    def implicit_systems(self, k: int, noise: float) -> tuple[Tensor, Tensor]:
        """Systems of the rows of mode a, for changes of z."""
        entries = self._beside_implicit(k, self._noisy(self.targets - self.values[self.name], noise))
        return self.engine.row_systems(entries, entries.others[0].shape[1])

    def end_implicit(self, k: int, change: Tensor) -> None:
        """Values change with z."""
        entries = self._beside_implicit(k, self.targets)
        view = entries.view
        self.processes.broadcast_(self.block.extra_tables[k])  # sums in another order must not lead to another table
        values = torch.empty_like(self.targets)
        rows = view.remember("rows", lambda: torch.repeat_interleave(view.counts))  # of the sorted entries
        for start in range(0, len(rows), BATCH):
            part = slice(start, start + BATCH)
            h = khatri_rao(entries, part, change)
            values[view.order[part].long()] = (h * change.index_select(0, rows[part])).sum(dim=1)
        self.values[self.name] = self.values[self.name] + values

    def _beside_implicit(self, k: int, targets: Tensor) -> RowEntries:
        """Entries sorted by the mode that the k-th table of implicit feedback adds to, with vectors of other modes."""
        a = cast(SharedPairs, self.block).implicit_feedback[k].a
        others = [table for m, table in enumerate(self.block.effective_tables()) if m != a]
        return RowEntries(self.views[self.block.row_key, a], others, targets, self.weights, sums=True)

    def _noisy(self, targets: Tensor, noise: float) -> Tensor:
        if not noise:
            return targets
        own = self.processes.randn_like(targets) if self.processes.shared else normal_like(targets, self.generators)
        return targets + own * noise**0.5
