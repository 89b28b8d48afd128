"""``pairs:K``: Σ_{n<m} Σ_k P_nm(i_n, k) Q_nm(i_m, k), with tables of its own for every pair of modes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from jointensor.models.blocks.base import Block, Kind, Piece, one_rank, register
from jointensor.models.blocks.product import Product


def _build(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    pairs = combinations(range(len(shape)), 2)
    return {f"pairs_{n}_{m}": Product(shape, (n, m), piece.numbers[0]) for n, m in pairs}


register(Kind("pairs", ("pairs:K",), "pairs:K with K at least 1", one_rank, _build, streamable=True))
