"""What training works on: entries on the device, and the half that is fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jointensor.data.tensor import SparseTensor

Half = Callable[[Tensor], Tensor]
"""Something from indices ``(batch, modes)`` to scores ``(batch,)``: g, f, or their sum."""


@dataclass(frozen=True)
class Entries:
    """Observed entries as tensors on the device."""

    indices: Tensor  # (entries, modes)
    values: Tensor  # (entries,)

    @classmethod
    def of(cls, tensor: SparseTensor, device: torch.device) -> Entries:
        """Entries of a sparse tensor, copied to the device once."""
        # a CPU looks rows up several times as fast by 64 bits, a GPU saves memory
        width = torch.int64 if device.type == "cpu" else torch.int32
        return cls(
            torch.as_tensor(np.array(tensor.indices), dtype=width, device=device),
            torch.as_tensor(np.array(tensor.values), device=device),
        )

    def by_last_mode(self) -> Entries:
        """The same entries in the order of their labels in the last mode, which exact sweeps read fastest."""
        order = torch.argsort(self.indices[:, -1], stable=True)
        return Entries(self.indices[order], self.values[order])

    def __len__(self) -> int:
        return len(self.values)


@dataclass
class Fixed:
    """Scores of the half that is not being trained: constants, evaluated once per turn."""

    train: Tensor | float = 0.0
    valid: Tensor | float = 0.0
