"""The row solves of :mod:`jointensor.kernels.rows` on an NVIDIA GPU, compiled by Triton.

One program per segment, a run of at most ``SEGMENT`` sorted entries of one row: it gathers their Khatri-Rao rows,
multiplies them into the normal equations and, where the segment is the whole row, solves them on the spot.
Longer rows are added up in memory first and solved by a second kernel. Ranks above ``MAX_RANK`` are left to
:mod:`jointensor.kernels.triton_wide_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from jointensor.kernels.rows import ModeView, RowEntries

SEGMENT = 1024
"""Most entries of one program: enough programs to fill the device even where a mode has few rows."""

BLOCK = 32
"""Entries whose Khatri-Rao rows are in registers at a time."""

MAX_RANK = 128
"""Above it the normal equations of a row do not fit in registers."""


class Segments(NamedTuple):
    """How the sorted entries of a view are handed to programs."""

    rows: Tensor
    """Row of every segment, ``(segments,)``."""
    begins: Tensor
    ends: Tensor
    slots: Tensor
    """Where a long row is added up; -1 for a segment that is a whole row."""
    long_rows: Tensor
    """Row of every slot, ``(slots,)``."""


def segments_of(view: ModeView) -> Segments:
    """Cut every row into segments; rows without entries get one that is empty."""
    counts = view.counts  # (I,)
    pieces = ((counts + SEGMENT - 1) // SEGMENT).clamp_min(1)
    rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), pieces)
    first = (pieces.cumsum(0) - pieces)[rows]  # the first segment of the same row
    begins = view.starts[rows] + (torch.arange(len(rows), device=counts.device) - first) * SEGMENT
    ends = torch.minimum(begins + SEGMENT, view.starts[rows + 1])
    long = pieces > 1
    slots = torch.where(long, long.cumsum(0) - 1, -1)[rows]
    narrow = [one.to(torch.int32) for one in (rows, begins, ends, slots, long.nonzero().squeeze(1))]
    return Segments(*narrow)


def solve_rows_triton(
    entries: RowEntries, ridge: Tensor, table: Tensor, *, evaluate: bool = True, prior: Tensor | None = None
) -> Tensor:
    """As :func:`jointensor.kernels.rows.solve_rows`, for tensors on a GPU in 32 bits."""
    size, rank = table.shape
    if size == 0:
        return entries.targets.new_empty(len(entries.targets) if evaluate else 0)
    if rank > MAX_RANK:
        from jointensor.kernels.triton_wide_rows import solve_wide_rows  # noqa: PLC0415 - it uses the kernels below

        solve_wide_rows(entries, ridge, table, prior)
    else:
        _solve_rows(entries, ridge, table, prior)
    return evaluate_rows(entries, table) if evaluate else entries.targets.new_empty(0)


def _solve_rows(entries: RowEntries, ridge: Tensor, table: Tensor, prior: Tensor | None) -> None:
    """Solve rows whose normal equations fit in the registers of one program."""
    view, targets, weights, rank = entries.view, entries.targets, entries.weights, table.shape[1]
    cut = view.remember("segments", lambda: segments_of(view))
    stacked, offsets = stack_tables(entries.others, table)
    padded = max(16, triton.next_power_of_2(rank))  # the least a matrix product takes
    gram = table.new_zeros(len(cut.long_rows), padded, padded)
    right = table.new_zeros(len(cut.long_rows), padded)
    shape = {"DRAWN": prior is not None, "rank": rank, "RANK": padded, "num_warps": 1 if padded <= 32 else 4}
    drawn = table if prior is None else prior
    _accumulate[(len(cut.rows),)](
        *cut[:4], view.order, view.columns, stacked, offsets, len(view.order), targets,
        targets if weights is None else weights, ridge, drawn, table, gram, right,
        WEIGHTED=weights is not None, SUMS=entries.sums, MODES=len(entries.others), BLOCK=BLOCK, **shape,
    )  # fmt: skip
    if len(cut.long_rows):
        _solve_long[(len(cut.long_rows),)](cut.long_rows, gram, right, ridge, drawn, table, **shape)


def evaluate_rows(entries: RowEntries, table: Tensor) -> Tensor:
    """As :func:`jointensor.kernels.rows.row_values`."""
    view = entries.view
    cut = view.remember("segments", lambda: segments_of(view))
    stacked, offsets = stack_tables(entries.others, table)
    padded = max(16, triton.next_power_of_2(table.shape[1]))
    values = torch.empty_like(entries.targets)
    _evaluate[(len(cut.rows),)](
        *cut[:3], view.order, view.columns, stacked, offsets, len(view.order), table, values,
        SUMS=entries.sums, rank=table.shape[1], MODES=len(entries.others), RANK=padded,
        BLOCK=max(1, min(BLOCK, BLOCK * 128 // padded)),  # as many numbers in registers as at a rank of 128
        num_warps=1 if padded <= 32 else 4,
    )  # fmt: skip
    return values


def stack_tables(others: Sequence[Tensor], table: Tensor) -> tuple[Tensor, Tensor]:
    """All other tables one below the other, and where each begins."""
    if not others:
        return table, torch.zeros(1, dtype=torch.int64, device=table.device)
    starts = [0]
    for other in others[:-1]:
        starts.append(starts[-1] + len(other))
    return torch.cat([other.detach() for other in others]), torch.tensor(starts, device=table.device)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _khatri_rao(  # type: ignore[no-untyped-def]
    e, live, first, columns, stacked, offsets, entries, SUMS: tl.constexpr, rank: tl.constexpr, MODES: tl.constexpr,
    RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h_e of some sorted entries, from component ``first`` on, ``(BLOCK, RANK)``; zero outside of both."""
    r = first + tl.arange(0, RANK)
    inside = live[:, None] & (r < rank)[None, :]
    h = tl.where(inside, tl.full((BLOCK, RANK), 0.0 if SUMS and MODES else 1.0, tl.float32), 0.0)
    for m in tl.static_range(MODES):
        column = tl.load(columns + m * entries + e, mask=live, other=0).to(tl.int64) + tl.load(offsets + m)
        row = tl.load(stacked + column[:, None] * rank + r[None, :], mask=inside, other=0.0)
        h = h + row if SUMS else h * row
    return h


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _eliminate(a, b, least, size, RANK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Solve ``a x = b`` for the first ``size`` unknowns, ``(RANK, RANK)`` and ``(RANK,)``; whether all pivots and
    ``least`` are positive and the solution is finite.

    A symmetric positive system needs no exchange of rows.
    """
    r = tl.arange(0, RANK)
    for k in range(size):
        here = r == k
        row = tl.sum(tl.where(here[:, None], a, 0.0), 0)  # a[k, :]
        column = tl.where(here, 0.0, tl.sum(tl.where(here[None, :], a, 0.0), 1))  # a[:, k] without the pivot
        pivot = tl.sum(tl.where(here, row, 0.0), 0)
        least = tl.minimum(least, pivot)
        row = row / pivot
        solved = tl.sum(tl.where(here, b, 0.0), 0) / pivot
        a = tl.where(here[:, None], row[None, :], a - column[:, None] * row[None, :])
        b = tl.where(here, solved, b - column * solved)
    worst = tl.max(tl.where(tl.abs(b) < 3e38, 0, 1), 0)  # NaN and infinity compare false
    return b, (least > 0) & (worst == 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _solve_spd(a, b, ridge, drawn, rank: tl.constexpr, RANK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Solve ``(a + ridge I) x = b + ridge drawn``, lifted as by ``solve_spd``; ``drawn`` where there is no solution."""
    r = tl.arange(0, RANK)
    eye = r[:, None] == r[None, :]
    lift = ridge + 1e-6 * tl.sum(tl.sum(tl.where(eye, a, 0.0), 1), 0) / rank + 1e-19
    a += tl.where(eye, tl.where(r < rank, lift, 1.0)[:, None], 0.0)
    x, usable = _eliminate(a, b + ridge * drawn, lift, rank, RANK)
    return tl.where(usable, x, drawn)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _prior(prior, row, r, DRAWN: tl.constexpr, rank: tl.constexpr, RANK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Prior mean of a row, ``(RANK,)``."""
    if DRAWN:
        return tl.load(prior + row * rank + r, mask=r < rank, other=0.0)
    return tl.zeros((RANK,), tl.float32)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _accumulate(  # type: ignore[no-untyped-def]
    rows, begins, ends, slots, order, columns, stacked, offsets, entries, targets, weights, ridge, prior, table, gram,
    right, WEIGHTED: tl.constexpr, DRAWN: tl.constexpr, SUMS: tl.constexpr, rank: tl.constexpr, MODES: tl.constexpr,
    RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normal equations of one segment; a whole row is solved at once, a part of one is added to its slot."""
    segment = tl.program_id(0)
    begin, end = tl.load(begins + segment), tl.load(ends + segment)
    r = tl.arange(0, RANK)
    a = tl.zeros((RANK, RANK), tl.float32)
    b = tl.zeros((RANK,), tl.float32)
    for start in range(begin, end, BLOCK):
        e = start + tl.arange(0, BLOCK)
        live = e < end
        h = _khatri_rao(e, live, 0, columns, stacked, offsets, entries, SUMS, rank, MODES, RANK, BLOCK)
        place = tl.load(order + e, mask=live, other=0)
        y = tl.load(targets + place, mask=live, other=0.0)
        weighed = h
        if WEIGHTED:
            weighed = h * tl.load(weights + place, mask=live, other=0.0)[:, None]
        a = tl.dot(tl.trans(weighed), h, a, input_precision="tf32x3")  # about as exact as 32 bits
        b += tl.sum(weighed * y[:, None], 0)
    row = tl.load(rows + segment).to(tl.int64)
    slot = tl.load(slots + segment).to(tl.int64)
    if slot < 0:
        towards = _prior(prior, row, r, DRAWN, rank, RANK)
        x = _solve_spd(a, b, tl.load(ridge + row), towards, rank, RANK)
        tl.store(table + row * rank + r, x, mask=r < rank)
    else:
        tl.atomic_add(gram + slot * RANK * RANK + r[:, None] * RANK + r[None, :], a)
        tl.atomic_add(right + slot * RANK + r, b)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _solve_long(  # type: ignore[no-untyped-def]
    long_rows, gram, right, ridge, prior, table, DRAWN: tl.constexpr, rank: tl.constexpr, RANK: tl.constexpr
):
    """Solve a row whose segments were added up in a slot."""
    slot = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, RANK)
    a = tl.load(gram + slot * RANK * RANK + r[:, None] * RANK + r[None, :])
    b = tl.load(right + slot * RANK + r)
    row = tl.load(long_rows + slot).to(tl.int64)
    towards = _prior(prior, row, r, DRAWN, rank, RANK)
    x = _solve_spd(a, b, tl.load(ridge + row), towards, rank, RANK)
    tl.store(table + row * rank + r, x, mask=r < rank)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _evaluate(  # type: ignore[no-untyped-def]
    rows, begins, ends, order, columns, stacked, offsets, entries, table, values,
    SUMS: tl.constexpr, rank: tl.constexpr, MODES: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h_eᵀ a_i of the entries of one segment."""
    segment = tl.program_id(0)
    begin, end = tl.load(begins + segment), tl.load(ends + segment)
    row = tl.load(rows + segment).to(tl.int64)
    r = tl.arange(0, RANK)
    a = tl.load(table + row * rank + r, mask=r < rank, other=0.0)
    for start in range(begin, end, BLOCK):
        e = start + tl.arange(0, BLOCK)
        live = e < end
        h = _khatri_rao(e, live, 0, columns, stacked, offsets, entries, SUMS, rank, MODES, RANK, BLOCK)
        place = tl.load(order + e, mask=live, other=0)
        tl.store(values + place, tl.sum(h * a[None, :], 1), mask=live)
