"""``fm:K`` and ``implicit:A/B``: a factorisation machine, with implicit feedback as in SVD++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.blocks.base import Block, Kind, Piece, SolveSteps, one_rank, register, some_modes
from jointensor.models.blocks.product import FactorBlock


class SharedPairs(FactorBlock):
    """Σ_{n<m} ⟨v_n(i_n), v_m(i_m)⟩, a factorisation machine: one vector per label for all pairs it is in.

    Parameters
    ----------
    shape
        Size of every mode.
    rank
        Width of the vectors.
    implicit
        Pairs of modes (a, b): to the vector of a label u of mode a is added Σ_j y(j) / √n over the n labels j of mode
        b that occur with u in the training entries.
    """

    sums = True
    draw_name = "whole"

    def __init__(self, shape: Sequence[int], rank: int, implicit: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(shape, range(len(shape)), rank)
        self.implicit = nn.ModuleList(ImplicitFeedback(shape, a, b, rank) for a, b in implicit)

    @property
    def implicit_feedback(self) -> list[ImplicitFeedback]:
        """Tables of implicit feedback."""
        return [cast(ImplicitFeedback, one) for one in self.implicit]

    @property
    def extra_tables(self) -> tuple[Tensor, ...]:
        """The tables y of implicit feedback, ``(I_b, R)`` each."""
        return tuple(one.table.detach() for one in self.implicit_feedback)

    def whole_tables(self) -> list[Tensor]:
        """v_n of every mode with implicit feedback added, ``(I_n, R)`` each; gradients flow."""
        tables = list(torch.split(self.factors.stacked, list(self.factors.sizes)))
        for one in self.implicit_feedback:
            tables[one.a] = tables[one.a] + one()
        return tables

    def effective_tables(self) -> tuple[Tensor, ...]:
        """v_n with implicit feedback added, without gradients."""
        return tuple(table.detach() for table in self.whole_tables())

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, modes)`` → ``(batch,)``."""
        return self.values(torch.cat(self.whole_tables()) if len(self.implicit) else self.factors.stacked, indices)

    def values(self, stacked: Tensor, indices: Tensor) -> Tensor:
        """The same for given vectors ``(ΣI_n, R)``, all modes one below the other, implicit feedback included."""
        rows = stacked.index_select(0, self.factors.places(indices).flatten())
        rows = rows.view(*indices.shape, stacked.shape[1])  # (batch, modes, R)
        return 0.5 * (rows.sum(dim=1).square() - rows.square().sum(dim=1)).sum(dim=1)

    def see(self, indices: Tensor) -> None:
        """Find the labels that occur together in the training entries."""
        for one in self.implicit_feedback:
            one.see(indices)

    def solve(self, steps: SolveSteps) -> None:
        """Vectors of one mode after the other, then the tables of implicit feedback."""
        steps.pairs()
        for k in range(len(self.implicit)):
            steps.implicit_feedback(k)

    def draw(self) -> dict[str, Tensor]:
        """Vectors with implicit feedback added, so that predictions need not add it for every draw."""
        return {self.draw_name: torch.cat(self.whole_tables()).detach().clone()}

    def values_of_draw(self, draw: Mapping[str, Tensor], indices: Tensor) -> Tensor:
        """Values of the entries with the vectors of a draw."""
        return self.values(draw[self.draw_name], indices)

    def grow_from(self, old: Block) -> None:
        """Refused with implicit feedback: a new entry would change the vectors of known labels."""
        if len(self.implicit):
            raise ConfigError("a model with implicit labels cannot learn new ones; fit again")
        super().grow_from(old)

    def misfit(self) -> str:
        """Whether pairs of labels are labels of the two modes."""
        return "implicit labels" if any(not one.fits() for one in self.implicit_feedback) else ""


class ImplicitFeedback(nn.Module):
    """z(u) = Σ_{j ∈ N(u)} y(j) / √|N(u)|, with N(u) the labels of mode b that occur with label u of mode a."""

    seen_with: Tensor

    def __init__(self, shape: Sequence[int], a: int, b: int, rank: int) -> None:
        super().__init__()
        self.a, self.b, self.size = a, b, shape[a]
        self.table = nn.Parameter(torch.zeros(shape[b], rank))
        self.register_buffer("seen_with", torch.zeros(2, 0, dtype=torch.int64))

    def see(self, indices: Tensor) -> None:
        """Which pairs of labels occur in the training entries, ``(entries, modes)``."""
        pairs = torch.unique(indices[:, self.a].long() * len(self.table) + indices[:, self.b].long())
        self.seen_with = torch.stack([pairs // len(self.table), pairs % len(self.table)])  # (2, pairs)

    def weights(self) -> Tensor:
        """1 / √|N(u)| of every pair, ``(pairs,)``."""
        counts = torch.bincount(self.seen_with[0], minlength=self.size)
        return counts.index_select(0, self.seen_with[0]).to(self.table.dtype).rsqrt()

    def forward(self) -> Tensor:
        """z of every label of mode a, ``(I_a, R)``."""
        rows = self.table.index_select(0, self.seen_with[1]) * self.weights()[:, None]
        return self.table.new_zeros(self.size, self.table.shape[1]).index_add(0, self.seen_with[0], rows)

    def matrix(self) -> Tensor:
        """M with z = M y, sparse, ``(I_a, I_b)``."""
        return torch.sparse_coo_tensor(
            self.seen_with, self.weights(), (self.size, len(self.table)), is_coalesced=True, check_invariants=False
        )

    def fits(self) -> bool:
        """Whether the pairs are pairs of labels."""
        pairs = self.seen_with
        if pairs.ndim != 2 or len(pairs) != 2 or pairs.dtype != torch.int64:
            return False
        sizes = torch.tensor([[self.size], [len(self.table)]], device=pairs.device)
        return bool(((pairs >= 0) & (pairs < sizes)).all())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """The number of pairs is that of the state."""
        given = state_dict.get(f"{prefix}seen_with")
        if isinstance(given, Tensor):
            self.seen_with = self.seen_with.new_zeros(given.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _build(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    implicit = [(other.numbers[0], other.numbers[1]) for other in pieces if other.kind is IMPLICIT]
    return {"fm": SharedPairs(shape, piece.numbers[0], implicit)}


register(Kind("fm", ("fm:K",), "fm:K with K at least 1", one_rank, _build, streamable=True))
IMPLICIT = register(
    Kind(
        "implicit",
        ("implicit:A/B",),
        "implicit:A/B with two different modes",
        some_modes(2, 2),
        requires=("fm", "implicit labels add to the vectors of an fm block; write fm:K too"),
    )
)
