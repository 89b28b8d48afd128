"""f: the nonlinear half. Any module from rows ``(batch, modes, width)`` to one number per entry."""

from jointensor.models.nonlinear.base import Nonlinear, make_nonlinear, nonlinear_parts
from jointensor.models.nonlinear.julia import Julia

__all__ = ["Julia", "Nonlinear", "make_nonlinear", "nonlinear_parts"]
