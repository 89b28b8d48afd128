"""Which engine runs the hot loops: by where the tensor lives, or as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.kernels.bfloat16 import linear_relu_linear_16, multiplies_bfloat16
from jointensor.kernels.rows import RowSolver, RowSystems, row_systems, solve_rows
from jointensor.registry import nearest

ENGINES = ("auto", "reference", "numba", "triton")
"""Names that ``--engine`` takes."""


NEEDS = {"numba": ("numba", "threadpoolctl"), "triton": ("triton",)}
"""Packages without which the reference engine does the work."""


Operation = Callable[..., Tensor]


@dataclass(frozen=True)
class Engine:
    """A name for metrics.json, and the loops."""

    name: str
    solve_rows: RowSolver
    row_systems: RowSystems = row_systems
    first_use: str | None = None
    """A line for the first use on a machine, where that takes longer."""
    operations: Mapping[str, Operation] = field(default_factory=dict)
    """What modules that say what they fuse (``module.fuses``) use instead of plain torch."""
    short: Mapping[str, Operation] = field(default_factory=dict)
    """The same where products of the network may be rounded to fewer bits than 32."""

    def offered(self, *, short: bool) -> Mapping[str, Operation]:
        """The operations of this engine."""
        return {**self.operations, **self.short} if short else self.operations

    def equip(self, model: nn.Module, *, short: bool = False) -> None:
        """Give the modules of a model the operations of this engine."""
        offered = self.offered(short=short)
        for module in model.modules():
            name = getattr(module, "fuses", None)
            if isinstance(name, str):
                module.fused = offered.get(name)  # type: ignore[assignment]


def pick_engine(name: str, device: str) -> Engine:
    """The engine called ``name`` for tensors on ``device``; ``auto`` takes the fastest that works there."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine '{name}'; {nearest(name, ENGINES)}")
    fast = {"cpu": "numba", "cuda": "triton"}.get(device)
    missing = [] if fast is None else [package for package in NEEDS[fast] if find_spec(package) is None]
    if name in NEEDS and (name != fast or missing):
        where = "the CPU" if name == "numba" else "an NVIDIA GPU"
        reason = f"it runs on {where}, not on {device}" if name != fast else f"it needs {' and '.join(missing)}"
        raise ConfigError(f"engine '{name}' cannot be used here: {reason}; take auto or reference")
    if name == "reference" or fast is None or missing:
        return Engine("reference", solve_rows)
    return _numba() if fast == "numba" else _triton()


def _numba() -> Engine:
    from jointensor.kernels.numba_rows import row_systems_numba, solve_rows_numba, uncompiled  # noqa: PLC0415 - compiled where it is used

    short = {"two_layers": linear_relu_linear_16} if multiplies_bfloat16() else {}
    return Engine("numba", solve_rows_numba, row_systems_numba, first_use=uncompiled(), short=short)


def _triton() -> Engine:
    from jointensor.kernels.triton_cp import cp_values  # noqa: PLC0415 - compiled where it is used
    from jointensor.kernels.triton_mlp import linear_relu_linear, linear_relu_linear_short  # noqa: PLC0415
    from jointensor.kernels.triton_rows import solve_rows_triton  # noqa: PLC0415

    fused: dict[str, Operation] = {"cp_values": cp_values, "two_layers": linear_relu_linear}
    return Engine("triton", solve_rows_triton, operations=fused, short={"two_layers": linear_relu_linear_short})
