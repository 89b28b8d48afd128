"""The row solves of :mod:`jointensor.kernels.rows` on the CPU, compiled by numba.

Rows in parallel; within a row, Khatri-Rao rows are gathered in blocks and multiplied by BLAS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numba
import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from jointensor.kernels.rows import ModeView

BLOCK = 512
"""Entries whose Khatri-Rao rows are multiplied at a time; they stay in the cache."""

MAX_KEPT = 4096
"""Rows of up to so many entries keep their Khatri-Rao rows until they are evaluated; longer ones form them again."""

RUNS_PER_THREAD = 16
"""Rows are cut into this many runs per thread, so that no thread waits long for the slowest."""


def _can_cache() -> bool:
    """Whether numba finds a folder for compiled code; without one it compiles in every process."""
    try:
        njit(cache=True)(_runs)
    except RuntimeError:
        return False
    return True


def uncompiled() -> str | None:
    """A line for the user where the solver has to be compiled first."""
    place = Path(str(_solve.stats.cache_path)) if CACHE else None
    if place is None:
        return "compiling the exact solver for this process: there is no folder to keep it in"
    if any(place.glob("numba_rows._solve-*.nbi")):
        return None
    return f"compiling the exact solver, once on this machine; it is kept in {place}"


def solve_rows_numba(
    view: ModeView,
    others: Sequence[Tensor],
    targets: Tensor,
    weights: Tensor | None,
    ridge: Tensor,
    table: Tensor,
    *,
    evaluate: bool = True,
    prior: Tensor | None = None,
    sums: bool = False,
) -> Tensor:
    """As :func:`jointensor.kernels.rows.solve_rows`, for tensors on the CPU in 32 bits."""
    threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    starts = view.starts.numpy()
    values = np.empty(len(targets) if evaluate else 0, dtype=np.float32)
    stacked, offsets = _stack(others, table.shape[1])
    weighed = np.ones(1, np.float32) if weights is None else weights.detach().numpy()
    mean = np.zeros((0, table.shape[1]), np.float32) if prior is None else prior.detach().numpy()
    with blas_alone():
        _solve(
            view.order.numpy(), starts, view.columns.numpy(), stacked, offsets, targets.detach().numpy(), weighed,
            ridge.numpy(), table.detach().numpy(), values, _runs(starts, threads * RUNS_PER_THREAD), mean, sums,
        )  # fmt: skip
    return torch.from_numpy(values)


def row_systems_numba(
    view: ModeView, others: Sequence[Tensor], targets: Tensor, weights: Tensor | None, rank: int, *, sums: bool = False
) -> tuple[Tensor, Tensor]:
    """As :func:`jointensor.kernels.rows.row_systems`, for tensors on the CPU in 32 bits."""
    threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    starts = view.starts.numpy()
    stacked, offsets = _stack(others, rank)
    weighed = np.ones(1, np.float32) if weights is None else weights.detach().numpy()
    gram = np.zeros((len(starts) - 1, rank, rank), np.float32)
    right = np.zeros((len(starts) - 1, rank), np.float32)
    with blas_alone():
        _systems(
            view.order.numpy(), starts, view.columns.numpy(), stacked, offsets, targets.detach().numpy(), weighed,
            gram, right, _runs(starts, threads * RUNS_PER_THREAD), sums,
        )  # fmt: skip
    return torch.from_numpy(gram), torch.from_numpy(right)


@contextmanager
def blas_alone() -> Iterator[None]:
    """As many threads as torch has, each of which calls BLAS for itself."""
    given = torch.get_num_threads()
    numba.set_num_threads(min(given, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        if torch.get_num_threads() != given:  # numba, starting its threads, may set those of torch's OpenMP as well
            torch.set_num_threads(given)


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Finds BLAS libraries once: that takes longer than a small solve."""
    return ThreadpoolController()


def _stack(others: Sequence[Tensor], rank: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All other tables one below the other, and where each begins: one array, whatever the number of modes."""
    if not others:
        return np.zeros((0, rank), np.float32), np.zeros(0, np.int64)
    sizes = [len(other) for other in others]
    return torch.cat([other.detach() for other in others]).numpy(), np.concatenate([[0], np.cumsum(sizes)[:-1]])


def _runs(starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Boundaries of runs of rows with about equally many entries."""
    work = starts + np.arange(len(starts))  # a row costs something even without entries
    edges = np.searchsorted(work, np.linspace(0, work[-1], count + 1))
    edges[0], edges[-1] = 0, len(starts) - 1
    return np.unique(edges).astype(np.int64)


CACHE = _can_cache()


@njit(cache=CACHE, nogil=True)
def _products(h, scaled, y, block, order, targets, weights, uniform, product, side):  # type: ignore[no-untyped-def]
    """Σ w h hᵀ and Σ w h y of some sorted entries, whose h may have room for y as one more column."""
    many, width = h.shape
    rank = side.shape[0]
    for e in range(many):
        y[e] = targets[order[block + e]]
    if width > rank:
        for e in range(many):
            h[e, rank] = y[e]
    if not uniform:
        for e in range(many):
            w = weights[order[block + e]]
            for r in range(width):
                scaled[e, r] = w * h[e, r]
    np.dot(scaled.T, h, product)
    if width > rank:
        side[:] = product[:rank, rank]
    else:
        np.dot(y, scaled, side)


@njit(parallel=True, cache=CACHE, nogil=True)
def _solve(order, starts, columns, stacked, offsets, targets, weights, ridge, table, values, runs, prior, sums):  # type: ignore[no-untyped-def]
    rank = table.shape[1]
    modes = columns.shape[0]
    width = rank if rank % 4 == 0 else rank + 1  # y is one more column, where BLAS has room in its tiles of four
    uniform = weights.shape[0] == 1 and targets.shape[0] != 1
    for run in prange(runs.shape[0] - 1):
        kept = np.empty((MAX_KEPT, width), np.float32)
        scaled = np.empty((0 if uniform else BLOCK, width), np.float32)
        product = np.empty((width, width), np.float32)
        y = np.empty(BLOCK, np.float32)
        side = np.empty(rank, np.float32)
        gram = np.empty((rank, rank), np.float64)
        right = np.empty(rank, np.float64)
        for row in range(runs[run], runs[run + 1]):
            begin, end = starts[row], starts[row + 1]
            keep = end - begin <= MAX_KEPT
            gram[:] = 0.0
            right[:] = 0.0
            for block in range(begin, end, BLOCK):
                many = min(BLOCK, end - block)
                first = block - begin if keep else 0
                h = kept[first : first + many]
                _gather(h, block, many, modes, columns, stacked, offsets, rank, sums)
                left = h if uniform else scaled[:many]
                _products(h, left, y[:many], block, order, targets, weights, uniform, product, side)
                for r in range(rank):
                    right[r] += side[r]
                    for c in range(rank):
                        gram[r, c] += product[r, c]
            if prior.shape[0]:
                for r in range(rank):
                    right[r] += ridge[row] * prior[row, r]
            solved = _cholesky(gram, right, ridge[row])
            for r in range(rank):
                table[row, r] = right[r] if solved or not prior.shape[0] else prior[row, r]
            if values.shape[0] == 0:
                continue
            for block in range(begin, end, BLOCK):
                many = min(BLOCK, end - block)
                first = block - begin if keep else 0
                h = kept[first : first + many]
                if not keep:
                    _gather(h, block, many, modes, columns, stacked, offsets, rank, sums)
                _evaluate(h, table[row], order[block : block + many], values)


@njit(parallel=True, cache=CACHE, nogil=True)
def _systems(order, starts, columns, stacked, offsets, targets, weights, gram, right, runs, sums):  # type: ignore[no-untyped-def]
    rank = right.shape[1]
    width = rank if rank % 4 == 0 else rank + 1  # as above
    uniform = weights.shape[0] == 1 and targets.shape[0] != 1
    for run in prange(runs.shape[0] - 1):
        rows = np.empty((BLOCK, width), np.float32)
        scaled = np.empty((0 if uniform else BLOCK, width), np.float32)
        y = np.empty(BLOCK, np.float32)
        product = np.empty((width, width), np.float32)
        side = np.empty(rank, np.float32)
        for row in range(runs[run], runs[run + 1]):
            for block in range(starts[row], starts[row + 1], BLOCK):
                many = min(BLOCK, starts[row + 1] - block)
                h = rows[:many]
                _gather(h, block, many, columns.shape[0], columns, stacked, offsets, rank, sums)
                left = h if uniform else scaled[:many]
                _products(h, left, y[:many], block, order, targets, weights, uniform, product, side)
                for r in range(rank):
                    right[row, r] += side[r]
                    for c in range(rank):
                        gram[row, r, c] += product[r, c]


@njit(cache=CACHE, nogil=True, fastmath={"reassoc", "contract"})
def _evaluate(h, row, order, values):  # type: ignore[no-untyped-def]
    """h_eᵀ a_i of some sorted entries; the sums may be taken in any order, so that they run in parallel lanes."""
    for e in range(order.shape[0]):
        value = np.float32(0.0)
        for r in range(row.shape[0]):
            value += h[e, r] * row[r]
        values[order[e]] = value


@njit(cache=CACHE, nogil=True)
def _gather(h, block, many, modes, columns, stacked, offsets, rank, sums):  # type: ignore[no-untyped-def]
    """Khatri-Rao rows of some sorted entries; ones where there are no other modes. Up to three modes in one go."""
    if modes == 0:
        h[:many, :rank] = 1.0
    elif modes == 1:
        for e in range(many):
            a = stacked[offsets[0] + columns[0, block + e]]
            for r in range(rank):
                h[e, r] = a[r]
    elif sums:
        h[:many, :rank] = 0.0
        for m in range(modes):
            for e in range(many):
                a = stacked[offsets[m] + columns[m, block + e]]
                for r in range(rank):
                    h[e, r] += a[r]
    elif modes == 2:
        for e in range(many):
            a, b = stacked[offsets[0] + columns[0, block + e]], stacked[offsets[1] + columns[1, block + e]]
            for r in range(rank):
                h[e, r] = a[r] * b[r]
    else:
        for e in range(many):
            a, b = stacked[offsets[0] + columns[0, block + e]], stacked[offsets[1] + columns[1, block + e]]
            c = stacked[offsets[2] + columns[2, block + e]]
            for r in range(rank):
                h[e, r] = a[r] * b[r] * c[r]
        for m in range(3, modes):
            for e in range(many):
                a = stacked[offsets[m] + columns[m, block + e]]
                for r in range(rank):
                    h[e, r] *= a[r]


@njit(cache=CACHE, nogil=True)
def _cholesky(gram, right, ridge):  # type: ignore[no-untyped-def]
    """Solve ``(gram + ridge I) x = right`` in place of ``right``; zero, and false, where there is no solution."""
    rank = right.shape[0]
    trace = 0.0
    for r in range(rank):
        trace += gram[r, r]
    lift = ridge + 1e-6 * trace / rank + 1e-19
    for r in range(rank):
        gram[r, r] += lift
    for c in range(rank):
        pivot = gram[c, c]
        for k in range(c):
            pivot -= gram[c, k] * gram[c, k]
        if not pivot > 0.0:
            right[:] = 0.0
            return False
        pivot = np.sqrt(pivot)
        gram[c, c] = pivot
        for r in range(c + 1, rank):
            entry = gram[r, c]
            for k in range(c):
                entry -= gram[r, k] * gram[c, k]
            gram[r, c] = entry / pivot
    for r in range(rank):
        for k in range(r):
            right[r] -= gram[r, k] * right[k]
        right[r] /= gram[r, r]
    for r in range(rank - 1, -1, -1):
        for k in range(r + 1, rank):
            right[r] -= gram[k, r] * right[k]
        right[r] /= gram[r, r]
    for r in range(rank):
        if not np.isfinite(right[r]):
            right[:] = 0.0
            return False
    return True
