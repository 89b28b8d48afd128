"""What is asked of a forecaster, and what its members offer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from jointensor.errors import ConfigError

Array = NDArray[np.float64]

MAX_ROWS = 1 << 24
"""Forecasts at a time: a dozen arrays of them are held, 128 MB each."""


class Rows(NamedTuple):
    """Values that are asked for; three arrays of one shape, or of shapes that broadcast."""

    origins: NDArray[np.int64]
    """How many steps are known: those before the origin."""
    ahead: NDArray[np.int64]
    """Steps ahead; 1 is the step of the origin itself."""
    series: NDArray[np.int64]

    @property
    def targets(self) -> NDArray[np.int64]:
        """Steps that are asked for."""
        return self.origins - 1 + self.ahead

    def take(self, chosen: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Rows:
        """Some of them."""
        return Rows(self.origins[chosen], self.ahead[chosen], self.series[chosen])


class View(Protocol):
    """A member with the values that it forecasts from."""

    def at(self, rows: Rows) -> Array:
        """Forecasts from the values before the origins alone."""


def check_count(labels: int, series: int) -> None:
    """Refuse more forecasts than memory holds."""
    if labels * series > MAX_ROWS:
        raise ConfigError(
            f"{labels:,} labels of {series:,} series are {labels * series:,} forecasts, more than {MAX_ROWS:,}; give a "
            "shorter horizon"
        )


def grid(origins: NDArray[np.integer], ahead: NDArray[np.integer], series: int) -> Rows:
    """All combinations as flat arrays; the last varies fastest."""
    found = np.meshgrid(origins, ahead, np.arange(series), indexing="ij")
    return Rows(*(one.ravel().astype(np.int64) for one in found))
