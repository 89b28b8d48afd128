"""Student's intervals, by which methods are compared over splits, seeds or tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

from scipy.stats import t as student

LEVEL = 0.95
"""Of all intervals."""


def half_width(differences: Sequence[float]) -> float:
    """Half the width of the interval for a mean; infinite for one difference."""
    if len(differences) < 2:
        return math.inf
    return standard_errors(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))


def standard_errors(freedom: float) -> float:
    """Half the width of an interval in standard errors, by degrees of freedom."""
    return float(student.ppf((1 + LEVEL) / 2, freedom))
