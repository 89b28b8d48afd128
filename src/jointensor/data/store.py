"""EntryStore: the one way in which training sees entries, wherever they are.

:class:`Entries` are in memory on a device, :class:`ShardedEntries` in shards on disk;
:class:`jointensor.solvers.data_parallel.SharedEntries` are the share of one of several processes. A solver asks a store
for shuffled batches, for scores of a half that are kept beside the entries, and for the entries that are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.data.shard_writer import ShardedTensor
from jointensor.data.shards import Block, Shards, read_ahead
from jointensor.data.tensor import SparseTensor
from jointensor.kernels.rows import ModeView
from jointensor.random_state import Generators

MAX_SAMPLE = 200_000
"""Training entries on disk that are also in memory, for what needs no more: initial components, levels of blocks."""

Half = Callable[[Tensor], Tensor]
"""Something from indices ``(batch, modes)`` to scores ``(batch,)``: g, f, or their sum."""


@dataclass(frozen=True)
class Column:
    """A number for every entry, on disk."""

    name: str


FROZEN = Column("frozen")
"""Scores of the half that is not trained; there is one at a time."""

Scores = Tensor | Column | float
"""Scores of a half where the entries are: ``(entries,)``, a column on disk, or one number for all."""


class Batch(NamedTuple):
    """Entries of one step."""

    indices: Tensor  # (batch, modes)
    values: Tensor  # (batch,)
    scores: Tensor | float
    """Of the other half."""
    total: int
    """Entries that all processes have of this batch."""


class EntryStore(Protocol):
    """Entries of a tensor; see the head of this module."""

    @property
    def device(self) -> torch.device:
        """Where batches are."""

    @property
    def resident(self) -> Entries | None:
        """All entries of this process as tensors on the device; ``None`` where they are on disk."""

    @property
    def total(self) -> int:
        """Entries of all processes."""

    def __len__(self) -> int: ...

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the values of all processes."""

    def sample(self) -> Entries:
        """Entries that are in memory: all, or a random sample."""

    def steps(self, batch_size: int) -> int:
        """Steps of an epoch."""

    def batches(self, batch_size: int, scores: Scores, generators: Generators, start: int = 0) -> Generator[Batch]:
        """Shuffled batches of an epoch from step ``start`` on; the order is drawn when this is called."""

    def evaluate(self, half: Half, batch_size: int) -> Scores:
        """Scores of all entries, kept where the entries are until the next call.

        ``half`` is given entries on the device, on disk ``batch_size`` at a time.
        """


@dataclass(frozen=True)
class Entries:
    """Entries in memory on a device; the :class:`EntryStore` of one process."""

    indices: Tensor  # (entries, modes)
    values: Tensor  # (entries,)

    @classmethod
    def of(cls, tensor: SparseTensor, device: torch.device) -> Entries:
        """Entries of a sparse tensor, copied to the device once."""
        # a CPU looks rows up several times as fast by 64 bits, a GPU saves memory
        width = torch.int64 if device.type == "cpu" else torch.int32
        return cls(
            torch.as_tensor(np.array(tensor.indices), dtype=width, device=device),
            torch.as_tensor(np.array(tensor.values), device=device),
        )

    def by_last_mode(self) -> Entries:
        """The same entries in the order of their labels in the last mode, which exact sweeps read fastest."""
        order = torch.argsort(self.indices[:, -1], stable=True)
        return Entries(self.indices[order], self.values[order])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        """Where the entries are."""
        return self.values.device

    @property
    def resident(self) -> Entries:
        """The entries themselves."""
        return self

    @property
    def total(self) -> int:
        """Entries of all processes."""
        return len(self)

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the values."""
        return float(self.values.mean()), float(self.values.std(correction=0))

    def sample(self) -> Entries:
        """All of them."""
        return self

    def steps(self, batch_size: int) -> int:
        """Steps of an epoch."""
        return -(-len(self) // batch_size)

    def batches(self, batch_size: int, scores: Scores, generators: Generators, start: int = 0) -> Generator[Batch]:
        """Shuffled batches of an epoch from step ``start`` on; the last one may be smaller."""
        order = torch.randperm(len(self), device=self.device, generator=generators.local)
        chosen = (order[first : first + batch_size] for first in range(start * batch_size, len(self), batch_size))
        return (self.batch(some, scores) for some in chosen)

    def batch(self, chosen: Tensor, scores: Scores, total: int | None = None) -> Batch:
        """Some of the entries, by position."""
        some = scores.index_select(0, chosen) if isinstance(scores, Tensor) else _number(scores)
        indices, values = self.indices.index_select(0, chosen), self.values.index_select(0, chosen)
        return Batch(indices, values, some, len(chosen) if total is None else total)

    def evaluate(self, half: Half, batch_size: int) -> Tensor:
        """Scores of all entries, ``(entries,)``."""
        del batch_size  # they are on the device already
        return half(self.indices)


def _number(scores: Scores) -> float:
    assert isinstance(scores, int | float)  # a column on disk belongs to entries on disk
    return float(scores)


@dataclass(frozen=True)
class ShardedEntries:
    """Entries in shards on disk: the memory they take does not grow with their number.

    Shards come in a random order and are shuffled inside. Since which shard an entry is in is random, this is as good
    as a shuffle of all entries.
    """

    shards: Shards
    label_counts: tuple[NDArray[np.int64], ...]
    """Entries of every label, ``(I_n,)`` for each mode."""
    mean: float
    spread: float
    """Standard deviation of the values."""
    some: Entries
    """A sample in memory."""
    device: torch.device
    """Where batches are copied to."""
    between_shards: Callable[[], None] = lambda: None
    """Called between shards of a pass; may raise where the time is up."""
    shard_counts: NDArray[np.int64] | None = None
    """Entries of every shard of every process, ``(processes, shards)``; ``None`` for a single process."""
    rank: int = 0
    """Which of the processes this is."""
    sorted_modes: set[int] = field(default_factory=set)
    """Modes by whose labels entries are on disk once more, in order."""

    @classmethod
    def of(
        cls,
        tensor: ShardedTensor,
        device: torch.device,
        between_shards: Callable[[], None] = lambda: None,
        shard_counts: NDArray[np.int64] | None = None,
        rank: int = 0,
    ) -> ShardedEntries:
        """Training entries of a tensor on disk; the sample is from the first shards, which are random."""
        indices, values, wanted = [], [], min(MAX_SAMPLE, len(tensor.train))
        for k in range(len(tensor.train.counts)):
            block = tensor.train.read(k)
            chosen = np.sort(np.random.default_rng(k).permutation(len(block))[:wanted])
            indices.append(block.indices[chosen])
            values.append(block.values[chosen])
            wanted -= len(chosen)
            if not wanted:
                break
        some = Entries(
            torch.from_numpy(np.concatenate(indices)).long().to(device),
            torch.from_numpy(np.concatenate(values)).to(device),
        )
        mean, spread = tensor.summary.mean, tensor.summary.spread
        return cls(tensor.train, tensor.counts, mean, spread, some, device, between_shards, shard_counts, rank)

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def resident(self) -> None:
        """They are on disk."""
        return

    @property
    def counts(self) -> NDArray[np.int64]:
        """Entries of every shard of every process, ``(processes, shards)``."""
        return np.array([self.shards.counts]) if self.shard_counts is None else self.shard_counts

    @property
    def total(self) -> int:
        """Entries of all processes."""
        return int(self.counts.sum())

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the values of all processes."""
        return self.mean, self.spread

    def sample(self) -> Entries:
        """A random sample in memory."""
        return self.some

    def steps(self, batch_size: int) -> int:
        """Steps of an epoch."""
        return sum(_steps(count, batch_size) for count in self.counts.sum(axis=0).tolist())

    def batches(self, batch_size: int, scores: Scores, generators: Generators, start: int = 0) -> Generator[Batch]:
        """Shuffled batches of an epoch from step ``start`` on; batches of a shard are of about the same size.

        Every process has a part of every shard; all take them in the same order, in as many steps.
        """
        seed = int(torch.randint(2**62, (), device=generators.device, generator=generators.local))
        column = scores if isinstance(scores, Column) else None
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.shards.counts))
        counts = self.counts[:, order].T.tolist()  # of all processes, shard by shard
        blocks = zip(self.blocks(column, order=order.tolist(), rng=rng), counts, strict=True)
        return self._in_batches(blocks, batch_size, 0.0 if column else _number(scores), start)

    def _in_batches(
        self, blocks: Iterator[tuple[Block, list[int]]], batch_size: int, number: float, start: int
    ) -> Generator[Batch]:
        for block, counts in blocks:
            steps = _steps(sum(counts), batch_size)
            edges = np.linspace(0, counts, steps + 1).astype(np.int64)  # (steps + 1, processes)
            totals, own = np.diff(edges, axis=0).sum(axis=1).tolist(), edges[:, self.rank].tolist()
            skipped = min(start, steps)
            start -= skipped
            for total, (first, last) in zip(totals[skipped:], pairwise(own[skipped:]), strict=True):
                scores = number if block.column is None else torch.from_numpy(block.column[first:last]).to(self.device)
                yield Batch(
                    torch.from_numpy(block.indices[first:last]).long().to(self.device),
                    torch.from_numpy(block.values[first:last]).to(self.device),
                    scores,
                    total,
                )

    def evaluate(self, half: Half, batch_size: int) -> Column:
        """Scores of all entries, as a column on disk."""
        for k, block in enumerate(self.shards.blocks()):
            parts = torch.split(torch.from_numpy(block.indices), batch_size)
            scores = [half(part.long().to(self.device)).float().cpu() for part in parts]
            self.shards.write_column(k, FROZEN.name, torch.cat(scores).numpy())
        return FROZEN

    def blocks(
        self,
        column: Column | None = None,
        values: Column | None = None,
        order: Sequence[int] | None = None,
        rng: np.random.Generator | None = None,
    ) -> Iterator[Block]:
        """All entries, a shard at a time.

        Parameters
        ----------
        column
            One more number per entry.
        values
            A column that is read in place of the values.
        order, rng
            Of the shards, and for a shuffle of the entries of each; without them they come as they are.
        """
        names = None if column is None else column.name, "values" if values is None else values.name
        for block in self.shards.blocks(*names, order, rng):
            self.between_shards()
            yield block

    def keep_view(self, k: int, mode: int, view: ModeView) -> None:
        """Keep the order of a shard's entries along a mode, with their labels in all other modes."""
        columns = torch.cat([view.order[None], view.columns])  # (modes, entries)
        self.shards.write_column(k, f"by{mode}", columns.cpu().numpy())
        self.shards.write_column(k, f"starts{mode}", view.starts.cpu().numpy())

    def view(self, k: int, mode: int) -> ModeView:
        """The order of a shard's entries along a mode, as it was kept."""
        stored, starts = (self._column(k, f"{name}{mode}") for name in ("by", "starts"))
        return ModeView(stored[0], starts, stored[1:])

    def _column(self, k: int, name: str) -> Tensor:
        return torch.from_numpy(self.shards.read_column(k, name)).to(self.device)

    def by_mode(self, mode: int, values: Column) -> Iterator[tuple[ModeView, Tensor]]:
        """All entries in the order of one mode, a shard at a time; and a number of each, in the shard's own order."""

        def read(k: int) -> tuple[ModeView, Tensor]:
            return self.view(k, mode), self._column(k, values.name)

        for block in read_ahead(read, range(len(self.shards.counts))):
            self.between_shards()
            yield block


def _steps(entries: int, batch_size: int) -> int:
    """Steps that a shard takes."""
    return max(1, round(entries / batch_size))
