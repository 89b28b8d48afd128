"""Failure detection: the ways in which a start ends before its training does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

CONSTANT_TOLERANCE = 1e-6
"""Predictions whose standard deviation is less than this share of that of the values are constant."""

MAX_CONSTANT_EPOCHS = 3
"""Epochs of constant predictions in a row after which a start is dead."""


class DivergedError(ArithmeticError):
    """A loss stopped being finite; the fit ends with the outcome ``diverged``."""


class DeadError(ArithmeticError):
    """Predictions stopped varying; the fit ends with the outcome ``dead``."""


class HopelessError(ArithmeticError):
    """Still no better than predicting zero; worth a new start while some are left."""


class BudgetError(Exception):
    """The time is up; the fit ends with the outcome ``budget`` and the best state so far."""


class StoppedError(Exception):
    """Someone asked to stop; the state was written, and the fit ends with the best state so far."""


class Validation(NamedTuple):
    """Figures of the validation entries after an epoch."""

    loss: float
    rfe: float
    spread: float
    """Standard deviation of the predictions."""
    value_spread: float

    @property
    def constant(self) -> bool:
        """Whether the predictions do not vary, though the values do."""
        return self.spread <= CONSTANT_TOLERANCE * self.value_spread and self.value_spread > 0


@dataclass
class FailureDetector:
    """Detects early that a start has failed, so that a new one can be made.

    A constant prediction is an output that died: its gradients are zero and it does not come back.
    An RFE that has not been below 1 after ``epochs`` epochs is given up, unless ``epochs`` is 0.
    """

    epochs: int
    """Epochs after which an RFE of 1 or more is a failure; 0: never."""
    seen: int = 0
    constant: int = 0
    lowest: float = math.inf

    def report(self, validation: Validation) -> None:
        """Raise when the start has failed."""
        self.seen += 1
        self.constant = self.constant + 1 if validation.constant else 0
        self.lowest = min(self.lowest, validation.rfe)
        if self.constant >= MAX_CONSTANT_EPOCHS:
            raise DeadError
        if self.epochs and self.seen >= self.epochs and self.lowest >= 1:
            raise HopelessError
