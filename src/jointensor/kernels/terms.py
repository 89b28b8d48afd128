"""What a sum of products says of entries, from its tables: the reference of :mod:`jointensor.kernels.numba_blocks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.rows import ModeView

CHUNK = 1 << 16
"""Entries that are evaluated at a time."""


@dataclass(frozen=True)
class Term:
    """Σ_r Π_m T_m(i_m, r) over some modes, or Σ_{n<m} ⟨T_n(i_n), T_m(i_m)⟩."""

    modes: tuple[int, ...]
    tables: tuple[Tensor, ...]  # (I_m, R) each
    sums: bool = False
    """Whether pairs are summed, as in a factorisation machine."""

    def values(self, indices: Tensor) -> Tensor:
        """Of some entries, ``(entries, all modes)`` → ``(entries,)``."""
        rows = torch.stack(
            [table.index_select(0, indices[:, n]) for n, table in zip(self.modes, self.tables, strict=True)]
        )  # (modes, entries, R)
        if self.sums:
            return 0.5 * (rows.sum(dim=0).square() - rows.square().sum(dim=0)).sum(dim=1)
        return rows.prod(dim=0).sum(dim=1)


class Terms:
    """A constant and a sum of terms; their numbers one behind the other, for loops that are compiled.

    Parameters
    ----------
    constant
        Added to every entry.
    terms
        Their numbers are copied.
    """

    def __init__(self, constant: float, terms: Sequence[Term]) -> None:
        self.constant, self.terms = constant, tuple(terms)
        tables = [table.detach().cpu() for term in terms for table in term.tables]
        sizes = [table.numel() for table in tables]
        self.numbers = np.concatenate([np.zeros(0, np.float32), *(table.numpy().ravel() for table in tables)])
        self.offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if sizes else np.zeros(0, np.int64)
        self.modes = np.array([n for term in terms for n in term.modes], np.int64)
        self.firsts = np.cumsum([0, *(len(term.modes) for term in terms)]).astype(np.int64)
        self.ranks = np.array([term.tables[0].shape[1] for term in terms], np.int64)
        self.sums = np.array([term.sums for term in terms], np.bool_)


Subtract = Callable[[Terms, NDArray[np.int32], NDArray[np.float32]], None]
SortedView = Callable[[NDArray[np.int32], int, tuple[int, ...], int], ModeView]
"""What an engine offers here: :func:`subtract_terms` and :func:`sorted_view`, in its own way."""


def subtract_terms(terms: Terms, indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    """Take what the terms say of some entries from their values, in place."""
    for start in range(0, len(values), CHUNK):
        part = torch.from_numpy(indices[start : start + CHUNK]).long()
        said = torch.full((len(part),), terms.constant)
        for term in terms.terms:
            said += term.values(part)
        values[start : start + CHUNK] -= said.numpy()


def sorted_view(indices: NDArray[np.int32], mode: int, others: tuple[int, ...], size: int) -> ModeView:
    """Entries in the order of their labels in one mode."""
    return ModeView.of(torch.from_numpy(indices), mode, others, size)


def loops_of(engine: str) -> tuple[Subtract, SortedView]:
    """The loops of an engine: compiled ones for ``numba``, else those above."""
    if engine != "numba":
        return subtract_terms, sorted_view
    from jointensor.kernels.numba_blocks import sorted_view_numba, subtract_terms_numba  # noqa: PLC0415 - compiled where it is used

    return subtract_terms_numba, sorted_view_numba
