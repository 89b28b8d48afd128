"""f: the nonlinear half. Any module from rows ``(batch, modes, width)`` to one number per entry."""

from jointensor.models.nonlinear.avocado import Avocado
from jointensor.models.nonlinear.base import Nonlinear, make_nonlinear, nonlinear_parts
from jointensor.models.nonlinear.costco import Costco
from jointensor.models.nonlinear.julia import Julia
from jointensor.models.nonlinear.mlp import Mlp
from jointensor.models.nonlinear.neptune import Neptune
from jointensor.models.nonlinear.neurtn import NeurTN

__all__ = ["Avocado", "Costco", "Julia", "Mlp", "Neptune", "NeurTN", "Nonlinear", "make_nonlinear", "nonlinear_parts"]
