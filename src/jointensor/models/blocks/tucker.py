"""``tucker:K``: Σ_{k_1 … k_N} W(k_1, …, k_N) Π_n A_n(i_n, k_n), a core W and one factor matrix per mode.

Done naively, an entry costs Π_n K_n multiplications: 160,000 for four modes of rank 20. Here the core is contracted
with one mode after the other, short modes first: for all combinations of labels that there can be, while these are not
many more than the entries of the batch (once per hour, once per hour and day, and so on), then for each entry by
itself. An entry then costs a small matrix between its two longest modes, 400 multiplications in the example. All of
this is decided by shapes alone: a GPU never has to wait for the host to look at labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.blocks.base import Block, Kind, Piece, register, some_ranks
from jointensor.models.blocks.product import init_around
from jointensor.models.factors import grown_table

MAX_CORE = 10_000_000
"""Largest core that is built, in numbers."""

MAX_CONTRACTION = 1 << 28
"""Most numbers that one contraction may take; a gibibyte."""

OFF_DIAGONAL = 0.1
"""Standard deviation of the core off its diagonal at the start, in 1/√(numbers of the core); the diagonal is 1, as in
CP."""


class Tucker(Block):
    """Core W ``(K_1, …, K_N)`` and factor matrices A_n ``(I_n, K_n)``.

    With D_n the smaller of the batch and of the label combinations of the n shortest modes, a forward pass costs about
    ``Σ_n D_n · K_n ⋯ K_N`` multiplications.

    Parameters
    ----------
    shape
        Size of every mode.
    ranks
        K_n: one number for all modes (no mode gets more than it has labels), or one per mode.
    """

    solvable = False
    level_order = 2

    def __init__(self, shape: Sequence[int], ranks: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.modes = tuple(range(len(self.shape)))
        self.ranks = _ranks_of(self.shape, ranks)
        self.factors = nn.ParameterList(
            nn.Parameter(torch.zeros(size, rank)) for size, rank in zip(self.shape, self.ranks, strict=True)
        )
        self.core = nn.Parameter(torch.zeros(self.ranks))
        self.order = sorted(range(len(self.shape)), key=lambda n: self.shape[n])  # short modes first

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """A_n of every mode, ``(I_n, K_n)``."""
        return tuple(table.detach() for table in self.factors)

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, modes)`` → ``(batch,)``."""
        partial = self.core.permute(self.order).unsqueeze(0)  # partly contracted core, (combinations, K, …, K)
        which = torch.zeros_like(indices[:, 0], dtype=torch.int64)  # the combination of each entry, (batch,)
        for n in self.order:
            partial, which = contract(partial, which, self.factors[n], indices[:, n])
        return partial[which]

    @torch.no_grad()
    def init_level(self, level: float, spread: float | None) -> float:
        """Near a CP around the level, ones on the core's diagonal; or a normal core that makes values of size one."""
        init_around(self.tables, min(self.ranks), level, spread)
        scale = math.prod(self.ranks) ** -0.5
        nn.init.normal_(self.core, 0.0, scale if spread is None else OFF_DIAGONAL * scale)
        if spread is not None:
            diagonal = torch.arange(min(self.ranks))
            self.core[(diagonal,) * len(self.ranks)] = 1.0
        return 0.0

    @torch.no_grad()
    def grow_from(self, old: Block) -> None:
        """Rows of new labels are the mean of the known ones; ranks that a larger mode adds have no weight."""
        before = cast(Tucker, old)
        for table, known in zip(self.tables, before.tables, strict=True):
            table.zero_()
            table[:, : known.shape[1]] = grown_table(known.cpu(), len(table), centre=True)
        self.core.zero_()
        self.core[tuple(slice(rank) for rank in before.ranks)] = before.core.detach().cpu()


def contract(partial: Tensor, which: Tensor, table: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Contract one more mode of the core; returns the contracted cores, and which of them is each entry's.

    ``partial (combinations, K, …)``, ``table (I, K)``, ``which`` and ``labels (batch,)``.
    """
    batch, pairs, (rank, *rest) = len(labels), len(partial) * len(table), partial.shape[1:]
    size = math.prod(rest)  # of the contracted core
    flat = partial.reshape(len(partial), rank, size)
    if pairs <= 2 * batch and pairs * size <= MAX_CONTRACTION:  # all that labels can form
        grid = torch.matmul(table, flat)  # (combinations, I, size)
        return grid.reshape(pairs, *rest), which * len(table) + labels
    rows = table.index_select(0, labels)  # (batch, K)
    if len(partial) == 1:
        made = rows @ flat[0]  # (batch, size)
    else:  # every entry for itself, as many at a time as there is room for
        some = max(MAX_CONTRACTION // (rank * size), 1)
        parts = zip(torch.split(rows.unsqueeze(1), some), torch.split(which, some), strict=True)
        made = torch.cat([torch.bmm(row, flat.index_select(0, core)).squeeze(1) for row, core in parts])
    return made.reshape(batch, *rest), torch.arange(batch, device=labels.device)


def check_count(ranks: Sequence[int], n_modes: int) -> None:
    """Refuse a number of ranks that is neither one nor that of the modes."""
    if len(ranks) not in (1, n_modes):
        raise ConfigError(
            f"tucker:{'x'.join(map(str, ranks))} has {len(ranks)} ranks, the tensor {n_modes} modes; give one rank, "
            "or one per mode"
        )


def _ranks_of(shape: tuple[int, ...], ranks: Sequence[int]) -> tuple[int, ...]:
    check_count(ranks, len(shape))
    if len(ranks) == 1:
        made = tuple(min(ranks[0], size) for size in shape)
    else:
        made = tuple(ranks)
        for n, (rank, size) in enumerate(zip(made, shape, strict=True)):
            if rank > size:
                raise ConfigError(f"tucker: rank {rank} of mode {n + 1} is more than its {size} labels")
    if math.prod(made) > MAX_CORE:
        raise ConfigError(
            f"tucker: a core of {' x '.join(map(str, made))} has {math.prod(made):,} numbers, more than {MAX_CORE:,}; "
            "give lower ranks"
        )
    return made


def _build(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    return {"tucker": Tucker(shape, piece.numbers)}


register(
    Kind(
        "tucker",
        ("tucker:K",),
        "tucker:K, or tucker:K1xK2x… with a rank per mode, each at least 1",
        some_ranks,
        _build,
        check_ranks=check_count,
    )
)
