"""All baselines of a split at once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jointensor.baselines.interp import best_interpolation
from jointensor.baselines.tables import Mean, fit_bias, fit_tables
from jointensor.data.split import Split


class Baseline(Protocol):
    """Anything that predicts entries from their indices; an index of -1 is a label never seen."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """One number per entry."""


def fit_baselines(split: Split) -> dict[str, Baseline]:
    """``mean``, ``bias``, ``tables`` and, where a mode is ordered, ``interp``."""
    bias = fit_bias(split.train, split.valid)
    fitted: dict[str, Baseline] = {
        "mean": Mean(bias.mean),
        "bias": bias,
        "tables": fit_tables(split.train, split.valid),
    }
    interp = best_interpolation(split.train, split.valid, bias)
    return fitted if interp is None else fitted | {"interp": interp}
