"""``bias``: Σ_n b_n(i_n), one number per label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jointensor.models.blocks.base import Block, Kind, Piece, SolveSteps, no_argument, register
from jointensor.models.blocks.product import Product


class Bias(Product):
    """b_n(i_n) of one mode."""

    new_rows_are_means = False

    def __init__(self, shape: Sequence[int], mode: int) -> None:
        super().__init__(shape, (mode,), 1)

    @staticmethod
    def sum_of_blocks(blocks: Sequence[Bias], indices: Tensor) -> Tensor:
        """Σ_n b_n(i_n) of several blocks, ``(batch,)``: one lookup and one scatter for all of them."""
        tables: list[Tensor] = []
        places, start = [], 0
        for block in blocks:
            tables.append(block.factors.stacked)  # (I_n, 1)
            places.append(indices[:, block.modes[0]] + start)
            start += len(tables[-1])
        return torch.cat(tables).index_select(0, torch.cat(places)).view(len(places), -1).sum(dim=0)

    def solve(self, steps: SolveSteps) -> None:
        """A shrunk mean per label."""
        steps.numbers()


def _build(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    return {f"bias_{n}": Bias(shape, n) for n in range(len(shape))}


register(Kind("bias", ("bias",), "bias", no_argument, _build, streamable=True))
