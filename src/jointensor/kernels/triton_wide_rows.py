"""Row solves on an NVIDIA GPU whose normal equations do not fit in the registers of one program.

Rows with few entries are solved through the system of their entries, which does fit (``_solve_few``). The systems of
all other rows are added up in memory, one program per segment and tile (``_add_tiles``), and solved by matrix products;
rows in groups, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from jointensor.kernels.rows import ModeView, RowEntries, row_groups, solve_spd
from jointensor.kernels.triton_rows import BLOCK, _eliminate, _khatri_rao, _prior, stack_tables

FEW = (16, 32, 64, 128)
"""Sizes of systems of entries; a row takes the smallest that holds its entries."""

PART = 32
"""Components of the Khatri-Rao rows of few entries that are in registers at a time."""

SEGMENT = 2048
"""Most entries of one program: enough programs for the device, and few sums that programs share."""

TILES = (64, 128)
"""Rows and columns of a system that one program adds to, least first: wider tiles gather less, narrower ones waste less
where the rank is no multiple of them."""

NARROW_GAIN = 0.7
"""Share of the products of the wider tile below which the narrower one is used."""


class WideSegments(NamedTuple):
    """How the sorted entries of a view are handed to programs."""

    few: list[Tensor]
    """Rows of every size, those of ``FEW`` or none."""
    many: Tensor
    """All other rows, ``(many,)``."""
    places: Tensor
    """Place in ``many`` of every segment, ``(segments,)``, ascending."""
    begins: Tensor
    ends: Tensor
    alone: Tensor
    """Whether a segment is a whole row, ``(segments,)``."""
    firsts: list[int]
    """The first segment of every row in ``many``, and their number, ``(many + 1,)``."""


def wide_segments_of(view: ModeView, sizes: Sequence[int]) -> WideSegments:
    """Sort rows by the number of their entries, and cut those into segments that are longer than all sizes."""
    counts, edges = view.counts, (-1, *sizes)
    few = [((counts > least) & (counts <= most)).nonzero().squeeze(1).int() for least, most in pairwise(edges)]
    many = (counts > edges[-1]).nonzero().squeeze(1)
    pieces = (counts[many] + SEGMENT - 1) // SEGMENT
    places = torch.repeat_interleave(torch.arange(len(many), device=counts.device), pieces)
    firsts = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    begins = view.starts[many[places]] + (torch.arange(len(places), device=counts.device) - firsts[places]) * SEGMENT
    ends = torch.minimum(begins + SEGMENT, view.starts[many[places] + 1])
    alone = (pieces == 1)[places]
    return WideSegments(few, many, places.int(), begins.int(), ends.int(), alone.int(), firsts.tolist())


def tile_of(rank: int) -> int:
    """The tile of :data:`TILES` for systems of a rank."""
    narrow, wide = (-(-rank // tile) * (-(-rank // tile) + 1) * tile**2 for tile in TILES)
    return TILES[0] if narrow < NARROW_GAIN * wide else TILES[1]


def solve_wide_rows(entries: RowEntries, ridge: Tensor, table: Tensor, prior: Tensor | None) -> None:
    """As :func:`jointensor.kernels.rows.solve_rows`, without values; weights are not negative."""
    view, rank = entries.view, table.shape[1]
    cut = view.remember("wide segments", lambda: wide_segments_of(view, FEW))
    given, shape = _arguments(entries, table)
    for size, rows in zip(FEW, cut.few, strict=True):
        if len(rows):
            _solve_few[(len(rows),)](
                rows, view.starts, *given, ridge, table if prior is None else prior, table,
                DRAWN=prior is not None, **shape, rank=rank, SIZE=size, PART=PART, num_warps=max(1, size // 16),
                num_stages=1,  # more would take shared memory from other programs
            )  # fmt: skip
    for group in row_groups(len(cut.many), table):
        rows = cut.many[group]
        gram, right = _add_up(entries, cut, group, table)
        table[rows] = solve_spd(gram, right, ridge[rows], None if prior is None else prior[rows])


def row_systems_triton(entries: RowEntries, rank: int) -> tuple[Tensor, Tensor]:
    """As :func:`jointensor.kernels.rows.row_systems`."""
    view, like = entries.view, entries.targets.new_empty(0, rank)
    cut = view.remember("segments of all rows", lambda: wide_segments_of(view, ()))
    gram, right = _add_up(entries, cut, slice(0, len(cut.many)), like)
    return gram.tril() + gram.tril(-1).mT, right


def _arguments(entries: RowEntries, like: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of all kernels, for tables ``(I, R)`` like the given one."""
    view, targets, weights = entries.view, entries.targets, entries.weights
    looked_up = (view.order, view.columns, *stack_tables(entries.others, like))
    given = (*looked_up, len(view.order), targets, targets if weights is None else weights)
    return given, {"WEIGHTED": weights is not None, "SUMS": entries.sums, "MODES": len(entries.others)}


def _add_up(entries: RowEntries, cut: WideSegments, group: slice, like: Tensor) -> tuple[Tensor, Tensor]:
    """Systems of some of the long rows, ``(rows, R, R)`` and ``(rows, R)``; on and below the diagonal."""
    rank, count = like.shape[1], group.stop - group.start
    gram, right = like.new_zeros(count, rank, rank), like.new_zeros(count, rank)
    part, tile = slice(cut.firsts[group.start], cut.firsts[group.stop]), tile_of(rank)
    tiles = -(-rank // tile)
    if part.stop == part.start:
        return gram, right
    given, shape = _arguments(entries, like)
    segments = (one[part] for one in (cut.places, cut.begins, cut.ends, cut.alone))
    _add_tiles[((part.stop - part.start) * tiles * (tiles + 1) // 2,)](
        *segments, *given, group.start, gram, right, **shape, rank=rank, TILE=tile, TILES=tiles, BLOCK=BLOCK,
        num_warps=4 if tile <= TILES[0] else 8,
    )  # fmt: skip
    return gram, right


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _add_tiles(  # type: ignore[no-untyped-def]
    places, begins, ends, alone, order, columns, stacked, offsets, entries, targets, weights, first_place, gram, right,
    WEIGHTED: tl.constexpr, SUMS: tl.constexpr, rank: tl.constexpr, MODES: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add one segment to one tile, on or below the diagonal, of the normal equations of its row."""
    pairs: tl.constexpr = TILES * (TILES + 1) // 2
    segment, pair = tl.program_id(0) // pairs, tl.program_id(0) % pairs
    i = 0
    for t in tl.static_range(1, TILES):
        i += (pair >= t * (t + 1) // 2).to(tl.int32)
    j = pair - i * (i + 1) // 2
    begin, end = tl.load(begins + segment), tl.load(ends + segment)
    a = tl.zeros((TILE, TILE), tl.float32)
    b = tl.zeros((TILE,), tl.float32)
    for start in range(begin, end, BLOCK):
        e = start + tl.arange(0, BLOCK)
        live = e < end
        h = _khatri_rao(e, live, j * TILE, columns, stacked, offsets, entries, SUMS, rank, MODES, TILE, BLOCK)
        place = tl.load(order + e, mask=live, other=0)
        y = tl.load(targets + place, mask=live, other=0.0)
        weighed = h
        if i != j:
            weighed = _khatri_rao(e, live, i * TILE, columns, stacked, offsets, entries, SUMS, rank, MODES, TILE, BLOCK)
        if WEIGHTED:
            weighed = weighed * tl.load(weights + place, mask=live, other=0.0)[:, None]
        a = tl.dot(tl.trans(weighed), h, a, input_precision="tf32x3")  # about as exact as 32 bits
        b += tl.sum(weighed * y[:, None], 0)
    system = (tl.load(places + segment) - first_place).to(tl.int64)
    r, c = i * TILE + tl.arange(0, TILE), j * TILE + tl.arange(0, TILE)
    inside = (r < rank)[:, None] & (c < rank)[None, :]
    at = gram + system * rank * rank + r[:, None] * rank + c[None, :]
    side = (r < rank) & (r == c)  # tiles on the diagonal
    if tl.load(alone + segment) != 0:
        tl.store(at, a, mask=inside)
        tl.store(right + system * rank + r, b, mask=side)
    else:
        tl.atomic_add(at, a, mask=inside, sem="relaxed")
        tl.atomic_add(right + system * rank + r, b, mask=side, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _solve_few(  # type: ignore[no-untyped-def]
    rows, starts, order, columns, stacked, offsets, entries, targets, weights, ridge, prior, table,
    DRAWN: tl.constexpr, WEIGHTED: tl.constexpr, SUMS: tl.constexpr, rank: tl.constexpr, MODES: tl.constexpr,
    SIZE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Solve a row through the system of its entries.

    With rows and targets times the roots of the weights, s on the diagonal, and q = ridge / s · prior, the solution is
    q + hᵀ (h hᵀ + s I)⁻¹ (y − h q).
    """
    row = tl.load(rows + tl.program_id(0)).to(tl.int64)
    begin = tl.load(starts + row)
    count = (tl.load(starts + row + 1) - begin).to(tl.int32)
    k = tl.arange(0, SIZE)
    e, live = begin + k, k < count
    place = tl.load(order + e, mask=live, other=0)
    y = tl.load(targets + place, mask=live, other=0.0)
    root = tl.where(live, 1.0, 0.0)
    if WEIGHTED:
        root = tl.sqrt(tl.load(weights + place, mask=live, other=0.0))
        y = y * root
    gram = tl.zeros((SIZE, SIZE), tl.float32)
    for first in range(0, rank, PART):
        h = _khatri_rao(e, live, first, columns, stacked, offsets, entries, SUMS, rank, MODES, PART, SIZE)
        h = h * root[:, None]
        gram = tl.dot(h, tl.trans(h), gram, input_precision="tf32x3")
    eye = k[:, None] == k[None, :]
    amount = tl.load(ridge + row)
    raised = amount + 1e-6 * tl.sum(tl.sum(tl.where(eye, gram, 0.0), 1), 0) / rank + 1e-19
    gram += tl.where(eye, tl.where(live, raised, 1.0)[:, None], 0.0)
    if DRAWN:
        for first in range(0, rank, PART):
            h = _khatri_rao(e, live, first, columns, stacked, offsets, entries, SUMS, rank, MODES, PART, SIZE)
            q = _prior(prior, row, first + tl.arange(0, PART), DRAWN, rank, PART) * (amount / raised)
            y -= tl.sum(h * root[:, None] * q[None, :], 1)
    z, usable = _eliminate(gram, y, raised, count, SIZE)
    z = z * root
    for first in range(0, rank, PART):
        r = first + tl.arange(0, PART)
        h = _khatri_rao(e, live, first, columns, stacked, offsets, entries, SUMS, rank, MODES, PART, SIZE)
        drawn = _prior(prior, row, r, DRAWN, rank, PART)
        x = drawn * (amount / raised) + tl.sum(h * z[:, None], 0)
        tl.store(table + row * rank + r, tl.where(usable, x, drawn), mask=r < rank)
