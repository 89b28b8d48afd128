"""The contract of f, and how one is found by name.

rows ``(batch, modes, width)``  ─▶  one number per entry ``(batch,)``

Any torch module that does this is an f; :mod:`jointensor.testing` checks the whole contract.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.registry import Registry, check_options, parse_spec

nonlinear_parts = Registry("nonlinear part", "jointensor.nonlinear")
"""Every f that can be named; a package adds its own through the entry point ``jointensor.nonlinear``."""


class Nonlinear(nn.Module):
    """f: rows of the nonlinear factor matrices → one number per entry.

    A subclass takes ``n_modes`` and ``width`` and any keyword options of its own, and hands these
    options to this constructor, so that it can be built again from a run folder. It may have a
    ``head``, the linear layer to one number that ends it, before an output activation: its bias starts at
    the data's level, so that an output ReLU does not start dead, and its weights are scaled down where the
    output would vary more than the data.
    """

    total_rank: ClassVar[int] = 20
    """R + F where none is given; the paper's is 20, and 10 for NeurTN."""

    row_start: tuple[float, float] = (0.0, 0.1)
    """Mean and standard deviation of the rows at the start. An f that multiplies rows wants a mean:
    products of small numbers around zero hardly have a gradient."""

    def __init__(self, n_modes: int, width: int, **options: Any) -> None:
        super().__init__()
        self.n_modes = n_modes
        self.width = width
        self.options = options

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        raise NotImplementedError


def make_nonlinear(part: str | type[nn.Module] | nn.Module, n_modes: int, width: int) -> nn.Module:
    """f from an instance, a class, or a name with options such as ``"julia,gate=sigmoid"``.

    Parameters
    ----------
    part
        What f is. An instance is checked and returned as it is.
    n_modes, width
        N and F: f gets rows ``(batch, N, F)``.

    Raises
    ------
    ConfigError
        If there is no such f, if it cannot be built at this width, or if what it returns is not one
        finite number per entry.
    """
    if isinstance(part, nn.Module):
        check_values(part, n_modes, width)
        return part
    kind, options = find_nonlinear(part)
    try:
        made: nn.Module = kind(n_modes=n_modes, width=width, **options)
    except ConfigError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # what an f of someone else's may raise
        raise ConfigError(f"{_called(kind)} cannot be made for {n_modes} modes and width {width}: {error}") from error
    check_values(made, n_modes, width)
    return made


def find_nonlinear(part: str | type[nn.Module]) -> tuple[type[nn.Module], dict[str, Any]]:
    """The class of an f and its options, both checked."""
    name, options = parse_spec(part) if isinstance(part, str) else ("", {})
    kind: Any = nonlinear_parts.find(name) if isinstance(part, str) else part
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"a nonlinear part is a name, a torch module or a class of one, not {kind!r}")
    check_options(kind, options, f"nonlinear part '{name}'")
    return kind, options


def check_values(part: nn.Module, n_modes: int, width: int) -> None:
    """Try f on a few rows and refuse it when it does not return one finite number per entry."""
    weight = next(part.parameters(), torch.zeros(0))
    generator = torch.Generator().manual_seed(0)  # a state of its own: the user's is not touched
    was_training = part.training
    part.eval()
    try:
        for batch in (3, 1):
            rows = (0.1 * torch.randn(batch, n_modes, width, generator=generator)).to(weight.device)
            with torch.no_grad():
                values = part(rows)
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            if shape != (batch,):
                raise ConfigError(
                    f"{_called(type(part))} returned {shape} for rows {tuple(rows.shape)}; "
                    f"it must return one number per entry, ({batch},)"
                )
            if not bool(torch.isfinite(values).all()):
                raise ConfigError(f"{_called(type(part))} returned values that are not finite for rows that are")
    except ConfigError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ConfigError(
            f"{_called(type(part))} cannot take rows of {n_modes} modes and width {width}: {error}"
        ) from error
    finally:
        part.train(was_training)


def check_size(part: str, option: str, value: Any) -> int:
    """A whole number that is not negative, or an error that names part and option."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{part}: {option} is {value!r}, it must be a whole number, not negative")
    return value


def describe_nonlinear(part: nn.Module, given: object = None) -> str:
    """Text from which :func:`make_nonlinear` builds the same f again.

    ``given`` is what it was built from: a plain module does not remember its options.
    """
    if isinstance(given, str) and not hasattr(part, "options"):
        return given
    options = getattr(part, "options", {})
    return ",".join([nonlinear_parts.name_of(type(part)), *(f"{k}={v}" for k, v in options.items())])


def _called(kind: type[nn.Module]) -> str:
    return f"nonlinear part '{nonlinear_parts.name_of(kind)}'"
