"""Descent by several processes: each takes the gradient of its part of a batch, and all make the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointensor.errors import WorldError
from jointensor.models.joint import LINKS
from jointensor.training.solvers import PIECES, Descent, Inside
from jointensor.training.state import Entries, Fixed, Half
from jointensor.training.world import ALONE, World

TABLE = 1 << 14
"""Gradients of more numbers than this may be sent by the rows that are not zero."""

APART = 1e-5
"""How far sums of parameters may differ, as a share of their size: rounding on unlike machines, and no more."""


@dataclass
class SharedDescent(Descent):
    """Shuffled minibatches; every process has a part of each, and the mean is over the whole.

    A batch is the recipe's, whatever the number of processes: steps and learning rates mean the same.
    """

    world: World = ALONE

    def epoch(self, half: Half, fixed: Fixed, train: Entries, inside: Inside | None = None) -> float:
        """One shuffled pass over every process's own entries; the mean loss of all batches as they came."""
        world, device, own = self.world, train.values.device, len(train)
        counts = [int(one) for one in world.gather(torch.tensor([own], device=device))]
        steps = -(-sum(counts) // self.batch_size)
        seed = inside["random"] if inside else world.seed()
        with world.own_random(seed):
            order = torch.randperm(own, device=device)
        total = torch.tensor(inside["total"] if inside and world.first else 0.0, device=device)

        def after(piece: int) -> None:
            (whole,) = world.sum(float(total))
            self.pause(piece / PIECES, {"piece": piece, "total": whole, "random": seed})

        def part(step: int, count: int) -> slice:  # as many steps for all, though some have an entry more
            return slice(step * count // steps, (step + 1) * count // steps)

        for first, last in self.pieces(steps, inside["piece"] if inside else 0, after):
            with world.own_random(seed, first + 1):
                for step in range(first, last):
                    whole = sum(len(range(count)[part(step, count)]) for count in counts)
                    total += self._shared_step(half, fixed, train, order[part(step, own)], whole)
        return world.sum(float(total))[0] / sum(counts)

    def _shared_step(self, half: Half, fixed: Fixed, train: Entries, batch: Tensor, whole: int) -> Tensor:
        rest = fixed.train.index_select(0, batch) if isinstance(fixed.train, Tensor) else fixed.train
        predicted = LINKS[self.loss.link](half(train.indices.index_select(0, batch)) + rest)
        loss = self.loss.elementwise(predicted, train.values.index_select(0, batch)).sum()
        self.optimizer.zero_grad()
        (loss / whole).backward()  # type: ignore[no-untyped-call]
        sum_gradients([one for group in self.optimizer.param_groups for one in group["params"]], self.world)
        self.optimizer.step()
        return loss.detach()


def sum_gradients(parameters: Sequence[Tensor], world: World) -> None:
    """Sum the gradients of all processes, in place.

    Of a large table only the rows that somebody's entries have are sent, as long as these are fewer bytes than an
    all-reduce of the whole table sends: ``(n-1) · most rows · (4 · width + 8)`` against ``2 (n-1)/n · 4 · numbers``, for n
    processes. Everything else goes in one piece.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    large = [one for one in gradients if one.dim() == 2 and one.numel() > TABLE]
    rows = [one.ne(0).any(dim=1).nonzero().squeeze(1) for one in large]
    most = _most(rows, world)
    by_rows = [
        count * (4 * one.shape[1] + 8) * world.size < 8 * one.numel() for one, count in zip(large, most, strict=True)
    ]
    for one, own, count, few in zip(large, rows, most, by_rows, strict=True):
        if few:
            _sum_rows(one, own, count, world)
    done = {id(one) for one, few in zip(large, by_rows, strict=True) if few}
    _sum_whole([one for one in gradients if id(one) not in done], world)


def _most(rows: list[Tensor], world: World) -> list[int]:
    """The largest number of rows that any process has of every table."""
    if not rows:
        return []
    counts = torch.tensor([len(one) for one in rows], device=rows[0].device)
    return [int(one) for one in torch.stack(world.gather(counts)).amax(dim=0)]


def _sum_rows(gradient: Tensor, rows: Tensor, most: int, world: World) -> None:
    """Exchange rows, and add them process by process: the same bits everywhere."""
    places, values = rows.new_zeros(most), gradient.new_zeros(most, gradient.shape[1])
    places[: len(rows)], values[: len(rows)] = rows, gradient.index_select(0, rows)
    gathered = zip(world.gather(places), world.gather(values), strict=True)
    gradient.zero_()
    for where, what in gathered:
        gradient.index_add_(0, where, what)  # what fills up is zero, at row 0


def _sum_whole(gradients: list[Tensor], world: World) -> None:
    if not gradients:
        return
    whole = world.sum_(torch.cat([one.flatten() for one in gradients]))
    for one, summed in zip(gradients, torch.split(whole, [one.numel() for one in gradients]), strict=True):
        one.copy_(summed.view_as(one))


@torch.no_grad()
def take_first(model: nn.Module, world: World) -> None:
    """Let all processes have the parameters of the first."""
    for parameter in model.parameters():
        world.broadcast_(parameter)


@torch.no_grad()
def keep_together(model: nn.Module, world: World) -> None:
    """Check that all processes have the same model; differences of rounding are evened out.

    Running figures of a batch normalisation are of every process's own entries; those of the first are taken.
    """
    if not world.shared:
        return
    parameters = list(model.parameters())
    sums = torch.stack([torch.stack([one.double().sum(), one.double().abs().sum()]) for one in parameters])
    every = torch.stack(world.gather(sums.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)))  # (processes, parameters, 2)
    away = (every - every[0]).abs()[:, :, 0] / every[0, :, 1].clamp_min(1e-30)
    if float(away.max()) > APART:
        which = int(away.amax(dim=1).argmax())
        raise WorldError(
            f"the models of processes 0 and {which} have come apart: do all of them read the same source, with the same "
            "version of jointensor and of torch?"
        )
    if bool((every != every[0]).any()):
        take_first(model, world)
    nonlinear = getattr(model, "nonlinear", None)
    for buffer in () if nonlinear is None else nonlinear.buffers():
        if buffer.is_floating_point():
            world.broadcast_(buffer)
