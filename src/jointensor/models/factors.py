"""Factor matrices: the seam between indices and everything to the right of it.

Left of the seam live labels and indices; right of it only rows ``(batch, modes, width)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn


class Factors(nn.Module):
    """One table per mode, ``(I_n, width)``: A_n for the multilinear half, B_n for the nonlinear one.

    The tables lie one below the other in a single parameter, so that the rows of an entry are one lookup,
    and their gradient one scatter, whatever the number of modes.
    """

    offsets: Tensor

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes, self.width = tuple(sizes), width
        self.stacked = nn.Parameter(torch.zeros(sum(sizes), width))
        starts = [0, *accumulate(self.sizes)][:-1]
        self.register_buffer("offsets", torch.tensor(starts, dtype=torch.int64), persistent=False)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """A_n or B_n, ``(I_n, width)`` each: views without gradients; writing to them writes to the model."""
        return tuple(torch.split(self.stacked.detach(), list(self.sizes)))

    def places(self, indices: Tensor) -> Tensor:
        """Where the rows of entries stand in ``stacked``, ``(batch, modes)`` → the same."""
        return indices + self.offsets.to(indices.dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """Rows of the entries: ``(batch, modes)`` → ``(batch, modes, width)``."""
        # index_select: its backward is far cheaper than that of nn.Embedding or fancy indexing
        rows = self.stacked.index_select(0, self.places(indices).flatten())
        return rows.view(*indices.shape, self.width)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Also take weights that were stored as one tensor per mode, as earlier versions did."""
        names = [f"{prefix}tables.{n}" for n in range(len(self.sizes))]
        if all(name in state_dict for name in names):
            state_dict[f"{prefix}stacked"] = torch.cat([state_dict.pop(name) for name in names])
        super()._load_from_state_dict(state_dict, prefix, *args)


def multiply_modes(rows: Tensor) -> Tensor:
    """Elementwise product of the rows of all modes, ``(batch, modes, width)`` → ``(batch, width)``.

    One after the other: the gradient of ``prod`` looks for zeros, and a GPU has to wait for the answer.
    """
    first, *others = rows.unbind(dim=1)
    for other in others:
        first = first * other
    return first
