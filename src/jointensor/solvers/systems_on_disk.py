"""Systems of rows from training entries on disk, in passes over them: :class:`jointensor.solvers.als.Systems`.

A pass adds up the normal equations of all rows of a table, shard by shard; the order of a shard's entries by row is
found once and kept on disk. The targets of a block of several tables are kept there too; for the next block they are
formed again from the blocks that have changed since. In memory, on the device of the model, are the tables, the systems
of one of them, and a few shards. Of several processes each adds up its own shards. The solution is that of entries in
memory up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.data.store import Column, ShardedEntries
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels import Engine
from jointensor.kernels.rows import ModeView, RowEntries, solve_spd
from jointensor.kernels.terms import RowSums, Term, Terms, add_numbers, sum_of_squares
from jointensor.models.blocks.base import Block
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import RowPrior, Systems
from jointensor.solvers.linked_rows import solve_group

ROW_BYTES = 12
"""Bytes per number of a row's system: 8 while it is added up, 4 for the part of one shard."""

SOLVED_AT_ONCE = 1 << 20
"""Numbers of systems that are solved at a time: their copies take a few of these, 8 bytes each."""

TARGETS = Column("targets")
"""Targets of one block."""

Shard = tuple[Tensor, Tensor]
"""Indices ``(entries, modes)`` and targets ``(entries,)`` of some entries."""


class SystemsOnDisk(Systems):
    """Sums over shards of entries.

    Parameters
    ----------
    g
        Whose blocks are solved; all of kinds that are streamable.
    train
        The entries.
    engine
        Its loops are used.
    memory
        Bytes that the systems of a table may take; where they take more, its rows are solved in several passes.
    processes
        The processes that have shares of the entries; sums are over all of them.
    """

    def __init__(
        self,
        g: Multilinear,
        train: ShardedEntries,
        engine: Engine,
        memory: int,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        super().__init__(g, train.sample().indices, processes)
        self.train, self.engine, self.memory = train, engine, memory
        self.label_counts = [torch.from_numpy(one).to(train.device) for one in train.label_counts]
        self.frozen: Column | float = 0.0
        self.squares = 0.0
        """Sum of the squared errors after the last solve."""
        self.owner: str | None = None
        """The block whose targets are on disk."""
        self.since: dict[str, Tensor] = {}
        """Parameters of blocks that were solved since then, as they were at that time."""
        self.refresh()

    def counts(self, block: Block, k: int) -> Tensor:
        """Entries of every row."""
        return self.label_counts[block.table_modes[k]]

    def begin_sweep(self, targets: Column | float, weights: Tensor | None) -> None:
        """``targets``: the frozen half, subtracted from the training values."""
        if weights is not None:
            raise NotImplementedError("entries on disk have no weights")
        self.frozen, self.owner, self.since = targets, None, {}

    def end_sweep(self) -> None:
        """Update the values of the sample."""
        self.refresh()

    def mean_squared_error(self) -> float:
        """Of all training entries."""
        return max(self.squares, 0.0) / self.train.total

    def solve_constant(self, number: Tensor, noise: float) -> None:
        """The mean of the targets."""
        total = squares = 0.0
        for _, targets in self._targets():
            total += float(targets.sum(dtype=torch.float64))
            squares += sum_of_squares(targets)
        total, squares = self.processes.sum(total, squares)
        mean = total / self.train.total
        self._remember(number)
        number.fill_(mean)
        self.squares = squares - total * mean

    def sums_by_row(self) -> tuple[Tensor, Tensor]:
        """Sums of targets and numbers of entries, in 64 bits, ``(I,)`` each."""
        (mode,), (table,) = self.block.table_modes, self.block.tables
        sums, squares = torch.zeros(len(table), dtype=torch.float64, device=table.device), 0.0
        for indices, targets in self._targets():
            add_numbers(indices, mode, targets, sums)
            squares += sum_of_squares(targets)
        (self.squares,) = self.processes.sum(squares)
        self._remember(table)
        return self.processes.sum_(sums), self.label_counts[mode].to(torch.float64)

    def end_numbers(self, table: Tensor, sums: Tensor, counts: Tensor) -> None:
        """Update the sum of squares."""
        solved = table[:, 0].double()
        self.squares += float(solved.square() @ counts - 2 * solved @ sums)

    def _remember(self, numbers: Tensor) -> None:
        """Keep the parameters that the targets on disk were formed with, unless they are the block's own targets."""
        if self.owner != self.name:
            self.since[self.name] = numbers.clone()

    def solve_rows(self, k: int, prior: RowPrior, out: Tensor, *, noise: float, last: bool) -> None:
        """Add up the systems of some rows at a time and solve them."""
        self.squares, solved, term = 0.0, out.double(), term_of(self.block)
        for some in self._ranges(out):
            systems, part = self._add_up(term, k, some), slice(some.start, some.stop)
            if prior.links is None:
                solved[part] = _solve(systems, prior, part)
            else:
                solve_group(systems.gram, systems.right, prior.ridge, prior.mean, prior.links, solved, part)
            self.squares += _squared_error(systems, solved[part])
        out.copy_(solved)

    def _targets(self) -> Iterator[Shard]:
        """Training values minus the frozen half and all other blocks."""
        name, frozen = self.name, self.frozen
        if self.owner == name:
            for block in self.train.blocks(values=TARGETS):
                yield self._on_device(block.indices), self._on_device(block.values)
            return
        signs = self._signs(name)
        afresh = name not in signs
        terms = self._terms(signs, frozen if afresh and not isinstance(frozen, Column) else 0.0, afresh=afresh)
        column = frozen if afresh and isinstance(frozen, Column) else None
        keep = afresh or self.block.multiplies
        for k, block in enumerate(self.train.blocks(column, None if afresh else TARGETS)):
            indices, targets = self._on_device(block.indices), self._on_device(block.values)
            if block.column is not None:
                targets = targets - self._on_device(block.column)
            self.engine.subtract_terms(terms, indices, targets)
            if keep:
                self.train.shards.write_column(k, TARGETS.name, targets.cpu().numpy())
            yield indices, targets
        if keep:
            self.owner, self.since = name, {}

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.train.device)

    def _signs(self, name: str) -> dict[str, float]:
        """Blocks to subtract from the values (1); or from the targets on disk, with the block to add back (−1).

        Whichever takes fewer multiplications per entry.
        """
        afresh = {other: 1.0 for other in self.blocks if other != name}
        if self.owner is None:
            return afresh
        changed = {self.owner: 1.0, **dict.fromkeys(self.since, 1.0), name: -1.0}
        return min(afresh, changed, key=lambda some: sum(_effort(self.blocks[other]) for other in some))

    def _terms(self, signs: dict[str, float], constant: float, *, afresh: bool) -> Terms:
        """The blocks as terms; of a block that was solved since the targets were written, its change."""
        terms = []
        for name, sign in signs.items():
            block, old = self.blocks[name], None if afresh else self.since.get(name)
            if not block.tables:
                number = block(self.indices[:1])[0]  # the same for all entries
                constant += sign * float(number if old is None else number - old)
            elif old is None:
                terms.append(term_of(block, sign))
            else:
                terms.append(Term(block.modes, (block.tables[0] - old,), sign=sign))
        return Terms(constant, tuple(terms))

    def _ranges(self, table: Tensor) -> list[range]:
        """Rows whose systems are in memory at a time."""
        size, rank = table.shape
        step = max(1, min(size, self.memory // (ROW_BYTES * (rank * rank + rank))))
        return [range(start, min(start + step, size)) for start in range(0, size, step)]

    def _add_up(self, term: Term, k: int, rows: range) -> RowSums:
        """The systems of some rows of the k-th table."""
        systems, mode = RowSums.zero(len(rows), term.tables[k]), term.modes[k]
        others = [m for m in range(len(term.tables)) if m != k]
        modes, tables = [term.modes[m] for m in others], [term.tables[m] for m in others]
        for view, targets in self._sorted(term, mode):
            if len(modes) < len(view.columns):
                view = replace(view, columns=view.columns[[n - (n > mode) for n in modes]])
            systems.add(RowEntries(view, tables, targets, sums=term.sums), rows, self.engine.row_systems)
        for one in (systems.gram, systems.right, systems.squares):
            self.processes.sum_(one)
        return systems

    def _sorted(self, term: Term, mode: int) -> Iterator[tuple[ModeView, Tensor]]:
        """The entries in the order of a mode, and their targets; those of a sum over pairs are for changes of rows."""
        known = mode in self.train.sorted_modes
        if self.owner == self.name and known and not term.sums:
            yield from self.train.by_mode(mode, TARGETS)
            return
        own = Terms(0.0, (term,))
        for k, (indices, targets) in enumerate(self._targets()):
            if term.sums:
                self.engine.subtract_terms(own, indices, targets)
            if known:
                yield self.train.view(k, mode), targets
                continue
            others = [n for n in range(indices.shape[1]) if n != mode]
            view = ModeView.of(indices, mode, others, len(self.label_counts[mode]))
            self.train.keep_view(k, mode, view)
            yield view, targets
        self.train.sorted_modes.add(mode)


def term_of(block: Block, sign: float = 1.0) -> Term:
    """A block as the loops over chunks take it."""
    return Term(block.modes, tuple(block.tables), block.sums, sign)


def _effort(block: Block) -> int:
    """Numbers of its tables that an entry's value is made of."""
    return sum(table.shape[1] for table in block.tables)


def _solve(systems: RowSums, prior: RowPrior, rows: slice) -> Tensor:
    """Solutions of the rows' systems, ``(rows, R)``; some at a time."""
    ridge = prior.ridge[rows].double()
    mean = None if prior.mean is None else prior.mean[rows].double()
    step = max(1, SOLVED_AT_ONCE // systems.right.shape[1] ** 2)
    found = []
    for start in range(0, len(ridge), step):
        part = slice(start, start + step)
        centre = None if mean is None else mean[part]
        found.append(solve_spd(systems.gram[part], systems.right[part], ridge[part], centre))
    return torch.cat(found)


def _squared_error(systems: RowSums, solved: Tensor) -> float:
    """Σ (y − hᵀ a)² of all entries, from the systems of their rows."""
    exact = solved.double()
    image = torch.bmm(systems.gram, exact[:, :, None]).squeeze(2)  # (rows, R)
    return float(systems.squares + (exact * (image - 2 * systems.right)).sum())
