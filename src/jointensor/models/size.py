"""Models that are larger than memory are refused before anything is allocated for them.

Linux hands out memory that it does not have and ends the process when it is used, so a failed allocation is not
something to wait for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jointensor.errors import ConfigError

FACTORIES = (torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn)
"""Functions by which blocks and networks make tensors."""

NUMBER = 4
"""Bytes of a parameter."""

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container has."""


def total_memory() -> float:
    """Bytes of memory that this process could have at most; infinite where the system does not say."""
    try:
        physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):  # not POSIX
        return math.inf
    try:
        allowed = CGROUP.read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, float(allowed)) if allowed.isdecimal() else physical


def check_memory(numbers: int, what: str) -> None:
    """Refuse ``what`` if so many numbers of 32 bits are more than memory holds."""
    memory = total_memory()
    if NUMBER * numbers > memory:
        raise ConfigError(
            f"{what} needs at least {NUMBER * numbers / 1e9:,.1f} GB of memory, and there are {memory / 1e9:,.1f} GB; "
            "give fewer components"
        )


class CountAllocations(TorchFunctionMode):
    """Calls ``check`` with how many numbers a new tensor will have, before torch makes it."""

    def __init__(self, check: Callable[[int], None]) -> None:
        super().__init__()
        self.check = check

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at a call of torch."""
        if func in FACTORIES:
            given = args[0] if args and isinstance(args[0], Sequence) else args or (kwargs or {}).get("size", ())
            self.check(math.prod(length for length in given if isinstance(length, int)))
        return func(*args, **(kwargs or {}))


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Make a model that fits into memory, or raise a :class:`ConfigError` that names ``what``."""
    total = 0

    def check(numbers: int) -> None:
        nonlocal total
        total += numbers
        check_memory(total, what)

    with CountAllocations(check):
        yield


def describe_model(shape: Sequence[int], rank: tuple[int, int]) -> str:
    """A model that is about to be made, by what the user gave: ``rank 4/16 of a 100 x 80 x 60 tensor``."""
    return f"rank {rank[0]}/{rank[1]} of a {' x '.join(map(str, shape))} tensor"
