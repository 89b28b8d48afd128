"""The few hot loops, behind one small interface: plain torch as the reference, compiled engines where they work."""

from jointensor.kernels.engines import ENGINES, Engine, pick_engine
from jointensor.kernels.rows import ModeView, RowSolver, solve_rows

__all__ = ["ENGINES", "Engine", "ModeView", "RowSolver", "pick_engine", "solve_rows"]
