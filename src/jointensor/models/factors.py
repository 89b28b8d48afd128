"""Factor matrices: the seam between indices and everything to the right of it.

Left of the seam live labels and indices; right of it only rows ``(batch, modes, width)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Factors(nn.Module):
    """One table per mode, ``(I_n, width)``: A_n for the multilinear half, B_n for the nonlinear one."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.width = width
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(size, width)) for size in sizes)

    def forward(self, indices: Tensor) -> Tensor:
        """Rows of the entries: ``(batch, modes)`` → ``(batch, modes, width)``."""
        # index_select: its backward is far cheaper than that of nn.Embedding or fancy indexing
        rows = [table.index_select(0, indices[:, n]) for n, table in enumerate(self.tables)]  # N × (batch, width)
        return torch.stack(rows, dim=1)
