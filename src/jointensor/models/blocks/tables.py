"""``tables`` and ``tables:A/B``: one number per combination of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor, nn

from jointensor.models.blocks.base import (
    Argument,
    Block,
    FindMode,
    Kind,
    Piece,
    SolveSteps,
    no_argument,
    register,
    some_modes,
)
from jointensor.models.blocks.growth import NewEntries

MIN_SHARED = 0.1
"""Share of entries that must share their combination of labels with another one for a table to have any numbers:
numbers of single entries are their noise, and would leave nothing to the other blocks."""

MAX_KEYS = 2**62
"""Combinations that can be numbered in 64 bits."""

MAX_MODES = 99


class Combinations(Block):
    """One number per combination of the labels of some modes that occurs in the training entries; else zero."""

    memorises = True
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

    @property
    def table_modes(self) -> tuple[int, ...]:
        """None: rows are combinations."""
        return ()

    @property
    def row_key(self) -> tuple[int, ...]:
        """Combinations of these modes; other blocks over the same modes have a row per label."""
        return (-1, *self.modes)

    def see(self, indices: Tensor) -> None:
        """Find the combinations of the training entries, ``(entries, modes)``."""
        keys, counts = torch.unique(self.keys_of(indices), return_counts=True)
        shared = int(counts[counts > 1].sum())
        self.keys = keys if shared >= MIN_SHARED * len(indices) else keys[:0]
        self.effects = nn.Parameter(self.effects.new_zeros(len(self.keys) + 1, 1))

    def columns(self, indices: Tensor) -> Tensor:
        """Row of each entry's combination, ``(batch, modes)`` → ``(batch, 1)``."""
        if not len(self.keys):
            return indices.new_zeros(len(indices), 1)
        keys = self.keys_of(indices)
        rows = torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[rows] == keys, rows, len(self.keys))[:, None]

    def forward(self, indices: Tensor) -> Tensor:
        """Numbers of the entries, ``(batch, modes)`` → ``(batch,)``."""
        live = torch.cat([self.effects[:-1], torch.zeros_like(self.effects[-1:])])
        return live.index_select(0, self.columns(indices)[:, 0]).squeeze(1)

    def keys_of(self, indices: Tensor) -> Tensor:
        """The number of each entry's combination, ``(batch, modes)`` → ``(batch,)``."""
        return _numbered((indices[:, n].long() for n in self.modes), self.sizes, indices)

    @torch.no_grad()
    def forget(self) -> None:
        """Set all numbers to zero."""
        self.effects.zero_()

    def solve(self, steps: SolveSteps) -> None:
        """A shrunk mean per combination."""
        steps.numbers(len(self.keys))

    def grow_from(self, old: Block) -> None:
        """Number the same combinations anew; their order stays."""
        before = cast(Combinations, old)
        rest, labels = before.keys.cpu(), []
        for size in reversed(before.sizes):
            labels.append(rest % size)
            rest = rest // size
        keys = _numbered(reversed(labels), self.sizes, rest)
        self.load_state_dict({"keys": keys, "effects": before.effects.detach().cpu()})

    @torch.no_grad()
    def learn_new_labels(self, new: NewEntries, targets: Tensor, draw: Mapping[str, Tensor] | None = None) -> None:
        """Numbers of combinations with a new label: means, shrunk as strongly as the size of known numbers says."""
        chosen = torch.stack([new.indices[:, n] >= new.starts[n] for n in self.modes]).any(dim=0)
        known = self.effects.detach()[:-1, 0]
        variance = float(known.square().mean()) if len(known) else 0.0
        if not chosen.any() or not variance:
            return
        targets = targets[chosen]
        keys, rows = torch.unique(self.keys_of(new.indices[chosen]), return_inverse=True)
        sums = targets.new_zeros(len(keys)).index_add(0, rows, targets)
        effects = sums / (torch.bincount(rows, minlength=len(keys)) + new.noise / variance)
        kept = ~torch.isin(self.keys, keys)
        self.keys, order = torch.cat([self.keys[kept], keys]).sort()
        numbers = torch.cat([torch.cat([known[kept], effects])[order], known.new_zeros(1)])
        self.effects = nn.Parameter(numbers[:, None])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """The number of combinations is that of the state."""
        given = state_dict.get(f"{prefix}keys")
        if isinstance(given, Tensor):
            self.keys = self.keys.new_zeros(given.shape)
            self.effects = nn.Parameter(self.effects.new_zeros(len(given) + 1, 1))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _numbered(labels: Any, sizes: Sequence[int], like: Tensor) -> Tensor:
    """Combinations of labels, one tensor ``(entries,)`` per mode, as whole numbers ``(entries,)``."""
    key = torch.zeros(len(like), dtype=torch.int64, device=like.device)
    for label, size in zip(labels, sizes, strict=True):
        key = key * size + label
    return key


def countable(shape: Sequence[int], modes: Sequence[int]) -> bool:
    """Whether the combinations of some modes can be numbered."""
    return math.prod(shape[n] for n in modes) < MAX_KEYS


def all_subsets(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Modes of every table: two or more of them, not all; those whose combinations can be numbered."""
    every = [modes for k in range(2, len(shape)) for modes in combinations(range(len(shape)), k)]
    return [modes for modes in every if countable(shape, modes)]


def _parse(text: str | None, find: FindMode | None) -> Argument | None:
    """All tables, or one over some modes, in one order, so that none is there twice."""
    if text is None:
        return no_argument(text, find)
    given = some_modes(1, MAX_MODES)(text, find)
    return None if given is None else Argument(tuple(sorted(given.numbers)), over_modes=True)


def _build(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    subsets = [piece.numbers] if piece.numbers else all_subsets(shape)
    return {"_".join(map(str, ("table", *modes))): Combinations(shape, modes) for modes in subsets}


register(
    Kind(
        "tables",
        ("tables", "tables:A/B"),
        "tables, or tables:A/B/… with different modes",
        _parse,
        _build,
        residual_model="tables",
        sampled=True,
    )
)
