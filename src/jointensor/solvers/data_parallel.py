"""Training by several processes: each has a share of the entries, gradients are summed, all take the same steps."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from jointensor.data.shard_writer import ShardedTensor
from jointensor.data.store import Batch, Entries, Scores
from jointensor.data.tensor import SparseTensor
from jointensor.data.values import ValueSummary
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError, ProcessGroupError
from jointensor.models.joint import JointModel
from jointensor.random_state import Generators, seed_of

MAX_SHUFFLED_TOGETHER = 1 << 25
"""Entries beyond which every process shuffles its own."""

MIN_ROWWISE_NUMBERS = 1 << 14
"""Gradients of more numbers than this may be sent as the rows that are not zero."""

PARAMETER_TOLERANCE = 1e-5
"""Relative difference of sums of parameters between processes that rounding on unlike machines may cause."""


@dataclass(frozen=True)
class SharedEntries(Entries):
    """The share of one of several processes; an :class:`~jointensor.data.store.EntryStore`.

    Batches are of the same entries as with one process: steps and learning rates mean the same.
    """

    processes: ProcessGroup = SINGLE_PROCESS
    count: int = 0
    """Entries of all processes."""

    @classmethod
    def share(cls, own: Entries, processes: ProcessGroup) -> SharedEntries:
        """The entries of this process."""
        return cls(own.indices, own.values, processes, int(processes.sum(len(own))[0]))

    @property
    def total(self) -> int:
        """Entries of all processes."""
        return self.count

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the values of all processes."""
        return self.processes.moments(self.values)

    def steps(self, batch_size: int) -> int:
        """Steps of an epoch."""
        return -(-self.count // batch_size)

    def batches(self, batch_size: int, scores: Scores, generators: Generators, start: int = 0) -> Generator[Batch]:
        """The entries that this process has of the batches of an epoch, from step ``start`` on."""
        plan = make_plan(self.count, batch_size, self.processes, generators)
        return (self.batch(plan.order[own], scores, whole) for own, whole in plan.batches[start:])


class Plan(NamedTuple):
    """The batches of an epoch."""

    order: Tensor
    """This process's entries in the order in which they come, ``(own entries,)``."""
    batches: list[tuple[slice, int]]
    """Of every batch, where this process's part is in that order, and how many entries all have of it."""


def make_plan(count: int, batch_size: int, processes: ProcessGroup, generators: Generators) -> Plan:
    """Shuffle ``count`` entries, of which every process has its share; the same order for all, where they are few.

    Of very many, every process shuffles its own, so that nobody needs memory for all.
    """
    if count > MAX_SHUFFLED_TOGETHER:
        return _own_plan(count, batch_size, processes, generators)
    order = torch.randperm(count, device=generators.device, generator=generators.local)
    mine = (order % processes.size == processes.rank).nonzero().squeeze(1)
    starts = torch.arange(0, count + batch_size, batch_size, device=order.device)
    edges = torch.searchsorted(mine, starts).tolist()
    batches = [
        (slice(edges[k], edges[k + 1]), min(batch_size, count - first))
        for k, first in enumerate(range(0, count, batch_size))
    ]
    return Plan(order[mine] // processes.size, batches)


def _own_plan(count: int, batch_size: int, processes: ProcessGroup, generators: Generators) -> Plan:
    own = Generators(generators.device, processes.rank, seed_of(generators.state()))
    torch.rand((), generator=generators.cpu)  # the next epoch has another order
    steps, shares = -(-count // batch_size), processes.shares(count)
    order = torch.randperm(shares[processes.rank], device=own.device, generator=own.local)

    def part(step: int, share: int) -> slice:  # as many steps for all, though some have an entry more
        return slice(step * share // steps, (step + 1) * share // steps)

    sizes = [sum(len(range(share)[part(step, share)]) for share in shares) for step in range(steps)]
    return Plan(order, [(part(step, shares[processes.rank]), sizes[step]) for step in range(steps)])


def sum_gradients(parameters: Sequence[Tensor], processes: ProcessGroup) -> None:
    """Sum the gradients of all processes, in place.

    Of a large table only the rows that somebody's entries have are sent, as long as these are fewer bytes than an
    all-reduce of the whole table sends, for n processes ``(n-1) · most rows · (4 · width + 8)`` against
    ``2 (n-1)/n · 4 · numbers``. Everything else goes in one piece.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    large = [one for one in gradients if one.dim() == 2 and one.numel() > MIN_ROWWISE_NUMBERS]
    rows = [one.ne(0).any(dim=1).nonzero().squeeze(1) for one in large]
    most = _most(rows, processes)
    by_rows = [
        count * (4 * one.shape[1] + 8) * processes.size < 8 * one.numel()
        for one, count in zip(large, most, strict=True)
    ]
    for one, own, count, few in zip(large, rows, most, by_rows, strict=True):
        if few:
            _sum_rows(one, own, count, processes)
    done = {id(one) for one, few in zip(large, by_rows, strict=True) if few}
    _sum_whole([one for one in gradients if id(one) not in done], processes)


def _most(rows: list[Tensor], processes: ProcessGroup) -> list[int]:
    """The largest number of rows that any process has of every table."""
    if not rows:
        return []
    counts = torch.tensor([len(one) for one in rows], device=rows[0].device)
    return [int(one) for one in torch.stack(processes.gather(counts)).amax(dim=0)]


def _sum_rows(gradient: Tensor, rows: Tensor, most: int, processes: ProcessGroup) -> None:
    """Exchange rows, and add them process by process: the same bits everywhere."""
    places, values = rows.new_zeros(most), gradient.new_zeros(most, gradient.shape[1])
    places[: len(rows)], values[: len(rows)] = rows, gradient.index_select(0, rows)
    gathered = zip(processes.gather(places), processes.gather(values), strict=True)
    gradient.zero_()
    for where, what in gathered:
        gradient.index_add_(0, where, what)  # what fills up is zero, at row 0


def _sum_whole(gradients: list[Tensor], processes: ProcessGroup) -> None:
    if not gradients:
        return
    whole = processes.sum_(torch.cat([one.flatten() for one in gradients]))
    for one, summed in zip(gradients, torch.split(whole, [one.numel() for one in gradients]), strict=True):
        one.copy_(summed.view_as(one))


def own_share(train: SparseTensor, processes: ProcessGroup, *, ordered: bool) -> SparseTensor:
    """The training entries that this process keeps: every so many-th of the order that one process would have.

    ``ordered``: that is the order of the last mode's labels, as exact sweeps want it.
    """
    if not processes.shared:
        return train
    if len(train) < processes.size:
        raise ConfigError(f"{len(train)} training entries are fewer than the {processes.size} processes; start fewer")
    order = np.argsort(train.indices[:, -1], kind="stable") if ordered else np.arange(len(train))
    return train.take(order[processes.share(len(train))])


def sum_shares(tensor: ShardedTensor, processes: ProcessGroup) -> ShardedTensor:
    """A tensor on disk with summary and counts of the training entries of all processes."""
    if not processes.shared:
        return tensor
    counts = (processes.sum_(torch.tensor(one, device=processes.device)).cpu().numpy() for one in tensor.counts)
    own = torch.tensor(list(vars(tensor.summary).values()), dtype=torch.float64, device=processes.device)
    summary = ValueSummary()
    for n, *numbers in torch.stack(processes.gather(own)).tolist():
        summary.merge(ValueSummary(int(n), *numbers))
    return replace(tensor, counts=tuple(counts), summary=summary)


def see_all(model: JointModel, train: SparseTensor, processes: ProcessGroup) -> None:
    """Let blocks whose size depends on the training entries look at those of all processes."""
    if model.multilinear is not None and processes.shared:
        model.multilinear.cpu().see(torch.as_tensor(np.array(train.indices), dtype=torch.int64))


def share_random_state(generators: Generators, processes: ProcessGroup) -> None:
    """Let all processes continue from the random state of the first."""
    if processes.shared:
        state = {kind: processes.broadcast_(one.to(processes.device)).cpu() for kind, one in generators.state().items()}
        generators.set_state(state)


@torch.no_grad()
def take_first(model: nn.Module, processes: ProcessGroup) -> None:
    """Let all processes have the parameters of the first."""
    for parameter in model.parameters():
        processes.broadcast_(parameter)


@torch.no_grad()
def keep_together(model: nn.Module, processes: ProcessGroup) -> None:
    """Check that all processes have the same model; differences of rounding are evened out.

    Running figures of a batch normalisation are of every process's own entries; those of the first are taken.
    """
    if not processes.shared:
        return
    parameters = list(model.parameters())
    sums = torch.stack([torch.stack([one.double().sum(), one.double().abs().sum()]) for one in parameters])
    every = torch.stack(
        processes.gather(sums.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    )  # (processes, parameters, 2)
    away = (every - every[0]).abs()[:, :, 0] / every[0, :, 1].clamp_min(1e-30)
    if float(away.max()) > PARAMETER_TOLERANCE:
        which = int(away.amax(dim=1).argmax())
        raise ProcessGroupError(
            f"the models of processes 0 and {which} have come apart: check that all of them read the same source "
            "with the same versions of jointensor and torch"
        )
    if bool((every != every[0]).any()):
        take_first(model, processes)
    nonlinear = getattr(model, "nonlinear", None)
    for buffer in () if nonlinear is None else nonlinear.buffers():
        if buffer.is_floating_point():
            processes.broadcast_(buffer)
