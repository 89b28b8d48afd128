"""When to stop: small state machines over floats. ``report`` a figure, get whether to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class RelativeChange:
    """Stop when two adjacent figures differ by less than ``tolerance`` of the earlier one.

    The paper's rule. It is not patience: a figure that keeps getting worse never stops it.

    >>> rule = RelativeChange(0.01)
    >>> [rule.report(x) for x in (1.0, 0.9, 0.8999)]
    [False, False, True]
    """

    tolerance: float
    last: float = math.nan

    def report(self, figure: float) -> bool:
        """Whether to stop after this figure."""
        last, self.last = self.last, figure
        return abs(figure - last) < self.tolerance * abs(last)


@dataclass
class Patience:
    """Stop after ``epochs`` figures in a row that are no better than the best.

    >>> rule = Patience(2)
    >>> [rule.report(x) for x in (1.0, 0.9, 0.95, 0.9)]
    [False, False, False, True]
    """

    epochs: int
    min_gain: float = 0.0
    """Share of the best by which a figure must be lower to count as better."""
    best: float = math.inf
    waited: int = 0

    def report(self, figure: float) -> bool:
        """Whether to stop after this figure."""
        if figure < self.best - self.min_gain * abs(self.best) or not math.isfinite(self.best):
            self.best, self.waited = figure, 0
        else:
            self.waited += 1
        return self.waited >= self.epochs


@dataclass
class Either:
    """Stop when one of several rules says so."""

    rules: tuple[RelativeChange | Patience, ...]

    def report(self, figure: float) -> bool:
        """Whether to stop after this figure; every rule sees it."""
        return any([rule.report(figure) for rule in self.rules])  # noqa: C419 - a list, so that every rule is asked
