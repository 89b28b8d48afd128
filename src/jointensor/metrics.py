"""RMSE, MAE and the paper's relative fitting error, as functions and as running sums.

The paper writes RFE in the text and RSE in its tables for ``‖x̂ − x‖ / ‖x‖`` over the entries asked
for. It is not centred, so predicting zero everywhere scores exactly 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jointensor.errors import DataError


@dataclass
class Metrics:
    """Sums over entries seen so far; feed it batches, then read it.

    Examples
    --------
    >>> seen = Metrics()
    >>> seen.update([1.0, 2.0], [1.0, 4.0])
    >>> seen.update([3.0], [3.0])
    >>> round(seen.rmse, 4), round(seen.mae, 4), round(seen.rfe, 4), seen.n
    (1.1547, 0.6667, 0.3922, 3)
    """

    squared: float = 0.0
    absolute: float = 0.0
    target: float = 0.0
    n: int = 0

    def update(self, predicted: ArrayLike, observed: ArrayLike) -> None:
        """Add a batch."""
        predicted, observed = np.asarray(predicted, np.float64), np.asarray(observed, np.float64)
        if predicted.shape != observed.shape:
            raise DataError(f"{predicted.shape} predictions for {observed.shape} observations")
        error = predicted - observed
        self.squared += float(np.sum(error**2))
        self.absolute += float(np.sum(np.abs(error)))
        self.target += float(np.sum(observed**2))
        self.n += error.size

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return math.sqrt(self.squared / self.n) if self.n else math.nan

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self.absolute / self.n if self.n else math.nan

    @property
    def rfe(self) -> float:
        """Relative fitting error ‖x̂ − x‖ / ‖x‖; infinite where all observations are zero and one is missed."""
        if self.target > 0:
            return math.sqrt(self.squared / self.target)
        return (math.inf if self.squared > 0 else 0.0) if self.n else math.nan

    def to_dict(self) -> dict[str, float | int | None]:
        """Figures as finite numbers or ``None``, as run folders keep them."""
        figures = {"rmse": self.rmse, "mae": self.mae, "rfe": self.rfe}
        return {k: (v if math.isfinite(v) else None) for k, v in figures.items()} | {"n": self.n}


def measure(predicted: ArrayLike, observed: ArrayLike) -> Metrics:
    """All figures of one batch."""
    metrics = Metrics()
    metrics.update(predicted, observed)
    return metrics


def rmse(predicted: ArrayLike, observed: ArrayLike) -> float:
    """Root of the mean squared error.

    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.4142135623730951
    """
    return measure(predicted, observed).rmse


def mae(predicted: ArrayLike, observed: ArrayLike) -> float:
    """Mean absolute error.

    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    return measure(predicted, observed).mae


def rfe(predicted: ArrayLike, observed: ArrayLike) -> float:
    """Relative fitting error ``‖x̂ − x‖ / ‖x‖``, as the paper defines it: not centred.

    >>> rfe([0.0, 0.0], [3.0, 4.0])
    1.0
    """
    return measure(predicted, observed).rfe
