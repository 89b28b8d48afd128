"""Ensemble selection: weights of members that predict left-out entries best together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.search.settings import SETTINGS, SearchSettings

CHUNK = 1 << 18
"""Entries whose errors are multiplied at a time; bounds memory."""


def squared_error(predicted: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    """Mean squared error in double precision: squares of large values are infinite in single."""
    return float(np.mean((predicted.astype(np.float64) - truth) ** 2))


@dataclass(frozen=True)
class ErrorProducts:
    """Mean products of members' errors: enough for the squared error of any weighted mean of theirs."""

    names: tuple[str, ...]
    products: NDArray[np.float64]
    """``(members, members)``."""

    @classmethod
    def of(cls, predictions: Mapping[str, NDArray[np.float32]], truth: NDArray[np.float32]) -> ErrorProducts:
        """From predictions for the same entries by name, and their values."""
        products = np.zeros((len(predictions), len(predictions)))
        for start in range(0, len(truth), CHUNK):
            here = slice(start, start + CHUNK)
            errors = np.stack([one[here].astype(np.float64) - truth[here] for one in predictions.values()])
            products += errors @ errors.T  # (members, entries) (entries, members)
        return cls(tuple(predictions), products / max(len(truth), 1))

    def among(self, names: Sequence[str]) -> ErrorProducts:
        """Of some members alone."""
        rows = [self.names.index(name) for name in names]
        return ErrorProducts(tuple(names), self.products[np.ix_(rows, rows)])

    def best_weights(self, settings: SearchSettings = SETTINGS) -> dict[str, float]:
        """Weights of a mean, by greedy forward selection with replacement.

        A good member has to be drawn several times before a little of another one helps, so a step that gains nothing
        does not end the selection.
        """
        picked: list[int] = []
        kept, lowest = 0, math.inf
        total, within = np.zeros(len(self.names)), 0.0  # products with the picked: of every member, of the picked
        for step in range(1, settings.selection_steps + 1):
            errors = (within + 2 * total + np.diag(self.products)) / step**2
            best = int(np.argmin(errors))
            within += 2 * total[best] + self.products[best, best]
            total += self.products[best]
            picked.append(best)
            if errors[best] < lowest * (1 - settings.min_selection_gain / step):
                lowest, kept = float(errors[best]), step
        picked = picked[: max(kept, 1)]
        return {self.names[one]: picked.count(one) / len(picked) for one in dict.fromkeys(picked)}

    def of_mean(self, weights: Mapping[str, float]) -> float:
        """Squared error of a weighted mean."""
        vector = np.array([weights.get(name, 0.0) for name in self.names])
        return float(vector @ self.products @ vector)

    def gains(self, weights: Mapping[str, float], settings: SearchSettings = SETTINGS) -> dict[str, float]:
        """Share of the squared error that each member of a weighted mean removes: 1 for the only one there is.

        Without it, the best weighted mean of all others would predict.
        """
        error, gains = self.of_mean(weights), {}
        for name in weights:
            rest = self.among([other for other in self.names if other != name])
            without = rest.of_mean(rest.best_weights(settings)) if rest.names else math.inf
            gains[name] = 1 - error / without if without else 0.0
        return gains

    def expected_error(self, n_averaged: Mapping[str, int], settings: SearchSettings = SETTINGS) -> float:
        """Squared error of the best weighted mean if members are themselves means of so many fits.

        The mean of k fits from different seeds has 1/k of the variance that comes from the seed.
        """
        weights = self.best_weights(settings)
        removed = sum(weight**2 * (1 - 1 / n_averaged[name]) for name, weight in weights.items())
        return self.of_mean(weights) * (1 - settings.seed_variance_share * removed)


def tolerated_error(lowest: float, entries: int) -> float:
    """Squared error that cannot be told from the lowest one on so many entries."""
    return lowest * (1 + 1 / math.sqrt(entries))


def within_standard_errors(differences: NDArray[np.float64], count: float = 1.0) -> bool:
    """Whether differences of squared errors, ``(entries,)``, are on average at most so many standard errors."""
    return bool(differences.mean() <= count * differences.std() / math.sqrt(len(differences)))
