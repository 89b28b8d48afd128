"""Random numbers of one fit: generators of its own, so that fits in several threads do not disturb each other.

Torch's global random state is neither read nor changed, except by code that cannot be given a generator:
``reset_parameters`` of torch's layers, dropout, and draws that several processes share. Such code runs in
:meth:`Generators.as_global`, which lends the state of the fit to torch's global generators under a lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from jointensor.threads import PROCESS_STATE

RandomState = dict[str, Tensor]
"""State of every generator, by the type of its device."""


class Generators:
    """A generator on the CPU, and one on the device of the fit where that is another.

    Parameters
    ----------
    device
        Where entries and model are.
    *seed
        Numbers that the first state is made of.
    """

    def __init__(self, device: torch.device, *seed: int) -> None:
        self.device = device
        start = int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])
        kinds = {"cpu": torch.device("cpu"), device.type: device}
        self.by_kind = {kind: torch.Generator(one).manual_seed(start) for kind, one in kinds.items()}

    @property
    def cpu(self) -> torch.Generator:
        """For tensors on the CPU."""
        return self.by_kind["cpu"]

    @property
    def local(self) -> torch.Generator:
        """For tensors on the device."""
        return self.by_kind[self.device.type]

    def state(self) -> RandomState:
        """A copy of the state."""
        return {kind: generator.get_state() for kind, generator in self.by_kind.items()}

    def set_state(self, state: RandomState) -> None:
        """Continue from a state."""
        for kind, generator in self.by_kind.items():
            generator.set_state(state[kind].cpu())

    def of(self, tensor: Tensor) -> torch.Generator:
        """For tensors that are where this one is."""
        return self.by_kind[tensor.device.type]

    @contextmanager
    def forked(self) -> Iterator[None]:
        """Random numbers that are drawn in here are not missing afterwards."""
        before = self.state()
        try:
            yield
        finally:
            self.set_state(before)

    @contextmanager
    def as_global(self) -> Iterator[None]:
        """Let torch's global generators continue this state; theirs is put back at the end."""
        own, shared = self.by_kind, _global_generators(self.device)
        if own == shared:  # entered already
            yield
            return
        with PROCESS_STATE:
            before = {kind: generator.get_state() for kind, generator in shared.items()}
            for kind, generator in shared.items():
                generator.set_state(own[kind].get_state())
            self.by_kind = shared
            try:
                yield
            finally:
                self.by_kind = own
                for kind, generator in shared.items():
                    own[kind].set_state(generator.get_state())
                    generator.set_state(before[kind])


def normal_like(tensor: Tensor, generators: Generators | None) -> Tensor:
    """Draws of the standard normal distribution, of the shape of a tensor; from torch's state without generators.

    >>> normal_like(torch.ones(2, 3), Generators(torch.device("cpu"), 0)).shape
    torch.Size([2, 3])
    """
    return torch.empty_like(tensor).normal_(generator=None if generators is None else generators.of(tensor))


def _global_generators(device: torch.device) -> dict[str, torch.Generator]:
    if device.type != "cuda":
        return {"cpu": torch.default_generator}
    index = torch.cuda.current_device() if device.index is None else device.index
    return {"cpu": torch.default_generator, "cuda": torch.cuda.default_generators[index]}


def seed_of(state: RandomState) -> int:
    """A number made of a state, the same in all processes that have it."""
    return int.from_bytes(hashlib.sha256(state["cpu"].numpy().tobytes()).digest()[:8], "little")


QUIET_MODULES = tuple(
    f"torch.nn.modules.{name}" for name in ("activation", "batchnorm", "container", "linear", "normalization", "sparse")
)
"""Where torch has modules that draw nothing in a forward pass, :data:`DRAWING` aside."""

DRAWING = (nn.RReLU, nn.MultiheadAttention)


def may_draw(model: nn.Module) -> bool:
    """Whether a forward pass in training mode may draw random numbers, as dropout does.

    Modules of this package draw nothing themselves; those of others, unless torch's are known better, might.
    """
    return any(not _is_quiet(module) for module in model.modules())


def _is_quiet(module: nn.Module) -> bool:
    home = type(module).__module__
    if home == "torch.nn.modules.dropout":
        return float(getattr(module, "p", 1.0)) == 0.0
    return home.startswith(("jointensor.", *QUIET_MODULES)) and not isinstance(module, DRAWING)
