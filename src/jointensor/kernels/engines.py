"""The engine: all hot loops in one object, chosen once by device and option.

Code that holds an :class:`Engine` calls its loops and reads its attributes; only :func:`pick_engine` looks at devices
and installed packages. Every loop has a reference in plain torch or NumPy that the compiled ones are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from jointensor.errors import ConfigError
from jointensor.kernels.rows import RowSolver, RowSystems, row_systems, solve_rows
from jointensor.kernels.terms import Terms, subtract_terms
from jointensor.registry import nearest

ENGINES = ("auto", "reference", "numba", "triton")
"""Names that ``--engine`` takes."""

REQUIRED_PACKAGES = {"numba": ("numba", "threadpoolctl"), "triton": ("triton",)}
"""Packages without which the reference engine is used."""

MIN_SHORT_WEIGHTS = 4096
"""Weights of a layer from which on products of fewer bits are faster; smaller layers spend their time elsewhere."""

Operation = Callable[..., Tensor]


@dataclass(frozen=True)
class Engine:
    """The hot loops. The defaults are the reference."""

    name: str
    """As it is written to metrics.json."""
    solve_rows: RowSolver = solve_rows
    row_systems: RowSystems = row_systems
    subtract_terms: Callable[[Terms, Tensor, Tensor], None] = subtract_terms
    operations: Mapping[str, Operation] = field(default_factory=dict)
    """Fused operations by name, for modules that have the attribute ``fuses``."""
    short_operations: Mapping[str, Operation] = field(default_factory=dict)
    """The same where products of the network may be rounded to fewer bits than 32."""
    replays_steps: bool = False
    """Whether steps of gradient descent are recorded as CUDA graphs and replayed, with Adam on the device."""
    first_use: str | None = None
    """A line for the user at the first use on a machine, where that takes longer."""

    def offered(self, *, short: bool) -> Mapping[str, Operation]:
        """The fused operations of this engine; ``short`` allows rounded products."""
        return {**self.operations, **self.short_operations} if short else self.operations

    def serves(self, model: nn.Module, *, short: bool) -> bool:
        """Whether it has a fused operation for one of the modules of a model."""
        offered = self.offered(short=short)
        return any(getattr(module, "fuses", None) in offered for module in model.modules())

    def equip(self, model: nn.Module, *, short: bool = False) -> None:
        """Give the modules of a model the fused operations of this engine."""
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
    missing = [] if fast is None else [package for package in REQUIRED_PACKAGES[fast] if find_spec(package) is None]
    if name in REQUIRED_PACKAGES and (name != fast or missing):
        where = "the CPU" if name == "numba" else "an NVIDIA GPU"
        reason = f"it runs on {where}, not on {device}" if name != fast else f"it needs {' and '.join(missing)}"
        raise ConfigError(f"engine '{name}' cannot be used here: {reason}; take auto or reference")
    if name == "reference" or fast is None or missing:
        return Engine("reference")
    return _numba() if fast == "numba" else _triton()


def _numba() -> Engine:
    from jointensor.kernels import numba_chunks, numba_rows  # noqa: PLC0415 - compiled at the first use

    return Engine(
        "numba",
        solve_rows=numba_rows.solve_rows_numba,
        row_systems=numba_rows.row_systems_numba,
        subtract_terms=numba_chunks.subtract_terms_numba,
        operations={"cp_values": numba_chunks.cp_values_numba},
        short_operations={"two_layers": linear_relu_linear_16} if multiplies_bfloat16() else {},
        first_use=numba_rows.uncompiled(),
    )


def _triton() -> Engine:
    from jointensor.kernels import (  # noqa: PLC0415 - compiled at the first use
        triton_cp,
        triton_mlp,
        triton_rows,
        triton_wide_rows,
    )

    return Engine(
        "triton",
        solve_rows=triton_rows.solve_rows_triton,
        row_systems=triton_wide_rows.row_systems_triton,
        operations={"cp_values": triton_cp.cp_values, "two_layers": triton_mlp.linear_relu_linear},
        short_operations={"two_layers": triton_mlp.linear_relu_linear_short},
        replays_steps=True,
    )


def equip_for_predictions(model: nn.Module) -> None:
    """Give the modules of a model fused operations that work on any device: a predictor can move to another one."""
    pick_engine("auto", "cpu").equip(model)


def linear_relu_linear_16(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Two linear layers with a ReLU between them, in 16 bits while training, for CPUs with instructions for it.

    ``(batch, D)`` → ``(batch, F)`` with weights ``(H, D)``, ``(H,)``, ``(F, H)``, ``(F,)``.
    Weights, sums of gradients and everything else stay in 32 bits, and predictions are made in 32 bits.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=torch.is_grad_enabled() and w1.numel() >= MIN_SHORT_WEIGHTS):
        return linear(relu(linear(x, w1, b1)), w2, b2).to(x.dtype)


@lru_cache(maxsize=1)
def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for 16 bits, as far as the system says."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
