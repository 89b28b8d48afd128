"""Least squares for all rows of one factor matrix at once, the other factors fixed.

For row i of mode n, over its entries e with h_e = Π_{m ≠ n} A_m(i_m, :) and targets y_e:

    a_i = (Σ_e w_e h_e h_eᵀ + ridge_i I)⁻¹ (Σ_e w_e h_e y_e + ridge_i p_i)

p_i, the prior mean, is zero unless it is given.

This is the reference in plain torch; an engine may have a compiled function of the same signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")

CHUNK = 1 << 15
"""Entries whose outer products are formed at a time."""

DIAGONAL_LIFT = 1e-6
"""Added to the diagonal of every system, as a share of its mean, against rounding in 32 bits."""

MORE_LIFT = (1e-4, 1e-2)
"""Tried in turn where a system is not positive in spite of it: rounding grows with the rank, and with components that
are alike. Far more than the first, as a system that is barely positive has a wild solution."""

MAX_CHOLESKY = 128
"""Systems above this size are factorised in blocks of it on a GPU: its matrix products are far faster than its batched
Cholesky factorisation."""

MAX_GRAM_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Size of the systems that are formed and solved at a time; rows are solved in groups of so much."""


@dataclass(frozen=True)
class ModeView:
    """Entries in the order of their labels in one mode; made once, used in every sweep."""

    order: Tensor
    """Where each entry of the sorted list stands in the original one, ``(entries,)``."""
    starts: Tensor
    """Row i owns the sorted entries ``starts[i]:starts[i + 1]``, ``(I_n + 1,)``."""
    columns: Tensor
    """Labels of the other modes, sorted alike, ``(other modes, entries)``."""
    remembered: dict[str, object] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, indices: Tensor, mode: int, others: Sequence[int], size: int) -> ModeView:
        """The view of ``indices (entries, modes)`` along ``mode``."""
        order = torch.argsort(indices[:, mode], stable=True)
        counts = torch.bincount(indices[:, mode], minlength=size)
        starts = torch.zeros(size + 1, dtype=torch.int64, device=indices.device)
        starts[1:] = counts.cumsum(0)
        columns = [indices[:, m].index_select(0, order).to(torch.int32) for m in others]
        empty = torch.zeros(0, len(order), dtype=torch.int32, device=indices.device)
        return cls(order.to(torch.int32), starts, torch.stack(columns) if columns else empty)

    @property
    def counts(self) -> Tensor:
        """Entries of every row, ``(I_n,)``."""
        return self.starts.diff()

    def rows(self, first: int, last: int) -> ModeView:
        """The view of some rows only; entries keep their places in the original list."""
        begin, end = int(self.starts[first]), int(self.starts[last])
        starts = self.starts[first : last + 1] - begin
        return ModeView(self.order[begin:end], starts, self.columns[:, begin:end].contiguous())

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Something derived from this view, made at its first use."""
        if name not in self.remembered:
            self.remembered[name] = make()
        return cast(T, self.remembered[name])


@dataclass(frozen=True)
class RowEntries:
    """The entries that the rows of a table ``(I, R)`` are solved from."""

    view: ModeView
    """Sorted by the rows of the table."""
    others: Sequence[Tensor]
    """The other factor matrices of the block, ``(I_m, R)`` each, in the order of ``view.columns``."""
    targets: Tensor
    """y_e in the original order, ``(entries,)``."""
    weights: Tensor | None = None
    """w_e, alike; none are all ones."""
    sums: bool = False
    """Whether h_e is the sum of the others' rows, as in a factorisation machine, not their product."""

    def of_rows(self, rows: slice) -> RowEntries:
        """The entries of some rows only; targets and weights stay as they are."""
        if rows.stop - rows.start == len(self.view.starts) - 1:
            return self
        return replace(self, view=self.view.rows(rows.start, rows.stop))


RowSolver = Callable[..., Tensor]
"""Signature of :func:`solve_rows`."""

RowSystems = Callable[[RowEntries, int], tuple[Tensor, Tensor]]
"""Signature of :func:`row_systems`."""


def solve_rows(
    entries: RowEntries, ridge: Tensor, table: Tensor, *, evaluate: bool = True, prior: Tensor | None = None
) -> Tensor:
    """Solve all rows of ``table (I, R)`` in place; returns h_eᵀ a_i of every entry, ``(entries,)``.

    Parameters
    ----------
    entries
        Sorted by the rows of ``table``.
    ridge
        Added to the diagonal of each row's system, ``(I,)``.
    table
        Rows without entries, and rows whose system has no solution, become the prior mean.
    evaluate
        Whether the values are computed; an empty tensor is returned otherwise.
    prior
        Prior mean of the rows, ``(I, R)``; zero without one.
    """
    for rows in row_groups(len(table), table):
        gram, right = row_systems(entries.of_rows(rows), table.shape[1])
        table[rows] = solve_spd(gram, right, ridge[rows], None if prior is None else prior[rows])
    return row_values(entries, table) if evaluate else entries.targets.new_empty(0)


def row_groups(size: int, like: Tensor) -> Iterator[slice]:
    """Groups of rows whose systems fit into memory together, for tables ``(I, R)`` like the given one."""
    most = MAX_GRAM_BYTES.get(like.device.type, MAX_GRAM_BYTES["cpu"])
    at_once = max(most // (like.element_size() * like.shape[1] ** 2), 1)
    return (slice(first, min(first + at_once, size)) for first in range(0, size, at_once))


def row_values(entries: RowEntries, table: Tensor) -> Tensor:
    """h_eᵀ a_i of every entry, in the original order, ``(entries,)``."""
    view = entries.view
    rows = torch.repeat_interleave(torch.arange(len(table), device=table.device), view.counts)  # (entries,)
    values = torch.empty_like(entries.targets)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        values[view.order[part].long()] = (khatri_rao(entries, part, table) * table[rows[part]]).sum(dim=1)
    return values


def row_systems(entries: RowEntries, rank: int) -> tuple[Tensor, Tensor]:
    """Σ_e w_e h_e h_eᵀ and Σ_e w_e h_e y_e of every row, ``(I, R, R)`` and ``(I, R)``."""
    view, targets, weights = entries.view, entries.targets, entries.weights
    size, like = len(view.counts), targets.new_zeros(1, rank)
    rows = torch.repeat_interleave(torch.arange(size, device=targets.device), view.counts)  # (entries,)
    gram, right = targets.new_zeros(size, rank, rank), targets.new_zeros(size, rank)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        h = khatri_rao(entries, part, like)  # (chunk, R)
        place = view.order[part].long()
        weighed = h if weights is None else h * weights[place, None]
        gram.index_add_(0, rows[part], weighed[:, :, None] * h[:, None, :])
        right.index_add_(0, rows[part], weighed * targets[place, None])
    return gram, right


def khatri_rao(entries: RowEntries, part: slice, like: Tensor) -> Tensor:
    """h_e of some sorted entries, ``(entries, R)``; ones where there are no other modes."""
    view = entries.view
    rows = [other.index_select(0, column[part]) for column, other in zip(view.columns, entries.others, strict=True)]
    if not rows:
        return like.new_ones(len(view.order[part]), like.shape[1])
    h = rows[0]
    for row in rows[1:]:
        h = h + row if entries.sums else h * row
    return h


def solve_spd(gram: Tensor, right: Tensor, ridge: Tensor, prior: Tensor | None = None) -> Tensor:
    """Solutions of ``(gram + ridge I) x = right + ridge prior`` for symmetric systems, never NaN; only the lower
    triangles are read.

    The diagonal is lifted by a millionth of its mean, which a singular system needs and a regular one
    hardly changes by, and by more where that does not suffice. A system without a solution even then gives the
    prior mean, or zero.
    """
    share = gram.diagonal(dim1=1, dim2=2).mean(dim=1)  # (systems,)
    least = ridge + torch.finfo(gram.dtype).tiny ** 0.5
    if prior is not None:
        right = right + ridge[:, None] * prior
    solved, usable = _solve_lifted(gram, right, least + DIAGONAL_LIFT * share)
    for lift in MORE_LIFT:
        again = (~usable & (share > 0) & torch.isfinite(share)).nonzero().squeeze(1)
        if not len(again):
            break
        solved[again], usable[again] = _solve_lifted(gram[again], right[again], least[again] + lift * share[again])
    return torch.where(usable[:, None], solved, torch.zeros_like(solved) if prior is None else prior)


def _solve_lifted(gram: Tensor, right: Tensor, lift: Tensor) -> tuple[Tensor, Tensor]:
    """Solutions of systems with a lifted diagonal, and which of them are usable."""
    system = gram.clone()
    system.diagonal(dim1=1, dim2=2).add_(lift[:, None])
    if system.is_cuda and system.shape[1] > MAX_CHOLESKY:
        solved, failed = solve_in_blocks(system, right, MAX_CHOLESKY)
    else:
        factor, failed = torch.linalg.cholesky_ex(system)
        solved = torch.cholesky_solve(right[:, :, None], factor).squeeze(2)
    return solved, (failed == 0) & torch.isfinite(solved).all(dim=1)


def solve_in_blocks(system: Tensor, right: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Solutions of positive systems ``(systems, R, R)``, whose lower triangles are overwritten, and 0 for each that is
    positive.

    A Cholesky factorisation by block columns: diagonal blocks are inverted, everything else is matrix products.
    """
    size, rest = system.shape[1], right[:, :, None].clone()  # (systems, R, 1)
    failed = torch.zeros(len(system), dtype=torch.int32, device=system.device)
    edges = [(first, min(first + block, size)) for first in range(0, size, block)]
    inverses: list[Tensor] = []
    for first, last in edges:
        factor, info = torch.linalg.cholesky_ex(system[:, first:last, first:last])
        failed |= info
        eye = torch.eye(last - first, dtype=system.dtype, device=system.device).expand_as(factor)
        inverses.append(torch.linalg.solve_triangular(factor, eye, upper=False))  # (systems, block, block)
        rest[:, first:last] = inverses[-1] @ rest[:, first:last]
        below = system[:, last:, first:last] @ inverses[-1].mT  # (systems, R - last, block)
        system[:, last:, first:last] = below
        rest[:, last:].baddbmm_(below, rest[:, first:last], alpha=-1)
        for start, stop in edges[len(inverses) :]:
            under = below[:, start - last :]
            system[:, start:, start:stop].baddbmm_(under, under[:, : stop - start].mT, alpha=-1)
    for (first, last), inverse in zip(reversed(edges), reversed(inverses), strict=True):
        above = rest[:, first:last] - system[:, last:, first:last].mT @ rest[:, last:]
        rest[:, first:last] = inverse.mT @ above
    return rest.squeeze(2), failed
