"""Which engine runs the hot loops: by where the tensor lives, or as it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from jointensor.errors import ConfigError
from jointensor.kernels.rows import RowSolver, solve_rows
from jointensor.registry import nearest

ENGINES = ("auto", "reference", "numba")
"""Names that ``--engine`` takes."""


NEEDS = ("numba", "threadpoolctl")
"""Packages without which the reference engine does the work."""


@dataclass(frozen=True)
class Engine:
    """A name for metrics.json, and the loops."""

    name: str
    solve_rows: RowSolver


def pick_engine(name: str, device: str) -> Engine:
    """The engine called ``name`` for tensors on ``device``; ``auto`` takes the fastest that works there."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine '{name}'; {nearest(name, ENGINES)}")
    compiled = device == "cpu" and all(find_spec(package) is not None for package in NEEDS)
    if name == "numba" and not compiled:
        reason = f"it needs {' and '.join(NEEDS)}" if device == "cpu" else f"it runs on the CPU, not on {device}"
        raise ConfigError(f"engine 'numba' cannot be used here: {reason}; take auto or reference")
    if name == "reference" or not compiled:
        return Engine("reference", solve_rows)
    from jointensor.kernels.numba_rows import solve_rows_numba  # noqa: PLC0415 - compiled where it is used

    return Engine("numba", solve_rows_numba)
