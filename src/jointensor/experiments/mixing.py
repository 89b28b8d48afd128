"""Weights of members that predict left-out entries best together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STEPS = 30
"""Members are drawn with replacement so many times: weights are multiples of its inverse."""

GAIN = 0.0005
"""Share of the error that one more member must take away."""


def squared_error(said: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    """Mean of it, in double precision: squares of large values are infinite in single."""
    return float(np.mean((said.astype(np.float64) - truth) ** 2))


def greedy(said: dict[str, NDArray[np.float32]], truth: NDArray[np.float32]) -> dict[str, float]:
    """Weights of a mean: members are added one at a time, with replacement; those that predict best are kept.

    A good member has to be there several times before a little of another one helps, so a step that gains nothing
    does not end it.
    """
    total, picked, kept, lowest = np.zeros(len(truth)), [], 0, math.inf
    for step in range(1, STEPS + 1):
        errors = {name: float(np.mean(((total + one) / step - truth) ** 2)) for name, one in said.items()}
        name = min(errors, key=lambda one: errors[one])
        total += said[name]
        picked.append(name)
        if errors[name] < lowest * (1 - GAIN / step):
            lowest, kept = errors[name], step
    picked = picked[: max(kept, 1)]
    return {name: picked.count(name) / len(picked) for name in dict.fromkeys(picked)}


def mixed_error(said: dict[str, NDArray[np.float32]], truth: NDArray[np.float32], names: Sequence[str]) -> float:
    """Squared error of the best mean of some members."""
    weights = greedy({name: said[name] for name in names}, truth)
    mixed = np.sum([weight * said[name].astype(np.float64) for name, weight in weights.items()], axis=0)
    return squared_error(mixed, truth)
