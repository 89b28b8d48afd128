"""Weights of members that predict left-out entries best together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 30
"""Members are drawn with replacement so many times: weights are multiples of its inverse."""

GAIN = 0.0005
"""Share of the error that one more member must take away."""


CHUNK = 1 << 18
"""Entries whose errors are multiplied at a time."""


def squared_error(said: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    """Mean of it, in double precision: squares of large values are infinite in single."""
    return float(np.mean((said.astype(np.float64) - truth) ** 2))


@dataclass(frozen=True)
class Errors:
    """How members err, alone and together: enough to know the error of any mean of theirs."""

    names: tuple[str, ...]
    products: NDArray[np.float64]
    """Means of products of their errors, ``(members, members)``."""

    @classmethod
    def of(cls, said: dict[str, NDArray[np.float32]], truth: NDArray[np.float32]) -> Errors:
        """What members say of entries, and what is true."""
        products = np.zeros((len(said), len(said)))
        for start in range(0, len(truth), CHUNK):
            here = slice(start, start + CHUNK)
            errors = np.stack([one[here].astype(np.float64) - truth[here] for one in said.values()])
            products += errors @ errors.T  # (members, entries) (entries, members)
        return cls(tuple(said), products / max(len(truth), 1))

    def among(self, names: Sequence[str]) -> Errors:
        """Of some members alone."""
        rows = [self.names.index(name) for name in names]
        return Errors(tuple(names), self.products[np.ix_(rows, rows)])

    def best_weights(self) -> dict[str, float]:
        """Weights of a mean: members are added one at a time, with replacement; those that predict best are kept.

        A good member has to be there several times before a little of another one helps, so a step that gains nothing
        does not end it.
        """
        picked: list[int] = []
        kept, lowest = 0, math.inf
        total, within = np.zeros(len(self.names)), 0.0  # products of every member, and of themselves, with the picked
        for step in range(1, STEPS + 1):
            errors = (within + 2 * total + np.diag(self.products)) / step**2
            best = int(np.argmin(errors))
            within += 2 * total[best] + self.products[best, best]
            total += self.products[best]
            picked.append(best)
            if errors[best] < lowest * (1 - GAIN / step):
                lowest, kept = float(errors[best]), step
        picked = picked[: max(kept, 1)]
        return {self.names[one]: picked.count(one) / len(picked) for one in dict.fromkeys(picked)}

    def of_mean(self, weights: dict[str, float]) -> float:
        """Squared error of a weighted mean."""
        vector = np.array([weights.get(name, 0.0) for name in self.names])
        return float(vector @ self.products @ vector)
