"""Statistics of values, and whether 32-bit numbers can represent what a model is to learn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.errors import DataError

MAX_OFFSET = 2**24 / 1000
"""Largest |mean| / standard deviation. A 32-bit number has 24 binary digits, so that beyond this value rounding alone
is more than a thousandth of the standard deviation."""

MIN_SPREAD = 1e-15
"""Smallest standard deviation. Squares of residuals that are a ten-thousandth of it underflow in 32-bit numbers."""

CONSTANT_TOLERANCE = 4 * float(np.finfo(np.float64).eps)
"""Values that vary by less, relative to their mean, are one value with the rounding errors of 64 bits."""

_BLOCK = 1 << 20
"""Values that are converted to 64 bits at a time."""


@dataclass
class ValueSummary:
    """Running mean, sum of squares and range of values."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""
    low: float = math.inf
    high: float = -math.inf

    def update(self, values: NDArray[Any]) -> None:
        """Add values, by the parallel form of Welford's sums, which does not cancel."""
        for start in range(0, len(values), _BLOCK):
            self._update(values[start : start + _BLOCK].astype(np.float64))

    def _update(self, values: NDArray[np.float64]) -> None:
        mean = float(values.mean())
        with np.errstate(over="ignore"):
            squares = float(np.sum((values - mean) ** 2))
            self.merge(ValueSummary(len(values), mean, squares, float(values.min()), float(values.max())))

    def merge(self, other: ValueSummary) -> None:
        """Add the values of another summary, of at least one value."""
        shift, total = other.mean - self.mean, self.n + other.n
        self.squares += other.squares + shift * shift * self.n * other.n / total
        self.mean += shift * other.n / total
        self.n = total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def spread(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.squares / self.n) if self.n else 0.0

    def check_precision(self) -> None:
        """Refuse values whose differences are lost in 32 bits.

        Raises
        ------
        DataError
            If the values are far from zero compared with their spread, or their spread is tiny.
        """
        if self.spread <= CONSTANT_TOLERANCE * abs(self.mean):
            return
        if abs(self.mean) > MAX_OFFSET * self.spread:
            raise DataError(
                f"the values lie between {self.low:.17g} and {self.high:.17g}: so far from zero, 32-bit numbers hardly "
                f"tell them apart; subtract an offset such as {round_to_spread(self.mean, self.spread):.17g} from all "
                "values before, and add it to the predictions"
            )
        if self.spread < MIN_SPREAD:
            raise DataError(
                f"the values lie between {self.low:g} and {self.high:g}: so close to each other, squares of small "
                "residuals are zero in 32-bit numbers; multiply all values by a power of ten before, and divide the "
                "predictions by it"
            )


def round_to_spread(mean: float, spread: float) -> float:
    """The mean rounded to a power of ten above the spread: an offset that is easy to write."""
    unit = 10.0 ** math.ceil(math.log10(spread))
    return round(mean / unit) * unit


def check_underflow(values: NDArray[Any], small: NDArray[np.float32]) -> None:
    """Refuse a value that is not zero as it was given, ``values``, but is in 32 bits, ``small``."""
    lost = (small == 0) & (values != 0)
    if lost.any():
        row = int(np.argmax(lost))
        raise DataError(
            f"entry {row} has the value {values[row]}, which is 0 as a 32-bit number; multiply all values by a "
            "power of ten, or write 0 if that is meant"
        )
