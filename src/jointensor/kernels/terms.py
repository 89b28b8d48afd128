"""What a sum of products says of entries, from its tables: the reference of :mod:`jointensor.kernels.numba_chunks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.rows import ModeView, RowSystems, row_systems

CHUNK = 1 << 16
"""Entries that are evaluated at a time."""

FEW = 1 << 16
"""Numbers whose squares are added up in 32 bits."""


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


def subtract_terms(terms: Terms, indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    """Take what the terms say of some entries from their values, in place."""
    for start in range(0, len(values), CHUNK):
        part = torch.from_numpy(indices[start : start + CHUNK]).long()
        said = torch.full((len(part),), terms.constant)
        for term in terms.terms:
            said += term.values(part)
        values[start : start + CHUNK] -= said.numpy()


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
class Systems:
    """Σ h hᵀ and Σ h y of some rows of a table, and Σ y² of their entries; added up in 64 bits."""

    gram: Tensor  # (rows, R, R)
    right: Tensor  # (rows, R)
    squares: Tensor  # ()

    @classmethod
    def zero(cls, rows: Rows) -> Systems:
        """Of no entries."""
        count, rank = len(rows.rows), rows.block.tables[rows.k].shape[1]
        shapes = (count, rank, rank), (count, rank), ()
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))


def add_systems(rows: Rows, view: ModeView, wanted: Tensor, systems: Systems, row_systems: RowSystems) -> None:
    """Add some entries to the systems of their rows, in place; by an engine's loop over sorted entries."""
    block, table = rows.block, rows.block.tables[rows.k]
    if not rows.all_rows:
        view = view.rows(rows.rows.start, rows.rows.stop)
        wanted, view = wanted.index_select(0, view.order), replace(view, order=torch.arange(len(view.order)).int())
    others = [block.tables[m] for m in rows.others]
    gram, right = row_systems(view, others, wanted, None, table.shape[1], sums=block.sums)
    systems.gram.add_(gram)
    systems.right.add_(right)
    systems.squares.add_(sum_of_squares(wanted.numpy()))


def sum_of_squares(numbers: NDArray[np.float32]) -> float:
    """Those of some numbers in 32 bits, all of them in 64."""
    parts = (numbers[start : start + FEW] for start in range(0, len(numbers), FEW))
    return sum(float(np.vdot(part, part)) for part in parts)


def add_numbers(indices: NDArray[np.int32], mode: int, wanted: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
    """Add some values to the sums of their labels in one mode, ``(I_n,)``."""
    sums += np.bincount(indices[:, mode], wanted, minlength=len(sums))


@dataclass(frozen=True)
class Biases:
    """Several trials of one number per label, all modes one below the other."""

    mean: float
    effects: NDArray[np.float64]  # (labels of all modes, trials)
    starts: NDArray[np.int64]  # (modes,)


def add_biases(
    biases: Biases, mode: int, block: tuple[NDArray[np.int32], NDArray[np.float32]], sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add what the biases leave of some values to the sums of their labels ``(I_n, trials)``; returns Σ of squares."""
    indices, values = block
    squares = np.zeros(sums.shape[1])
    for start in range(0, len(values), CHUNK):
        part = indices[start : start + CHUNK]
        left = values[start : start + CHUNK, None] - biases.mean - biases.effects[part + biases.starts].sum(axis=1)
        np.add.at(sums, part[:, mode], left)
        squares += np.square(left).sum(axis=0)
    return squares


class Loops(NamedTuple):
    """What an engine offers here, each in its own way."""

    subtract: Callable[[Terms, NDArray[np.int32], NDArray[np.float32]], None] = subtract_terms
    sort: Callable[[Tensor, int, Sequence[int], int], ModeView] = ModeView.of
    systems: RowSystems = row_systems
    numbers: Callable[[NDArray[np.int32], int, NDArray[np.float32], NDArray[np.float64]], None] = add_numbers
    biases: Callable[
        [Biases, int, tuple[NDArray[np.int32], NDArray[np.float32]], NDArray[np.float64]], NDArray[np.float64]
    ] = add_biases


def loops_of(engine: str) -> Loops:
    """The loops of an engine: compiled ones for ``numba``, else those above."""
    if engine != "numba":
        return Loops()
    from jointensor.kernels import numba_chunks as compiled  # noqa: PLC0415 - compiled where it is used
    from jointensor.kernels.numba_rows import row_systems_numba  # noqa: PLC0415

    return Loops(
        compiled.subtract_terms_numba, compiled.sorted_view, row_systems_numba, compiled.add_numbers_numba,
        compiled.add_biases_numba,
    )  # fmt: skip
