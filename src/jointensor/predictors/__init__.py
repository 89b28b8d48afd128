"""What a careful analyst tries first. Every report prints these beside the models.

Real tensors exist where each of them beats every factor model, so a model that does not beat them
has no business being used there.
"""

from jointensor.predictors.baselines import BASELINES, Baseline, fit_baseline, fit_baselines
from jointensor.predictors.interpolation import Interpolation
from jointensor.predictors.tables import Mean, Tables, fit_bias, fit_tables, refit_tables
from jointensor.predictors.trees import Trees, fit_trees

__all__ = [
    "BASELINES",
    "Baseline",
    "Interpolation",
    "Mean",
    "Tables",
    "Trees",
    "fit_baseline",
    "fit_baselines",
    "fit_bias",
    "fit_tables",
    "fit_trees",
    "refit_tables",
]
