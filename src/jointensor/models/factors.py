"""Factor matrices: the seam between indices and everything to the right of it.

Left of the seam live labels and indices; right of it only rows ``(batch, modes, width)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn


def grown_table(table: Tensor, size: int, *, centre: bool) -> Tensor:
    """A table ``(I, R)`` with more rows: the mean of the known ones, or zero."""
    more = table.new_zeros(size - len(table), table.shape[1])
    return torch.cat([table, more + table.mean(dim=0) if centre and len(table) else more])


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

    @torch.no_grad()
    def resize(self, width: int) -> None:
        """Give all tables another width: columns that there were are kept, further ones are zero."""
        kept = self.stacked[:, :width].detach()  # (rows, at most width)
        self.width = width
        self.stacked = nn.Parameter(nn.functional.pad(kept, (0, width - kept.shape[1])))

    @torch.no_grad()
    def grow_from(self, old: Factors, *, centre: bool) -> None:
        """Take the rows of tables with fewer labels; those of new labels are the mean of the known ones, or zero."""
        tables = zip(self.tables, old.tables, strict=True)
        for table, known in tables:
            table.copy_(grown_table(known.cpu(), len(table), centre=centre))
