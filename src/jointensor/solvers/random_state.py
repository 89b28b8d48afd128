"""Torch's random state as a value: a fit that goes on after an interruption draws what it would have drawn."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Torch's random state, that of the device included."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: dict[str, Tensor]) -> None:
    """Put torch's random state back."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
