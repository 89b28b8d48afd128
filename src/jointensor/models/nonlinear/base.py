"""The contract of f, and how one is found by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.registry import Registry, check_options, parse_spec

nonlinear_parts = Registry("nonlinear part", "jointensor.nonlinear")
"""Every f that can be named; a package adds its own through the entry point ``jointensor.nonlinear``."""


class Nonlinear(nn.Module):
    """f: rows of the nonlinear factor matrices → one number per entry.

    A subclass takes ``n_modes`` and ``width`` and any keyword options of its own, and keeps these
    options in ``self.options`` so that it can be built again from a run folder. It may have a
    ``head``, a linear layer whose bias starts at the data's level, so that an output ReLU does not
    start dead.
    """

    def __init__(self, n_modes: int, width: int, **options: Any) -> None:
        super().__init__()
        self.n_modes = n_modes
        self.width = width
        self.options = options

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        raise NotImplementedError


def make_nonlinear(part: str | type[nn.Module] | nn.Module, n_modes: int, width: int) -> nn.Module:
    """f from an instance, a class, or a name with options such as ``"julia,gate=sigmoid"``."""
    if isinstance(part, nn.Module):
        return part
    options: dict[str, Any] = {}
    if isinstance(part, str):
        name, options = parse_spec(part)
        part = nonlinear_parts.find(name)
        check_options(part, options, f"nonlinear part '{name}'")
    if not (isinstance(part, type) and issubclass(part, nn.Module)):
        raise ConfigError(f"a nonlinear part is a name, a torch module or a class of one, not {part!r}")
    return part(n_modes=n_modes, width=width, **options)


def describe_nonlinear(part: nn.Module) -> str:
    """Text from which :func:`make_nonlinear` builds the same f again."""
    options = getattr(part, "options", {})
    return ",".join([nonlinear_parts.name_of(type(part)), *(f"{k}={v}" for k, v in options.items())])
