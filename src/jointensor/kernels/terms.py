"""Loops over chunks of entries, the reference of :mod:`jointensor.kernels.numba_chunks`: residuals, sums by label."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.rows import ModeView, RowEntries, RowSystems

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
class Rows:
    """Which rows of a block's k-th table are solved for."""

    block: Term
    k: int
    rows: range

    @property
    def others(self) -> list[int]:
        """The tables that are not solved for."""
        return [m for m in range(len(self.block.tables)) if m != self.k]

    @property
    def all_rows(self) -> bool:
        """Whether all rows of the table are meant."""
        return len(self.rows) == len(self.block.tables[self.k])


@dataclass(frozen=True)
class RowSums:
    """Σ h hᵀ and Σ h y of some rows of a table, and Σ y² of their entries; added up in 64 bits."""

    gram: Tensor  # (rows, R, R)
    right: Tensor  # (rows, R)
    squares: Tensor  # ()

    @classmethod
    def zero(cls, rows: Rows) -> RowSums:
        """Of no entries."""
        count, rank = len(rows.rows), rows.block.tables[rows.k].shape[1]
        shapes, like = ((count, rank, rank), (count, rank), ()), rows.block.tables[rows.k]
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=like.device) for shape in shapes))


def add_systems(rows: Rows, view: ModeView, targets: Tensor, systems: RowSums, row_systems: RowSystems) -> None:
    """Add some entries to the systems of their rows, in place; by an engine's loop over sorted entries."""
    block, table = rows.block, rows.block.tables[rows.k]
    if not rows.all_rows:
        view = view.rows(rows.rows.start, rows.rows.stop)
        targets = targets.index_select(0, view.order)
        view = replace(view, order=torch.arange(len(view.order), dtype=torch.int32, device=targets.device))
    others = [block.tables[m] for m in rows.others]
    gram, right = row_systems(RowEntries(view, others, targets, sums=block.sums), table.shape[1])
    systems.gram.add_(gram)
    systems.right.add_(right)
    systems.squares.add_(sum_of_squares(targets))


def sum_of_squares(numbers: Tensor) -> float:
    """Σ of squares; those of a chunk are added up in 32 bits, their sums in 64."""
    return math.fsum(float(torch.dot(part, part)) for part in torch.split(numbers, CHUNK))


def add_numbers(indices: Tensor, mode: int, targets: Tensor, sums: Tensor) -> None:
    """Add some values to the sums of their labels in one mode, ``(I_n,)`` in 64 bits."""
    sums.index_add_(0, indices[:, mode], targets.double())


@dataclass(frozen=True)
class Biases:
    """Several trials of one number per label, all modes one below the other."""

    mean: float
    effects: NDArray[np.float64]  # (labels of all modes, trials)
    starts: NDArray[np.int64]  # (modes,)


def add_biases(
    biases: Biases, mode: int, block: tuple[NDArray[np.int32], NDArray[np.float32]], sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add the residuals of the biases to the sums of their labels ``(I_n, trials)``; returns Σ of their squares."""
    indices, values = block
    squares = np.zeros(sums.shape[1])
    for start in range(0, len(values), CHUNK):
        part = indices[start : start + CHUNK]
        residuals = values[start : start + CHUNK, None] - biases.mean - biases.effects[part + biases.starts].sum(axis=1)
        np.add.at(sums, part[:, mode], residuals)
        squares += np.square(residuals).sum(axis=0)
    return squares
