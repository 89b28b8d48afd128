"""How a start can end before its training does, and how that is seen early."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

CONSTANT = 1e-6
"""Predictions that spread less than this share of the values' spread are constant."""

DEAD_AFTER = 3
"""Epochs of constant predictions in a row before a start is called dead."""


class DivergedError(ArithmeticError):
    """A loss stopped being finite; the fit ends with the outcome ``diverged``."""


class DeadError(ArithmeticError):
    """Predictions stopped varying; the fit ends with the outcome ``dead``."""


class HopelessError(ArithmeticError):
    """Still no better than predicting zero; worth a new start while some are left."""


class BudgetError(Exception):
    """The time is up; the fit ends with the outcome ``budget`` and the best state so far."""


class Checked(NamedTuple):
    """What one look at the validation entries says."""

    loss: float
    rfe: float
    spread: float
    """Standard deviation of the predictions."""
    value_spread: float

    @property
    def constant(self) -> bool:
        """Whether the predictions do not vary, though the values do."""
        return self.spread <= CONSTANT * self.value_spread and self.value_spread > 0


@dataclass
class Probation:
    """Sees early that a start is lost, so that a new one can be made.

    A constant prediction is an output that died: its gradients are zero and it does not come back.
    An RFE that has not been below 1 after ``epochs`` epochs is given up, unless ``epochs`` is 0.
    """

    epochs: int
    seen: int = 0
    constant: int = 0
    lowest: float = math.inf

    def report(self, checked: Checked) -> None:
        """Raise when the start is lost."""
        self.seen += 1
        self.constant = self.constant + 1 if checked.constant else 0
        self.lowest = min(self.lowest, checked.rfe)
        if self.constant >= DEAD_AFTER:
            raise DeadError
        if self.epochs and self.seen >= self.epochs and self.lowest >= 1:
            raise HopelessError
