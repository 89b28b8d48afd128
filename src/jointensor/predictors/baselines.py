"""Baselines by name, one at a time or all of a split at once."""

from __future__ import annotations

import numpy as np

from jointensor.data.split import Split
from jointensor.errors import ConfigError
from jointensor.predictors.base import Predictor
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.interpolation import best_interpolation
from jointensor.predictors.tables import Mean, fit_tables
from jointensor.registry import nearest

BASELINES = ("mean", "bias", "tables", "interp")
"""Every baseline; ``interp`` only where a mode is ordered."""


NO_ORDERED_MODE = "interp interpolates along an ordered mode, and there is none; see --order"


def fit_baseline(name: str, split: Split) -> Predictor:
    """The baseline called ``name``."""
    if name not in BASELINES:
        raise ConfigError(f"there is no baseline '{name}'; {nearest(name, BASELINES)}")
    if name == "tables":
        return fit_tables(split.train, split.valid)
    if name == "mean":
        return Mean(float(split.train.values.mean(dtype=np.float64)))
    bias = fit_bias(split.train, split.valid)
    if name == "bias":
        return bias
    interp = best_interpolation(split.train, split.valid, bias)
    if interp is None:
        raise ConfigError(NO_ORDERED_MODE)
    return interp


def fit_baselines(split: Split) -> dict[str, Predictor]:
    """``mean``, ``bias``, ``tables`` and, where a mode is ordered, ``interp``."""
    bias = fit_bias(split.train, split.valid)
    fitted: dict[str, Predictor] = {
        "mean": Mean(bias.mean),
        "bias": bias,
        "tables": fit_tables(split.train, split.valid),
    }
    interp = best_interpolation(split.train, split.valid, bias)
    return fitted if interp is None else fitted | {"interp": interp}
