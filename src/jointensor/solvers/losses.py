"""Losses: elementwise functions of predictions and observations; the caller reduces.

A loss also names the *link* that turns the score g + f into a value it accepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.registry import nearest


def squared(predicted: Tensor, observed: Tensor) -> Tensor:
    """(x − x̂)², eq. (5); no factor ½."""
    return (predicted - observed) ** 2


def absolute(predicted: Tensor, observed: Tensor) -> Tensor:
    """|x − x̂|."""
    return (predicted - observed).abs()


def huber(predicted: Tensor, observed: Tensor, *, delta: float = 1.0) -> Tensor:
    """½ e² up to ``delta``, then δ(|e| − ½ δ)."""
    return nn.functional.huber_loss(predicted, observed, reduction="none", delta=delta)


def kullback_leibler(predicted: Tensor, observed: Tensor) -> Tensor:
    """x log(x / x̂) − x + x̂, for x ≥ 0 and x̂ > 0; zero exactly where x̂ = x."""
    counted = torch.where(observed > 0, observed, 1.0)  # 0 log 0 = 0, with a gradient of 0
    ratio = (predicted / counted).clamp_min(torch.finfo(predicted.dtype).tiny)
    return -observed * ratio.log() - observed + predicted


@dataclass(frozen=True)
class Loss:
    """A loss with what training needs to know about it."""

    name: str
    elementwise: Callable[[Tensor, Tensor], Tensor]
    link: str = "identity"
    nonnegative: bool = False
    """Whether observations must be at least 0."""

    def figure(self, mean: float) -> float:
        """The mean loss as it is reported and compared: RMSE for the squared loss."""
        return math.sqrt(mean) if self.name == "squared" and mean >= 0 else mean


LOSSES = ("squared", "absolute", "huber", "kl")


def make_loss(name: str, *, huber_delta: float = 1.0) -> Loss:
    """A loss by name. ``kl`` works on ``softplus(g + f)``, so that predictions are positive."""
    made = {
        "squared": Loss("squared", squared),
        "absolute": Loss("absolute", absolute),
        "huber": Loss("huber", partial(huber, delta=huber_delta)),
        "kl": Loss("kl", kullback_leibler, link="softplus", nonnegative=True),
    }
    if name not in made:
        raise ConfigError(f"there is no loss '{name}'; {nearest(name, made)}")
    return made[name]
