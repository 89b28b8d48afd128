"""Draws of g's parameters from their posterior."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Draws(nn.Module):
    """Draws of the parameters of blocks from their posterior; the noise that comes with them."""

    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.zeros(()))
        """Variance of the values around g (and f)."""

    def __len__(self) -> int:
        return len(next((one for name, one in self.named_buffers() if name != "noise"), ()))

    def names(self) -> list[str]:
        """Blocks that there are draws of."""
        return list(dict.fromkeys(name.partition("/")[0] for name, _ in self.named_buffers() if name != "noise"))

    def keep(self, name: str, drawn: list[dict[str, Tensor]], noise: float) -> None:
        """Take the draws of a block: its parameters by name, once per draw."""
        for key in drawn[0]:
            self.register_buffer(f"{name}/{key.replace('.', '/')}", torch.stack([one[key] for one in drawn]))
        self.noise.fill_(noise)

    def of(self, name: str, k: int) -> dict[str, Tensor]:
        """The k-th draw of a block's parameters."""
        buffers = dict(self.named_buffers())
        mine = [one for one in buffers if one.startswith(f"{name}/")]
        return {one.removeprefix(f"{name}/").replace("/", "."): buffers[one][k] for one in mine}

    def forget(self) -> None:
        """Have no draws."""
        for name in [name for name, _ in self.named_buffers() if name != "noise"]:
            delattr(self, name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take whatever draws there are."""
        self.forget()
        for name, value in state_dict.items():
            if name.startswith(prefix) and name != f"{prefix}noise":
                self.register_buffer(name.removeprefix(prefix), torch.zeros_like(value, device=self.noise.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
