"""Θ_L solved from entries on disk: the sweeps of :class:`~jointensor.solvers.als.Als`, in passes over them.

A pass adds up the normal equations of all rows of a table, block of entries by block; the order of a block's entries by
row is found once and kept on disk. What all other blocks of g leave of a value is kept there, too, for a block of
several tables; for the next block it is formed again from what has changed since. So what is in memory is the tables,
the systems of one of them, and a few entries. The solution is that of :class:`Als` up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.kernels import Engine
from jointensor.kernels.rows import ModeView, solve_spd
from jointensor.kernels.terms import Rows, Systems, Term, Terms, add_systems, sum_of_squares
from jointensor.models.blocks.base import Block
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als, Pull, rebalance
from jointensor.solvers.streamed_entries import Column, StreamedEntries

ROW_BYTES = 12
"""Bytes per number of a row's system: 8 while they are added up, 4 for those of some entries."""

AT_ONCE = 1 << 20
"""Numbers of systems that are solved at a time."""

WANTED = Column("wanted")
"""What all blocks but one leave of the values."""

Some = Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]
"""Indices and one number of some entries at a time."""


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
        self.engine = engine
        self.g, self.neighbours = g, g.neighbours
        self.blocks = g.named_blocks
        self.spread = train.spread or 1.0
        self.ridge, self.pull = 0.0, 0.0
        self.indices = train.indices  # a sample: values of blocks are kept of these only
        self.rows = [_counted(torch.from_numpy(one)) for one in train.counts]
        """How many entries every label of each mode has."""
        self.processes = SINGLE_PROCESS
        self.counts = {
            (block.row_key, k): self.rows[mode].counts
            for block in self.blocks.values()
            for k, mode in enumerate(block.modes)
        }
        self.before: str | None = None
        """The block whose targets are on disk."""
        self.since: dict[str, Tensor] = {}
        """Blocks of one table, or of one number, that were solved since then, and what they were at the time."""
        self.values = {}
        self.refresh()

    @torch.no_grad()
    def sweep_entries(self, fixed: Column | float) -> float:
        """Solve every block once for what ``fixed`` leaves of the training values; the mean squared error after it."""
        squares, self.before, self.since = 0.0, None, {}
        for name, block in self.blocks.items():
            steps = StreamedSteps(self, name, fixed)
            block.solve(steps)
            squares = steps.squares
        self.refresh()
        return max(squares, 0.0) / len(self.train)

    def _wanted(self, fixed: Column | float, name: str) -> Some:
        """What all other blocks leave of the values to a block."""
        if self.before == name:
            for block in self.train.blocks(values=WANTED):
                yield block.indices, block.values
            return
        signs = self._signs(name)
        afresh = name not in signs
        terms = self._terms(signs, fixed if afresh and not isinstance(fixed, Column) else 0.0, afresh=afresh)
        column = fixed if afresh and isinstance(fixed, Column) else None
        keep = afresh or len(self.blocks[name].tables) > 1
        for k, block in enumerate(self.train.blocks(column, None if afresh else WANTED)):
            wanted = block.values if block.column is None else block.values - block.column
            self.engine.subtract_terms(terms, block.indices, wanted)
            if keep:
                self.train.shards.write_column(k, WANTED.name, wanted)
            yield block.indices, wanted
        if keep:
            self.before, self.since = name, {}

    def _signs(self, name: str) -> dict[str, float]:
        """Which blocks have to be taken from the values; or from what is on disk, and which is given back."""
        afresh = {other: 1.0 for other in self.blocks if other != name}
        if self.before is None:
            return afresh
        changed = {self.before: 1.0, **dict.fromkeys(self.since, 1.0), name: -1.0}
        return min(afresh, changed, key=lambda some: sum(self._effort(self.blocks[other]) for other in some))

    @staticmethod
    def _effort(block: Block) -> int:
        """Numbers of its tables that an entry's value is made of."""
        return sum(table.shape[1] for table in block.tables)

    def _terms(self, signs: dict[str, float], constant: float, *, afresh: bool) -> Terms:
        terms = []
        for name, sign in signs.items():
            block, old = self.blocks[name], None if afresh else self.since.get(name)
            if not block.tables:
                number = block(self.indices[:1])[0]  # one number for all entries
                constant += sign * float(number if old is None else number - old)
            elif old is None:
                terms.append(term_of(block, sign))
            else:
                terms.append(Term(block.modes, (block.tables[0] - old,), sign=sign))
        return Terms(constant, tuple(terms))

    def _stream_constant(self, name: str, number: Tensor, fixed: Column | float) -> float:
        total = squares = 0.0
        for _, wanted in self._wanted(fixed, name):
            total += float(wanted.sum(dtype=np.float64))
            squares += sum_of_squares(wanted)
        mean = total / len(self.train)
        self._changes(name, number)
        number.fill_(mean)
        return squares - total * mean

    def _stream_numbers(self, name: str, block: Block, fixed: Column | float) -> float:
        """One number per row: a sum over its entries, without matrices."""
        (mode,), (table,) = block.modes, block.tables
        sums, squares = np.zeros(len(table)), 0.0
        for indices, wanted in self._wanted(fixed, name):
            self.engine.add_numbers(indices, mode, wanted, sums)
            squares += sum_of_squares(wanted)
        counts = self.rows[mode].counts.to(torch.float64)
        self._changes(name, table)
        table[:, 0] = self._numbers(name, torch.from_numpy(sums), counts, table).to(table)
        solved = table[:, 0].double().numpy()
        return squares - 2 * float(solved @ sums) + float(solved**2 @ counts.numpy())

    def _changes(self, name: str, numbers: Tensor) -> None:
        """Remember what a block was when the targets on disk were written, unless they are its own."""
        if self.before != name:
            self.since[name] = numbers.clone()

    def _stream_tables(self, name: str, block: Block, fixed: Column | float) -> float:
        """The rows of every table in turn.

        Of a product they are solved as they are; of sums of pairs what is solved for is their change, since these have
        a part without the rows that are solved.
        """
        squares = 0.0
        for k, table in enumerate(block.tables):
            pull = self._pull(name, k, table, self.rows[block.modes[k]])
            if block.sums:
                pull = Pull(pull.ridge, -table.clone())
            squares, solved = 0.0, torch.empty_like(table)
            for rows in self._ranges(table):
                systems = self._add_up(name, Rows(term_of(block), k, rows), fixed)
                part = slice(rows.start, rows.stop)
                solved[part] = _solve(systems, pull, part)
                squares += _left_by(systems, solved[part])
            table.copy_(table + solved if block.sums else solved)
        if not block.sums:
            rebalance(block.tables)
        return squares

    def _ranges(self, table: Tensor) -> list[range]:
        """Rows whose systems are in memory at a time."""
        size, rank = table.shape
        step = max(1, min(size, self.memory // (ROW_BYTES * (rank * rank + rank))))
        return [range(start, min(start + step, size)) for start in range(0, size, step)]

    def _add_up(self, name: str, rows: Rows, fixed: Column | float) -> Systems:
        """The systems of some rows of a table."""
        systems, mode = Systems.zero(rows), rows.block.modes[rows.k]
        others = [rows.block.modes[m] for m in rows.others]
        for view, wanted in self._sorted(name, rows.block, mode, fixed):
            if len(others) < len(view.columns):
                view = replace(view, columns=view.columns[[m - (m > mode) for m in others]])
            add_systems(rows, view, torch.from_numpy(wanted), systems, self.engine.row_systems)
        return systems

    def _sorted(
        self, name: str, block: Term, mode: int, fixed: Column | float
    ) -> Iterator[tuple[ModeView, NDArray[np.float32]]]:
        """The entries in the order of a mode, and what is left of their values."""
        known = mode in self.train.sorted
        if self.before == name and known and not block.sums:
            yield from self.train.views(mode, WANTED)
            return
        own = Terms(0.0, (block,))
        for k, (indices, wanted) in enumerate(self._wanted(fixed, name)):
            if block.sums:
                self.engine.subtract_terms(own, indices, wanted)
            if known:
                yield self.train.view(k, mode), wanted
                continue
            others = [n for n in range(indices.shape[1]) if n != mode]
            view = self.engine.sort_entries(torch.from_numpy(indices), mode, others, len(self.train.counts[mode]))
            self.train.keep_view(k, mode, view)
            yield view, wanted
        self.train.sorted.add(mode)


@dataclass
class StreamedSteps:
    """What a block may ask for while it is solved: :class:`jointensor.models.blocks.base.SolveSteps`."""

    als: StreamedAls
    name: str
    fixed: Column | float
    squares: float = 0.0
    """Sum of the squared errors after the last step."""

    @property
    def block(self) -> Block:
        """The block that is solved."""
        return self.als.blocks[self.name]

    def constant(self, number: Tensor) -> None:
        """See :class:`SolveSteps`."""
        self.squares = self.als._stream_constant(self.name, number, self.fixed)

    def numbers(self, rows: int | None = None) -> None:
        """See :class:`SolveSteps`."""
        self.squares = self.als._stream_numbers(self.name, self.block, self.fixed)

    def products(self) -> None:
        """See :class:`SolveSteps`."""
        self.squares = self.als._stream_tables(self.name, self.block, self.fixed)

    def pairs(self) -> None:
        """See :class:`SolveSteps`."""
        self.squares = self.als._stream_tables(self.name, self.block, self.fixed)

    def implicit_feedback(self, k: int) -> None:
        """Implicit feedback needs all entries in memory: see ``Kind.streamable``."""
        raise NotImplementedError


def term_of(block: Block, sign: float = 1.0) -> Term:
    """A block as the loops over entries take it."""
    return Term(block.modes, tuple(block.tables), block.sums, sign)


def _counted(counts: Tensor) -> ModeView:
    """A view that knows how many entries every row has, and nothing else."""
    starts = torch.zeros(len(counts) + 1, dtype=torch.int64)
    starts[1:] = counts.cumsum(0)
    nothing = torch.zeros(0, dtype=torch.int32)
    return ModeView(nothing, starts, nothing.view(0, 0))


def _solve(systems: Systems, pull: Pull, rows: slice) -> Tensor:
    """Solutions of the rows' systems, ``(rows, R)``; some at a time."""
    ridge = pull.ridge[rows].double()
    prior = None if pull.prior is None else pull.prior[rows].double()
    step = max(1, AT_ONCE // systems.right.shape[1] ** 2)
    found = []
    for start in range(0, len(ridge), step):
        part = slice(start, start + step)
        drawn = None if prior is None else prior[part]
        found.append(solve_spd(systems.gram[part], systems.right[part], ridge[part], drawn))
    return torch.cat(found)


def _left_by(systems: Systems, solved: Tensor) -> float:
    """Σ (y − hᵀ a)² of all entries, from the systems of their rows."""
    exact = solved.double()
    image = torch.bmm(systems.gram, exact[:, :, None]).squeeze(2)  # (rows, R)
    return float(systems.squares + (exact * (image - 2 * systems.right)).sum())
