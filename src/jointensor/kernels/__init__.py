"""Hot loops behind one :class:`Engine`: a reference in plain torch and NumPy, and compiled loops."""

from jointensor.kernels.engines import ENGINES, Engine, equip_for_predictions, pick_engine
from jointensor.kernels.rows import ModeView, RowEntries, solve_rows

__all__ = ["ENGINES", "Engine", "ModeView", "RowEntries", "equip_for_predictions", "pick_engine", "solve_rows"]
