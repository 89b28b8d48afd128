"""``cp:R``: Σ_r Π_n A_n(i_n, r) over all modes, g of eq. (2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jointensor.models.blocks.base import Block, Kind, Piece, one_rank, register
from jointensor.models.blocks.product import Product, init_around


class Cp(Product):
    """R components over all modes."""

    level_order = 1

    def __init__(self, shape: Sequence[int], rank: int) -> None:
        super().__init__(shape, range(len(shape)), rank)

    @torch.no_grad()
    def init(self, spread: float | None) -> None:
        """Nothing is drawn yet: the scale of the factors depends on the level."""
        self.factors.stacked.zero_()

    def init_level(self, level: float, spread: float | None) -> float:
        """Random components whose sum lies around the level."""
        init_around(self.tables, self.factors.width, level, spread)
        return 0.0


def _build(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    return {"cp": Cp(shape, piece.numbers[0])}


register(Kind("cp", ("cp:R",), "cp:R with R at least 1", one_rank, _build, streamable=True))
