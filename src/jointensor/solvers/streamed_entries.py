"""Training entries on disk, as the phases see them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.shard_writer import ShardedTensor
from jointensor.data.shards import Block, Shards, read_ahead
from jointensor.kernels.rows import ModeView
from jointensor.solvers.entries import Entries
from jointensor.solvers.failures import BudgetError

SAMPLE = 200_000
"""Training entries that are in memory, for what needs no more: first guesses, levels of blocks."""


@dataclass(frozen=True)
class Column:
    """A number for every training entry, on disk: the half that is fixed."""

    name: str


@dataclass(frozen=True)
class StreamedEntries(Entries):
    """Training entries: ``indices`` and ``values`` are a sample of them, the rest is read from ``shards``."""

    shards: Shards
    counts: tuple[NDArray[np.int64], ...]
    """Entries of every label, ``(I_n,)`` for each mode."""
    mean: float
    """Of all values."""
    spread: float
    """Standard deviation of all values."""
    deadline: float = math.inf
    """When passes stop."""
    sorted: set[int] = field(default_factory=set)
    """Modes by whose labels entries are on disk once more, in order."""

    @classmethod
    def of_shards(cls, dealt: ShardedTensor, deadline: float = math.inf) -> StreamedEntries:
        """Entries that were dealt to shards; the sample is from the first of them, which are random."""
        indices, values, wanted = [], [], min(SAMPLE, len(dealt.train))
        for k in range(len(dealt.train.counts)):
            block = dealt.train.read(k)
            chosen = np.sort(np.random.default_rng(k).permutation(len(block))[:wanted])
            indices.append(block.indices[chosen])
            values.append(block.values[chosen])
            wanted -= len(chosen)
            if not wanted:
                break
        return cls(
            torch.from_numpy(np.concatenate(indices)).long(),
            torch.from_numpy(np.concatenate(values)),
            dealt.train,
            dealt.counts,
            dealt.summary.mean,
            dealt.summary.spread,
            deadline,
        )

    def __len__(self) -> int:
        return len(self.shards)

    def blocks(
        self, column: Column | None = None, values: Column | None = None, rng: np.random.Generator | None = None
    ) -> Iterator[Block]:
        """All entries, a shard at a time.

        Parameters
        ----------
        column
            One more number per entry.
        values
            A column that stands for the values.
        rng
            Shuffles shards and the entries of each; without it they come as they are.

        Raises
        ------
        BudgetError
            Between shards, when the time is up.
        """
        order = None if rng is None else rng.permutation(len(self.shards.counts)).tolist()
        names = None if column is None else column.name, "values" if values is None else values.name
        for block in self.shards.blocks(*names, order, rng):
            self._check_time()
            yield block

    def keep_view(self, k: int, mode: int, view: ModeView) -> None:
        """Keep the order of a shard's entries along a mode, with their labels in all other modes."""
        columns = torch.cat([view.order[None], view.columns])  # (modes, entries)
        self.shards.write_column(k, f"by{mode}", columns.numpy())
        self.shards.write_column(k, f"starts{mode}", view.starts.numpy())

    def view(self, k: int, mode: int) -> ModeView:
        """What was kept of a shard."""
        stored = torch.from_numpy(self.shards.read_column(k, f"by{mode}"))
        return ModeView(stored[0], torch.from_numpy(self.shards.read_column(k, f"starts{mode}")), stored[1:])

    def views(self, mode: int, values: Column) -> Iterator[tuple[ModeView, NDArray[np.float32]]]:
        """All entries in the order of one mode, a shard at a time; and a number of each, in the shard's own order."""

        def read(k: int) -> tuple[ModeView, NDArray[np.float32]]:
            return self.view(k, mode), self.shards.read_column(k, values.name)

        for block in read_ahead(read, range(len(self.shards.counts))):
            self._check_time()
            yield block

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise BudgetError
