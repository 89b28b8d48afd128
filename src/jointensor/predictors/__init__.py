"""Everything that predicts entries, behind one protocol: baselines, joint models, trees, residual models, ensembles.

Importing the package registers all of them, so that :func:`~jointensor.predictors.storage.load_predictor` finds the
class of a stored predictor.
"""

from jointensor.predictors.base import PREDICTORS, Packed, Predictor
from jointensor.predictors.baselines import BASELINES, fit_baseline, fit_baselines
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.interpolation import Interpolation
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.knn import KnnResiduals
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.roots import Squares
from jointensor.predictors.tables import Mean, Tables, fit_tables, refit_tables
from jointensor.predictors.trees import Trees, fit_trees
from jointensor.predictors.unfolding import Unfolded

__all__ = [
    "BASELINES",
    "PREDICTORS",
    "Ensemble",
    "Interpolation",
    "JointPredictor",
    "KnnResiduals",
    "Kriging",
    "Mean",
    "Member",
    "Packed",
    "Predictor",
    "Squares",
    "Tables",
    "Trees",
    "Unfolded",
    "fit_baseline",
    "fit_baselines",
    "fit_bias",
    "fit_tables",
    "fit_trees",
    "refit_tables",
]
