"""Hot loops behind one :class:`Engine`: a reference in plain torch and NumPy, and compiled loops."""

from jointensor.kernels.engines import ENGINES, Engine, pick_engine
from jointensor.kernels.rows import ModeView, RowEntries, solve_rows

__all__ = ["ENGINES", "Engine", "ModeView", "RowEntries", "pick_engine", "solve_rows"]
