"""Row solves by several processes, each with a share of the entries and of the rows.

Every process forms the normal equations of its own entries. Their sums go to the processes that own the rows, which
solve them; the solved rows go to all. Sent per table of I rows are ``I (R (R + 1) / 2 + R)`` numbers to the
owners and ``I R`` back, however many entries there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jointensor.distributed.process_group import ProcessGroup
from jointensor.kernels import Engine
from jointensor.kernels.rows import RowEntries, row_values, solve_spd

CHUNK_BYTES = 1 << 26
"""Size of the normal equations that are formed and sent at a time."""


def share_engine(engine: Engine, processes: ProcessGroup) -> Engine:
    """The engine whose row solves are over the entries of all processes."""
    if not processes.shared:
        return engine
    shared = SharedRows(engine, processes)
    return replace(engine, solve_rows=shared.solve_rows, row_systems=shared.row_systems)


@dataclass(frozen=True)
class SharedRows:
    """An engine's loops, over the entries of all processes."""

    engine: Engine
    processes: ProcessGroup

    def row_systems(self, entries: RowEntries, rank: int) -> tuple[Tensor, Tensor]:
        """As :func:`jointensor.kernels.rows.row_systems`."""
        return _unpack(self.processes.sum_(_pack(*self.engine.row_systems(entries, rank))), rank)

    def solve_rows(
        self, entries: RowEntries, ridge: Tensor, table: Tensor, *, evaluate: bool = True, prior: Tensor | None = None
    ) -> Tensor:
        """As :func:`jointensor.kernels.rows.solve_rows`."""
        size, rank = self.processes.size, table.shape[1]
        at_once = max(CHUNK_BYTES // (4 * rank * (rank + 1)) // size, 1) * size
        for first in range(0, len(table), at_once):
            rows = slice(first, min(first + at_once, len(table)))
            systems = _pack(*self.engine.row_systems(entries.of_rows(rows), rank))
            table[rows] = self._solve(systems, ridge[rows], None if prior is None else prior[rows], rank)
        return row_values(entries, table) if evaluate else entries.targets.new_empty(0)

    def _solve(self, systems: Tensor, ridge: Tensor, prior: Tensor | None, rank: int) -> Tensor:
        """Solutions of some rows' systems, ``(rows, R)``, every process a contiguous part of them."""
        processes, count = self.processes, len(systems)
        each = -(-count // processes.size)
        padded = systems.new_zeros(processes.size * each, systems.shape[1])
        padded[:count] = systems
        own = processes.sum_parts(padded.view(processes.size, each, -1))  # (each, numbers)
        rows = slice(processes.rank * each, (processes.rank + 1) * each)
        gram, right = _unpack(own[: len(ridge[rows])].double(), rank)
        solved = solve_spd(gram, right, ridge[rows].double(), None if prior is None else prior[rows].double())
        mine = systems.new_zeros(each, rank)
        mine[: len(solved)] = solved.to(mine.dtype)
        return torch.cat(processes.gather(mine))[:count]


def _pack(gram: Tensor, right: Tensor) -> Tensor:
    """Symmetric matrices and right sides as rows of numbers, ``(rows, R (R + 1) / 2 + R)``."""
    upper = torch.triu_indices(gram.shape[1], gram.shape[1], device=gram.device)
    return torch.cat([gram[:, upper[0], upper[1]], right], dim=1)


def _unpack(packed: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    upper = torch.triu_indices(rank, rank, device=packed.device)
    gram = packed.new_zeros(len(packed), rank, rank)
    gram[:, upper[0], upper[1]] = gram[:, upper[1], upper[0]] = packed[:, :-rank]
    return gram, packed[:, -rank:].contiguous()
