"""The blocks that g is a sum of.

What solvers need to know of a block is the same for all of them: ``tables``, ``(I_k, R)`` each, in which it is linear
one at a time; ``columns(indices)``, the row of every table that an entry looks up; and whether rows are multiplied or
summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jointensor.models.factors import Factors, multiply_modes

SHARED = 0.1
"""Share of entries that must not be alone in their combination of labels for a table to be worth having: numbers of
single entries are noise, and what else there is would be fitted to what they leave."""


class Product(nn.Module):
    """Σ_r Π_{n ∈ modes} A_n(i_n, r).

    Without modes the product is empty and the block is one number, held in ``constant``.
    """

    sums = False

    def __init__(self, shape: Sequence[int], modes: Sequence[int], rank: int) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.fuses = "cp_values" if len(self.modes) > 1 else None
        self.fused: Callable[[Tensor, Tensor], Tensor] | None = None
        """Values of rows by a compiled engine, see :class:`jointensor.kernels.Engine`."""
        self.factors = Factors([shape[n] for n in modes], rank) if modes else None
        self.constant = None if modes else nn.Parameter(torch.zeros(()))

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """A_n of every mode of the block."""
        return () if self.factors is None else self.factors.tables

    def columns(self, indices: Tensor) -> Tensor:
        """Rows of the tables, ``(batch, all modes)`` → ``(batch, modes)``."""
        if len(self.modes) == indices.shape[1]:
            return indices
        return torch.stack([indices[:, n] for n in self.modes], dim=1)

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, all modes)`` → ``(batch,)``."""
        if self.constant is not None:
            return self.constant.expand(len(indices))
        assert self.factors is not None  # one of the two is there
        indices = self.columns(indices)
        if self.fused is not None:
            return self.fused(self.factors.stacked, self.factors.places(indices))
        rows = self.factors(indices)
        return multiply_modes(rows).sum(dim=1)  # (batch, modes, rank) → (batch, rank) → (batch,)


class SharedPairs(nn.Module):
    """Σ_{n<m} ⟨v_n(i_n), v_m(i_m)⟩, a factorisation machine: one vector per label for all pairs it is in.

    Parameters
    ----------
    shape
        Size of every mode.
    rank
        Width of the vectors.
    implicit
        Pairs of modes (a, b): to the vector of a label u of mode a is added Σ_j y(j) / √n over the n labels j of mode
        b that u was seen with.
    """

    sums = True

    def __init__(self, shape: Sequence[int], rank: int, implicit: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.modes = tuple(range(len(shape)))
        self.factors = Factors(shape, rank)
        self._company = nn.ModuleList(ImplicitFeedback(shape, a, b, rank) for a, b in implicit)

    @property
    def implicit_feedback(self) -> list[ImplicitFeedback]:
        """Tables of implicit labels."""
        return [one for one in self._company if isinstance(one, ImplicitFeedback)]

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """v_n of every mode."""
        return self.factors.tables

    def columns(self, indices: Tensor) -> Tensor:
        """Rows of the tables: all of them."""
        return indices

    def whole_tables(self) -> list[Tensor]:
        """v_n of every mode with what implicit labels add to it, ``(I_n, R)`` each; gradients flow."""
        tables = list(torch.split(self.factors.stacked, list(self.factors.sizes)))
        for one in self.implicit_feedback:
            tables[one.a] = tables[one.a] + one()
        return tables

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, modes)`` → ``(batch,)``."""
        return self.values(
            torch.cat(self.whole_tables()) if len(self.implicit_feedback) else self.factors.stacked, indices
        )

    def values(self, stacked: Tensor, indices: Tensor) -> Tensor:
        """The same for vectors that are given, all modes one below the other with what implicit labels add."""
        rows = stacked.index_select(0, self.factors.places(indices).flatten())
        rows = rows.view(*indices.shape, stacked.shape[1])  # (batch, modes, R)
        return 0.5 * (rows.sum(dim=1).square() - rows.square().sum(dim=1)).sum(dim=1)

    def see(self, indices: Tensor) -> None:
        """Take note of which labels occur together in the training entries."""
        for one in self.implicit_feedback:
            one.see(indices)


class ImplicitFeedback(nn.Module):
    """z(u) = Σ_{j ∈ N(u)} y(j) / √|N(u)|: what the labels of mode b that a label of mode a was seen with say of it."""

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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(f"{prefix}seen_with")
        if isinstance(given, Tensor):
            self.seen_with = self.seen_with.new_zeros(given.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Combinations(nn.Module):
    """One number per combination of the labels of some modes that occurs in the training entries; else zero."""

    sums = False
    keys: Tensor

    def __init__(self, shape: Sequence[int], modes: Sequence[int]) -> None:
        super().__init__()
        self.modes, self.sizes = tuple(modes), [shape[n] for n in modes]
        self.effects = nn.Parameter(torch.zeros(1, 1))
        """One row per combination and a last one, always zero, for all others."""
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64))

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The effects."""
        return (self.effects.detach(),)

    def see(self, indices: Tensor) -> None:
        """Find the combinations of the training entries, ``(entries, modes)``."""
        keys, counts = torch.unique(self._keys_of(indices), return_counts=True)
        shared = int(counts[counts > 1].sum())  # entries that are not alone in their combination
        self.keys = keys if shared >= SHARED * len(indices) else keys[:0]
        self.effects = nn.Parameter(self.effects.new_zeros(len(self.keys) + 1, 1))

    def columns(self, indices: Tensor) -> Tensor:
        """Row of each entry's combination, ``(batch, modes)`` → ``(batch, 1)``."""
        if not len(self.keys):
            return indices.new_zeros(len(indices), 1)
        keys = self._keys_of(indices)
        rows = torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[rows] == keys, rows, len(self.keys))[:, None]

    def forward(self, indices: Tensor) -> Tensor:
        """Numbers of the entries, ``(batch, modes)`` → ``(batch,)``."""
        live = torch.cat([self.effects[:-1], torch.zeros_like(self.effects[-1:])])
        return live.index_select(0, self.columns(indices)[:, 0]).squeeze(1)

    def _keys_of(self, indices: Tensor) -> Tensor:
        key = torch.zeros(len(indices), dtype=torch.int64, device=indices.device)
        for n, size in zip(self.modes, self.sizes, strict=True):
            key = key * size + indices[:, n].long()
        return key

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(f"{prefix}keys")
        if isinstance(given, Tensor):
            self.keys = self.keys.new_zeros(given.shape)
            self.effects = nn.Parameter(self.effects.new_zeros(len(given) + 1, 1))
        super()._load_from_state_dict(state_dict, prefix, *args)


def countable(shape: Sequence[int], modes: Sequence[int]) -> bool:
    """Whether the combinations of some modes can be numbered."""
    return math.prod(shape[n] for n in modes) < 2**62
