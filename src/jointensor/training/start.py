"""Where training starts: initial scales taken from the data, all randomness from torch's current state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointensor.models.joint import JointModel, NonlinearHalf
from jointensor.models.multilinear import Multilinear

SPREAD = 0.3
"""Share of the values' standard deviation that the multilinear half starts with."""

LIFT = 0.1
"""Least level of the network's output at the start, in standard deviations: an output ReLU below zero is dead."""

ROWS = 0.1
"""Standard deviation of the initial nonlinear factors."""


@dataclass(frozen=True)
class Levels:
    """The constant around which each half starts; together they make the mean of the values."""

    linear: float
    nonlinear: float


def initialise(model: JointModel, values: Tensor, *, start: str) -> Levels:
    """Set every parameter anew; returns where the halves start.

    Parameters
    ----------
    model
        Changed in place.
    values
        Training values; their mean and spread set the scales.
    start
        ``data``: the network's output starts at the mean of the values (just above zero, if the mean is
        lower), the multilinear half at what is left, with a share of the spread. ``raw``: standard
        normal factors and the layers' own defaults.
    """
    mean, spread = float(values.mean()), float(values.std(correction=0))
    if model.link == "softplus":  # the score that becomes the mean
        mean = math.log(math.expm1(max(mean, 1e-3))) if mean < 20 else mean
    g, f = model.multilinear, model.nonlinear
    raw = start == "raw"
    levels = Levels(mean, 0.0)
    if f is not None:
        lifted = _start_nonlinear(f, None if raw else max(mean, LIFT * spread))
        levels = Levels(mean - lifted, lifted)
    if g is not None:
        _start_linear(g, levels.linear, None if raw else SPREAD * spread)
    return Levels(0.0, 0.0) if raw else levels


def _start_linear(half: Multilinear, level: float, spread: float | None) -> None:
    for name, block in half.blocks.items():
        for parameter in block.parameters():
            nn.init.constant_(parameter, level if name == "mean" else 0.0)
    if half.cp is None:
        return
    left = 0.0 if "mean" in half.blocks else level
    scales = (0.0, 1.0) if spread is None else product_scales(abs(left), spread, half.cp.width, len(half.cp.tables))
    with torch.no_grad():
        for table in half.cp.tables:
            nn.init.normal_(table, *scales)
        if left < 0:
            half.cp.tables[0].neg_()


def product_scales(level: float, spread: float, rank: int, modes: int) -> tuple[float, float]:
    """Mean a and standard deviation b of factors whose CP has the given mean and standard deviation.

    Independent factors a + b·ε give ``R aᴺ`` and ``R ((a² + b²)ᴺ − a²ᴺ)``; solved for a and b.
    """
    power = level / rank  # aᴺ
    centre = power ** (1 / modes)
    second = (spread**2 / rank + power**2) ** (1 / modes)  # a² + b²
    return centre, math.sqrt(max(second - centre**2, 0.0))


def _start_nonlinear(half: NonlinearHalf, level: float | None) -> float:
    """Reset f and its factors; returns the level its output starts at, 0 where that cannot be set."""
    for module in reversed(list(half.part.modules())):  # children first: a parent may overrule them
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    for table in half.factors.tables:
        nn.init.normal_(table, 0.0, 1.0 if level is None else ROWS)
    head = getattr(half.part, "head", None)
    if level is None or not isinstance(head, nn.Linear) or head.bias is None or head.out_features != 1:
        return 0.0
    nn.init.constant_(head.bias, level)
    zeros = torch.zeros(2, len(half.factors.tables), half.factors.width, device=head.bias.device)
    with torch.no_grad():
        reached = float(half.part(zeros).mean())
    if abs(reached - level) > 0.5 * abs(level):  # a bounded output: the level would only saturate it
        nn.init.zeros_(head.bias)
        return 0.0
    return level
