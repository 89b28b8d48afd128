"""Training: warm start, alternating optimisation, joint refinement."""

from jointensor.training.fit import Fit, fit
from jointensor.training.recipe import Recipe

__all__ = ["Fit", "Recipe", "fit"]
