"""Loops over chunks of entries, the reference of :mod:`jointensor.kernels.numba_chunks`: residuals, sums by label."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jointensor.kernels.rows import RowEntries, RowSystems

CHUNK = 1 << 16
"""Entries that are evaluated at a time."""


@dataclass(frozen=True)
class Term:
    """Σ_r Π_m T_m(i_m, r) over some modes, or Σ_{n<m} ⟨T_n(i_n), T_m(i_m)⟩."""

    modes: tuple[int, ...]
    tables: tuple[Tensor, ...]  # (I_m, R) each
    sums: bool = False
    """Whether pairs are summed, as in a factorisation machine."""
    sign: float = 1.0
    """Subtracting a term of sign −1 adds it."""

    def values(self, indices: Tensor) -> Tensor:
        """Of some entries, ``(entries, all modes)`` → ``(entries,)``."""
        rows = torch.stack(
            [table.index_select(0, indices[:, n]) for n, table in zip(self.modes, self.tables, strict=True)]
        )  # (modes, entries, R)
        if self.sums:
            return self.sign * 0.5 * (rows.sum(dim=0).square() - rows.square().sum(dim=0)).sum(dim=1)
        return self.sign * rows.prod(dim=0).sum(dim=1)


@dataclass(frozen=True)
class Terms:
    """A constant and a sum of terms."""

    constant: float
    terms: tuple[Term, ...]


def subtract_terms(terms: Terms, indices: Tensor, values: Tensor) -> None:
    """Subtract the values of the terms from the values of some entries, in place."""
    for part, left in zip(torch.split(indices, CHUNK), torch.split(values, CHUNK), strict=True):
        predicted = torch.full_like(left, terms.constant)  # (chunk,)
        for term in terms.terms:
            predicted += term.values(part)
        left -= predicted


@dataclass(frozen=True)
class RowSums:
    """Σ h hᵀ and Σ h y of some rows of a table, and Σ y² of their entries; added up in 64 bits."""

    gram: Tensor  # (rows, R, R)
    right: Tensor  # (rows, R)
    squares: Tensor  # ()

    @classmethod
    def zero(cls, count: int, table: Tensor) -> RowSums:
        """Of so many rows of a table, without entries."""
        shapes = ((count, table.shape[1], table.shape[1]), (count, table.shape[1]), ())
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=table.device) for shape in shapes))

    def add(self, entries: RowEntries, rows: range, row_systems: RowSystems) -> None:
        """Add some entries of these rows, in place; by an engine's loop over sorted entries."""
        if len(rows) < len(entries.view.starts) - 1:
            view = entries.view.rows(rows.start, rows.stop)
            targets = entries.targets.index_select(0, view.order)
            view = replace(view, order=torch.arange(len(view.order), dtype=torch.int32, device=targets.device))
            entries = replace(entries, view=view, targets=targets)
        gram, right = row_systems(entries, self.right.shape[1])
        self.gram.add_(gram)
        self.right.add_(right)
        self.squares.add_(sum_of_squares(entries.targets))


def sum_of_squares(numbers: Tensor) -> float:
    """Σ of squares; those of a chunk are added up in 32 bits, their sums in 64."""
    return math.fsum(float(torch.dot(part, part)) for part in torch.split(numbers, CHUNK))


def add_numbers(indices: Tensor, mode: int, targets: Tensor, sums: Tensor) -> None:
    """Add some values to the sums of their labels in one mode, ``(I_n,)`` in 64 bits."""
    sums.index_add_(0, indices[:, mode], targets.double())
