"""Θ_L solved from entries on disk: the sweeps of :class:`~jointensor.training.als.Als`, a pass over them for each table.

A pass adds up the normal equations of all rows of a table, block of entries by block, whatever their order; what the
other tables leave of the values is formed from these on the way. So nothing is kept per entry, and what is in memory is
the tables, the systems of one of them, and a block or two of entries. The solution is that of :class:`Als` up to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels import Engine
from jointensor.kernels.rows import ModeView, solve_spd
from jointensor.kernels.terms import Term, Terms, loops_of
from jointensor.models.blocks import Product, SharedPairs
from jointensor.models.multilinear import Multilinear
from jointensor.training.als import Als, Block, Pull, rebalance
from jointensor.training.streamed_entries import Column, StreamedEntries

ROW_BYTES = 12
"""Bytes per number of a row's system: 8 while they are added up, 4 for those of a block."""

AT_ONCE = 1 << 22
"""Numbers of systems that are solved at a time."""


class StreamedAls(Als):
    """Sweeps over the blocks of g for entries that are on disk.

    Parameters
    ----------
    g
        Its tables are changed in place. Its blocks: ``mean``, ``bias``, ``cp``, ``pairs`` and ``fm``.
    train
        The entries.
    engine
        Whose loops are used.
    memory
        Bytes that the systems of a table may take; where they take more, its rows are solved in several passes.
    """

    def __init__(self, g: Multilinear, train: StreamedEntries, *, engine: Engine, memory: int) -> None:
        self.train, self.memory = train, memory
        self.subtract, self.sort = loops_of(engine.name)
        self.g, self.smooth = g, g.smooth
        self.blocks = {name: cast(Block, block) for name, block in g.blocks.items()}
        self.spread, self.systems = train.spread or 1.0, engine.row_systems
        self.ridge, self.pull = 0.0, 0.0
        self.indices = train.indices  # a sample: values of blocks are kept of these only
        self.values = {}
        self.rows = [_rows(torch.from_numpy(one)) for one in train.counts]
        """How many entries every label of each mode has."""
        self.refresh()

    @torch.no_grad()
    def sweep_entries(self, fixed: Column | float) -> float:
        """Solve every block once for what ``fixed`` leaves of the training values; the mean squared error after it."""
        squares = 0.0
        for name, block in self.blocks.items():
            if not block.tables:
                squares = self._stream_mean(name, cast(Product, block), fixed)
            elif len(block.tables) == 1:
                squares = self._stream_numbers(name, block, fixed)
            else:
                squares = self._stream_tables(name, cast(Product | SharedPairs, block), fixed)
        self.refresh()
        return max(squares, 0.0) / len(self.train)

    def _left(self, fixed: Column | float, without: str | None) -> Iterator[tuple[NDArray[np.int32], Tensor]]:
        """Indices and what is left of the values by all blocks but one, a block of entries at a time."""
        terms = self._terms(without)
        for block in self.train.blocks(fixed if isinstance(fixed, Column) else None):
            left = block.values if block.column is None else block.values - block.column
            left = left - np.float32(0.0 if isinstance(fixed, Column) else fixed)
            self.subtract(terms, block.indices, left)
            yield block.indices, torch.from_numpy(left)

    def _terms(self, without: str | None) -> Terms:
        others = {name: block for name, block in self.blocks.items() if name != without}
        constants = [float(one.constant) for one in others.values() if getattr(one, "constant", None) is not None]
        return Terms(
            sum(constants), [Term(one.modes, tuple(one.tables), one.sums) for one in others.values() if one.tables]
        )

    def _view(self, indices: NDArray[np.int32], mode: int, others: tuple[int, ...], rows: range) -> ModeView:
        """Entries whose row is in a range, sorted by it."""
        size = len(self.train.counts[mode])
        view = self.sort(indices, mode, others, size)
        if len(rows) == size:
            return view
        starts = view.starts[rows.start : rows.stop + 1]
        part = slice(int(starts[0]), int(starts[-1]))
        return ModeView(view.order[part], starts - starts[0], view.columns[:, part].contiguous())

    def _stream_mean(self, name: str, block: Product, fixed: Column | float) -> float:
        assert block.constant is not None  # a block without modes is one number
        total = squares = 0.0
        for _, wanted in self._left(fixed, name):
            exact = wanted.double()
            total += float(exact.sum())
            squares += float(exact.square().sum())
        mean = total / len(self.train)
        block.constant.fill_(mean)
        return squares - total * mean

    def _stream_numbers(self, name: str, block: Block, fixed: Column | float) -> float:
        """One number per row: a sum over its entries, without matrices."""
        (mode,), (table,) = block.modes, block.tables
        sums, squares = np.zeros(len(table)), 0.0
        for indices, wanted in self._left(fixed, name):
            sums += np.bincount(indices[:, mode], wanted.numpy(), minlength=len(sums))
            squares += float(wanted.double().square().sum())
        counts = self.rows[mode].counts.to(torch.float64)
        table[:, 0] = self._numbers(name, torch.from_numpy(sums), counts, table).to(table)
        solved = table[:, 0].double().numpy()
        return squares - 2 * float(solved @ sums) + float(solved**2 @ counts.numpy())

    def _stream_tables(self, name: str, block: Product | SharedPairs, fixed: Column | float) -> float:
        """The rows of every table in turn.

        Of a product they are solved as they are; of sums of pairs what is solved for is their change, since these have
        a part without the rows that are solved.
        """
        squares = 0.0
        for k, table in enumerate(block.tables):
            pull = self._pull(name, k, table, self.rows[block.modes[k]])
            if block.sums:
                pull = Pull(pull.ridge, -table.clone())
            squares = 0.0
            for rows in self._ranges(table):
                gram, right, more = self._add_up(name, block, k, fixed, rows)
                solved = _solve(gram, right, pull, rows)
                squares += _explained(more, solved, gram, right)
                part = table[rows.start : rows.stop]
                part.copy_(part + solved if block.sums else solved)
        if not block.sums:
            rebalance(block.tables)
        return squares

    def _ranges(self, table: Tensor) -> list[range]:
        """Rows whose systems are in memory at a time."""
        size, rank = table.shape
        step = max(1, min(size, self.memory // (ROW_BYTES * (rank * rank + rank))))
        return [range(start, min(start + step, size)) for start in range(0, size, step)]

    def _add_up(
        self, name: str, block: Product | SharedPairs, k: int, fixed: Column | float, rows: range
    ) -> tuple[Tensor, Tensor, float]:
        """Σ h hᵀ and Σ h y of the rows of a table, and Σ y² of their entries, in 64 bits."""
        tables, rank = block.tables, block.tables[k].shape[1]
        others = tuple(m for m in range(len(tables)) if m != k)
        columns = tuple(block.modes[m] for m in others)
        gram = torch.zeros(len(rows), rank, rank, dtype=torch.float64)
        right, squares = torch.zeros(len(rows), rank, dtype=torch.float64), 0.0
        for indices, wanted in self._left(fixed, None if block.sums else name):
            view = self._view(indices, block.modes[k], columns, rows)
            more, side = self.systems(view, [tables[m] for m in others], wanted, None, rank, sums=block.sums)
            gram += more
            right += side
            mine = wanted if len(rows) == len(tables[k]) else wanted.index_select(0, view.order)
            squares += float(mine.double().square().sum())
        return gram, right, squares


def _rows(counts: Tensor) -> ModeView:
    """A view that knows how many entries every row has, and nothing else."""
    starts = torch.zeros(len(counts) + 1, dtype=torch.int64)
    starts[1:] = counts.cumsum(0)
    nothing = torch.zeros(0, dtype=torch.int32)
    return ModeView(nothing, starts, nothing.view(0, 0))


def _solve(gram: Tensor, right: Tensor, pull: Pull, rows: range) -> Tensor:
    """Solutions of the rows' systems, some at a time, ``(rows, R)`` in 32 bits."""
    ridge = pull.ridge[rows.start : rows.stop].double()
    prior = None if pull.prior is None else pull.prior[rows.start : rows.stop].double()
    solved = torch.empty_like(right, dtype=torch.float32)
    step = max(1, AT_ONCE // right.shape[1] ** 2)
    for start in range(0, len(right), step):
        part = slice(start, start + step)
        solved[part] = solve_spd(gram[part], right[part], ridge[part], None if prior is None else prior[part])
    return solved


def _explained(squares: float, solved: Tensor, gram: Tensor, right: Tensor) -> float:
    """Σ (y − hᵀ a)² of all entries, from the systems of their rows."""
    exact = solved.double()
    image = torch.bmm(gram, exact[:, :, None]).squeeze(2)  # (rows, R)
    return squares + float((exact * (image - 2 * right)).sum())
