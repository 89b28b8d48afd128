"""Initialisation: scales are taken from the data, random numbers from torch's global state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointensor.models.joint import JointModel, NonlinearHalf
from jointensor.models.multilinear import Multilinear
from jointensor.models.nonlinear.base import Nonlinear

SPREAD = 0.3
"""Share of the values' standard deviation that the multilinear half starts with, and the network at most."""

LIFT = 0.1
"""Least level of the network's output at the start, in standard deviations: an output ReLU below zero is dead."""

EXACT_LIFT, EXACT_SPREAD = 1.0, 1.0
"""The same where the multilinear half is solved: it takes up any constant, and a ridge draws small starts to zero."""

PROBED_CELLS = 1024
"""Random cells on which the spread of the network's output is measured before training."""


@dataclass(frozen=True)
class Levels:
    """The constant around which each half starts; together they make the mean of the values."""

    linear: float
    nonlinear: float


def initialise(model: JointModel, moments: tuple[float, float], *, start: str) -> Levels:
    """Set every parameter anew; returns where the halves start.

    Parameters
    ----------
    model
        Changed in place.
    moments
        Mean and standard deviation of the training values, which set the scales.
    start
        ``data``: the network's output starts at the mean of the values (just above zero, if the mean is
        lower), the multilinear half at what is left, with a share of the spread. ``exact``: the same with
        more room for the network above zero and a wider start of the components, for a half that is solved.
        ``raw``: standard normal factors and the layers' own defaults.
    """
    g, f = model.multilinear, model.nonlinear
    mean = score_of_mean(model, moments)
    levels = Levels(mean, 0.0)
    if f is not None:
        lifted = init_nonlinear(f, (mean, moments[1]), start)
        levels = Levels(mean - lifted, lifted)
    if g is not None:
        init_linear(g, levels.linear, moments[1], start)
    return Levels(0.0, 0.0) if start == "raw" else levels


def score_of_mean(model: JointModel, moments: tuple[float, float]) -> float:
    """The score that becomes the mean of the values."""
    mean, _ = moments
    if model.link == "softplus":
        return math.log(math.expm1(max(mean, 1e-3))) if mean < 20 else mean
    return mean


def init_nonlinear(f: NonlinearHalf, moments: tuple[float, float], start: str) -> float:
    """Start f; returns the level it starts at. ``moments``: of scores, see :func:`initialise`."""
    mean, spread = moments
    f.set_scale(1.0)
    lift = EXACT_LIFT if start == "exact" else LIFT
    return start_nonlinear(f, None if start == "raw" else max(mean, lift * spread), SPREAD * spread)


def init_linear(g: Multilinear, level: float, spread: float, start: str) -> None:
    """Start g around a level."""
    g.init(level, None if start == "raw" else (EXACT_SPREAD if start == "exact" else SPREAD) * spread)


def start_nonlinear(half: NonlinearHalf, level: float | None, spread: float) -> float:
    """Reset f and its factors; returns the level its output starts at, 0 where that cannot be set."""
    for module in reversed(list(half.part.modules())):  # children first: a parent may overrule them
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    centre, deviation = (0.0, 1.0) if level is None else getattr(half.part, "row_start", Nonlinear.row_start)
    for table in half.factors.tables:
        nn.init.normal_(table, centre, deviation)
    head = getattr(half.part, "head", None)
    if level is None or not isinstance(head, nn.Linear) or head.bias is None or head.out_features != 1:
        return 0.0
    rows = torch.full((2, len(half.factors.tables), half.factors.width), centre, device=head.bias.device)
    nn.init.constant_(head.bias, level)
    with torch.no_grad():
        _shrink(half, head, spread)
        head.bias.add_(level - _before_activation(half.part, head, rows))  # what the layers below add at the start
        reached = float(half.part(rows).mean())
    if abs(reached - level) > 0.5 * abs(level):  # a bounded output: the level would only saturate it
        nn.init.zeros_(head.bias)
        return 0.0
    return level


def _before_activation(part: nn.Module, head: nn.Linear, rows: Tensor) -> float:
    """Mean of what the head gives out for some rows: an output ReLU would hide how far below zero it is."""
    given: list[Tensor] = []
    hook = head.register_forward_hook(lambda _, __, out: given.append(out))
    part(rows)
    hook.remove()
    return float(given[-1].mean()) if given else 0.0


def _shrink(half: NonlinearHalf, head: nn.Linear, most: float) -> None:
    """Scale the last weights down until the output, on random cells, varies by ``most`` at most."""
    sizes = [len(table) for table in half.factors.tables]
    cells = torch.stack([torch.randint(size, (PROBED_CELLS,), device=head.weight.device) for size in sizes], dim=1)
    half.train()  # as training will see it: a batch normalisation by the figures of its batch
    varies = float(half(cells).std())
    half.eval()
    if math.isfinite(varies) and varies > most > 0:
        head.weight.mul_(most / varies)
