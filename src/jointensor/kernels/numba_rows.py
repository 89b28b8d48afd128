"""The row solves of :mod:`jointensor.kernels.rows` on the CPU, compiled by numba.

Rows in parallel; within a row, Khatri-Rao rows are gathered in blocks and multiplied by BLAS. A row with fewer entries
than components is solved through the system of its entries, which is smaller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.numba_blas import (
    BLAS_NUMBERS,
    add_dots,
    add_gram,
    add_inner,
    add_weighted,
    blas_alone,
    product_tile,
    solve_positive,
)
from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.numba_gather import LANES, gather, padded
from jointensor.kernels.numba_threads import numba_threads, parallel_loop
from jointensor.kernels.rows import DIAGONAL_LIFT, MORE_LIFT, RowEntries

BLOCK_BYTES = 1 << 16
"""Size of the Khatri-Rao rows that are multiplied at a time; they stay in the cache of a core."""

MIN_BLOCK, MAX_BLOCK = 32, 512
"""Entries of a block."""

KEPT_BYTES = 1 << 20
"""Size up to which the Khatri-Rao rows of a row are kept until it is evaluated; others are formed again."""

MAX_SHORT_SUM = 4096
"""Entries whose products are added up in 32 bits, block by block; more are added in 64 bits."""

DUAL_SHARE = 0.75
"""Rows with fewer entries than this share of the components are solved through the system of their entries."""

TINY = float(np.finfo(np.float32).tiny) ** 0.5
"""Added to every diagonal, as in the reference: a row without entries has a solution."""

LIFTS = (DIAGONAL_LIFT, *MORE_LIFT)
"""Shares of the mean of the diagonal that are added to it, until there is a solution."""

RUNS_PER_THREAD = 16
"""Rows are cut into this many runs per thread, so that no thread waits long for the slowest."""


class SortedEntries(NamedTuple):
    """Entries in the order of their rows, and the tables that they look up."""

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    columns: NDArray[np.int32]
    tables: NDArray[np.float32]
    """All other tables one below the other, with rows of ``width`` numbers, ``(rows * width,)``."""
    offsets: NDArray[np.int64]
    """The first row of every table."""
    width: int
    targets: NDArray[np.float32]
    weights: NDArray[np.float32]
    """``(entries,)``, or ``(0,)`` for all ones."""
    sums: bool


class Space(NamedTuple):
    """Memory of one thread."""

    stride: int
    """Numbers from one Khatri-Rao row to the next."""
    block: int
    """Entries of a block."""
    rows: NDArray[np.float32]
    """Khatri-Rao rows of a block, or of all entries of a row that are kept."""
    scaled: NDArray[np.float32]
    """Rows of a block, or of a dual system, times their weights."""
    targets: NDArray[np.float32]
    weights: NDArray[np.float32]
    gram_32: NDArray[np.float32]
    right_32: NDArray[np.float32]
    gram: NDArray[np.float64]
    right: NDArray[np.float64]
    dual: NDArray[np.float64]
    numbers: NDArray[np.int32]


def uncompiled() -> str | None:
    """A line for the user where the solver has to be compiled first."""
    place = Path(str(_solve.stats.cache_path)) if CACHE else None
    if place is None:
        return "compiling the exact solver for this process: there is no folder to keep it in"
    if any(place.glob("numba_rows._solve-*.nbi")):
        return None
    return f"compiling the exact solver, once on this machine; it is kept in {place}"


def solve_rows_numba(
    entries: RowEntries, ridge: Tensor, table: Tensor, *, evaluate: bool = True, prior: Tensor | None = None
) -> Tensor:
    """As :func:`jointensor.kernels.rows.solve_rows`, for tensors on the CPU in 32 bits."""
    rank = table.shape[1]
    given = _sorted_entries(entries, rank)
    values = np.empty(len(entries.targets) if evaluate else 0, dtype=np.float32)
    mean = np.zeros((0, rank), np.float32) if prior is None else prior.detach().numpy()
    with parallel_loop(), blas_alone():
        _solve(_runs(given.starts, rank), given, ridge.numpy(), mean, table.detach().numpy(), values, product_tile())
    return torch.from_numpy(values)


def row_systems_numba(entries: RowEntries, rank: int) -> tuple[Tensor, Tensor]:
    """As :func:`jointensor.kernels.rows.row_systems`, for tensors on the CPU in 32 bits."""
    given = _sorted_entries(entries, rank)
    size = len(given.starts) - 1
    gram, right = np.zeros((size, rank, rank), np.float32), np.zeros((size, rank), np.float32)
    with parallel_loop(), blas_alone():
        _systems(_runs(given.starts, rank), given, gram, right, product_tile())
    return torch.from_numpy(gram), torch.from_numpy(right)


def _sorted_entries(entries: RowEntries, rank: int) -> SortedEntries:
    view, others, weights = entries.view, entries.others, entries.weights
    edges = np.cumsum([0, *(len(other) for other in others)])
    tables = np.zeros((edges[-1], padded(rank)), np.float32)
    for k, other in enumerate(others):
        tables[edges[k] : edges[k + 1], :rank] = other.detach().numpy()
    weighed = np.zeros(0, np.float32) if weights is None else weights.detach().numpy()
    return SortedEntries(
        view.order.numpy(), view.starts.numpy(), view.columns.numpy(), tables.reshape(-1), edges[:-1].astype(np.int64),
        tables.shape[1], entries.targets.detach().numpy(), weighed, entries.sums,
    )  # fmt: skip


def _runs(starts: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    """Boundaries of runs of rows that cost about the same: their entries, a solve, and something in any case."""
    entries = np.diff(starts)
    work = np.concatenate([[0.0], np.cumsum(entries + np.minimum(entries, rank) / 2 + 1)])
    edges: NDArray[Any] = np.searchsorted(work, np.linspace(0, work[-1], numba_threads() * RUNS_PER_THREAD + 1))
    edges[0], edges[-1] = 0, len(entries)
    return np.unique(edges).astype(np.int64)


@njit(cache=CACHE, nogil=True)
def _space(rank, width, uniform, kept_bytes):  # type: ignore[no-untyped-def]
    """Memory for systems of a rank."""
    stride = width + LANES if width % 256 == 0 else width  # rows 1 KiB apart share too few places of a cache
    block = max(MIN_BLOCK, min(MAX_BLOCK, BLOCK_BYTES // (4 * stride)))
    most = max(block, rank)  # a block, or the entries of a dual system
    rows = max(most, kept_bytes // (4 * stride))
    return Space(
        stride, block, np.empty(rows * stride, np.float32), np.empty(0 if uniform else most * stride, np.float32),
        np.empty(most, np.float32), np.empty(most, np.float32), np.zeros((rank, rank), np.float32),
        np.zeros(rank, np.float32), np.empty((rank, rank)), np.empty(rank), np.empty(rank),
        np.empty(BLAS_NUMBERS, np.int32),
    )  # fmt: skip


@njit(cache=CACHE, nogil=True)
def _pick(given, order, begin, count, out):  # type: ignore[no-untyped-def]
    """``given`` of some sorted entries, ``(count,)``."""
    for e in range(count):
        out[e] = given[order[begin + e]]


@njit(cache=CACHE, nogil=True)
def _scale(rows, factors, count, stride, out):  # type: ignore[no-untyped-def]
    """Every row times its factor."""
    for e in range(count):
        for r in range(e * stride, (e + 1) * stride):
            out[r] = factors[e] * rows[r]


@njit(cache=CACHE, nogil=True)
def _add_block(entries, begin, count, rows, gram, right, space, tile):  # type: ignore[no-untyped-def]
    """Gather the Khatri-Rao rows of a block, and add Σ w h hᵀ and Σ w h y to sums in 32 bits."""
    stride, rank = space.stride, right.shape[0]
    gather(rows, stride, begin, count, entries, entries.targets)
    _pick(entries.targets, entries.order, begin, count, space.targets)
    left = rows
    if entries.weights.shape[0]:
        left = space.scaled
        _pick(entries.weights, entries.order, begin, count, space.weights)
        _scale(rows, space.weights, count, stride, left)
    uniform = entries.weights.shape[0] == 0
    add_gram(left, rows, uniform, count, stride, rank, tile, gram, space.numbers)
    add_weighted(left, space.targets, count, stride, rank, right, space.numbers)


@njit(cache=CACHE, nogil=True)
def _move_sums(space, first):  # type: ignore[no-untyped-def]
    """Add sums in 32 bits to the sums in 64 bits; the first replace them."""
    for r in range(space.right.shape[0]):
        space.right[r] = space.right_32[r] if first else space.right[r] + space.right_32[r]
        space.right_32[r] = 0.0
        for c in range(r + 1):
            space.gram[r, c] = space.gram_32[r, c] if first else space.gram[r, c] + space.gram_32[r, c]
            space.gram_32[r, c] = 0.0


@njit(cache=CACHE, nogil=True)
def _mean_diagonal(gram, size, rank):  # type: ignore[no-untyped-def]
    """Of the system of a row, or of its dual, which has the same trace."""
    trace = 0.0
    for r in range(size):
        trace += gram[r, r]
    return trace / rank


@njit(cache=CACHE, nogil=True)
def _raise_diagonal(gram, size, amount):  # type: ignore[no-untyped-def]
    for r in range(size):
        gram[r, r] += amount


@njit(cache=CACHE, nogil=True)
def _solve_primal(entries, begin, count, keep, ridge, lift, mean, space, tile):  # type: ignore[no-untyped-def]
    """Solve for a row in place of ``space.right``; whether there is a solution, and whether more lift may help."""
    rank, added, first = space.right.shape[0], 0, True
    for start in range(0, count, space.block):
        many = min(space.block, count - start)
        rows = space.rows[start * space.stride if keep else 0 :]
        _add_block(entries, begin + start, many, rows, space.gram_32, space.right_32, space, tile)
        added += many
        if added + space.block > MAX_SHORT_SUM:
            _move_sums(space, first)
            added, first = 0, False
    if added or first:
        _move_sums(space, first)
    share = _mean_diagonal(space.gram, rank, rank)
    if not np.isfinite(share):
        return False, False
    _raise_diagonal(space.gram, rank, ridge + lift * share + TINY)
    if mean.shape[0]:
        for r in range(rank):
            space.right[r] += ridge * mean[r]
    return solve_positive(space.gram, rank, space.right, space.numbers), share > 0.0


@njit(cache=CACHE, nogil=True)
def _solve_dual(entries, begin, count, ridge, lift, mean, space, tile):  # type: ignore[no-untyped-def]
    """As :func:`_solve_primal`, for a row of few entries.

    With rows and targets times the roots of the weights, s on the diagonal, and q = ridge / s · mean, the solution
    (hᵀ h + s I)⁻¹ (hᵀ y + ridge mean) is q + hᵀ (h hᵀ + s I)⁻¹ (y − h q).
    """
    stride, rank, gram, right, dual = space.stride, space.right.shape[0], space.gram, space.right, space.dual
    gather(space.rows, stride, begin, count, entries, entries.targets)
    _pick(entries.targets, entries.order, begin, count, space.targets)
    rows = space.rows
    if entries.weights.shape[0]:
        rows = space.scaled
        _pick(entries.weights, entries.order, begin, count, space.weights)
        for e in range(count):
            space.weights[e] = np.sqrt(space.weights[e])
            space.targets[e] *= space.weights[e]
        _scale(space.rows, space.weights, count, stride, rows)
    add_inner(rows, count, stride, rank, tile, space.gram_32, space.numbers)
    for d in range(count):
        dual[d] = space.targets[d]
        for e in range(d + 1):
            gram[d, e] = space.gram_32[d, e]
            space.gram_32[d, e] = 0.0
    share = _mean_diagonal(gram, count, rank)
    if not np.isfinite(share):
        return False, False
    raised = ridge + lift * share + TINY
    _raise_diagonal(gram, count, raised)
    for r in range(rank):
        right[r] = ridge / raised * mean[r] if mean.shape[0] else 0.0
    if mean.shape[0]:
        for e in range(count):
            for r in range(rank):
                dual[e] -= rows[e * stride + r] * right[r]
    if count and not solve_positive(gram, count, dual, space.numbers):
        return False, share > 0.0
    for e in range(count):
        for r in range(rank):
            right[r] += dual[e] * rows[e * stride + r]
    return True, False


@njit(cache=CACHE, nogil=True)
def _evaluate(entries, begin, count, keep, row, values, space):  # type: ignore[no-untyped-def]
    """h_eᵀ a_i of the entries of a row."""
    found = space.targets
    for start in range(0, count, space.block):
        many = min(space.block, count - start)
        rows = space.rows[start * space.stride if keep else 0 :]
        if not keep:
            gather(rows, space.stride, begin + start, many, entries, values)
        for e in range(many):
            found[e] = 0.0
        add_dots(rows, row, many, space.stride, row.shape[0], found, space.numbers)
        for e in range(many):
            values[entries.order[begin + start + e]] = found[e]


@njit(cache=CACHE, nogil=True)
def _solve_run(first, last, entries, ridge, prior, table, values, tile):  # type: ignore[no-untyped-def]
    """Solve some rows, and evaluate their entries if ``values`` is not empty."""
    rank, uniform, evaluate = table.shape[1], entries.weights.shape[0] == 0, values.shape[0] > 0
    space = _space(rank, entries.width, uniform, KEPT_BYTES if evaluate else 0)
    found = np.empty(rank, np.float32)
    for row in range(first, last):
        begin, count = entries.starts[row], entries.starts[row + 1] - entries.starts[row]
        mean = prior[row] if prior.shape[0] else prior[:0, 0]
        few = count < DUAL_SHARE * rank
        if few and not uniform:  # there is no root of a weight below zero
            for e in range(begin, begin + count):
                few = few and entries.weights[entries.order[e]] >= 0.0
        keep = few or count * space.stride <= space.rows.shape[0]
        for lift in LIFTS:
            if few:
                solved, again = _solve_dual(entries, begin, count, ridge[row], lift, mean, space, tile)
            else:
                solved, again = _solve_primal(entries, begin, count, keep, ridge[row], lift, mean, space, tile)
            if solved or not again:
                break
        for r in range(rank):
            found[r] = space.right[r] if solved else mean[r] if mean.shape[0] else 0.0
            table[row, r] = found[r]
        if evaluate:
            _evaluate(entries, begin, count, keep, found, values, space)


@njit(cache=CACHE, nogil=True)
def _systems_run(first, last, entries, gram, right, tile):  # type: ignore[no-untyped-def]
    """Systems of some rows, added to zeros."""
    rank = right.shape[1]
    space = _space(rank, entries.width, entries.weights.shape[0] == 0, 0)
    for row in range(first, last):
        for start in range(entries.starts[row], entries.starts[row + 1], space.block):
            many = min(space.block, entries.starts[row + 1] - start)
            _add_block(entries, start, many, space.rows, gram[row], right[row], space, tile)
        for r in range(rank):
            for c in range(r):
                gram[row, c, r] = gram[row, r, c]


@njit(parallel=True, cache=CACHE, nogil=True)
def _solve(runs, entries, ridge, prior, table, values, tile):  # type: ignore[no-untyped-def]
    for run in prange(runs.shape[0] - 1):
        _solve_run(runs[run], runs[run + 1], entries, ridge, prior, table, values, tile)


@njit(parallel=True, cache=CACHE, nogil=True)
def _systems(runs, entries, gram, right, tile):  # type: ignore[no-untyped-def]
    for run in prange(runs.shape[0] - 1):
        _systems_run(runs[run], runs[run + 1], entries, gram, right, tile)
