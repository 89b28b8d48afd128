"""The row solves of :mod:`jointensor.kernels.rows` on the CPU, compiled by numba.

Rows in parallel; within a row, Khatri-Rao rows are gathered in blocks and multiplied by BLAS.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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

SHARE = 16
"""Rows are handed to threads in runs of about this many per thread, so that none waits for the longest."""


def solve_rows_numba(
    view: ModeView,
    others: Sequence[Tensor],
    targets: Tensor,
    weights: Tensor | None,
    ridge: Tensor,
    table: Tensor,
    *,
    evaluate: bool = True,
) -> Tensor:
    """As :func:`jointensor.kernels.rows.solve_rows`, for tensors on the CPU in 32 bits."""
    threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(threads)
    starts = view.starts.numpy()
    values = np.empty(len(targets) if evaluate else 0, dtype=np.float32)
    stacked, offsets = _stack(others, table.shape[1])
    weighed = np.ones(1, np.float32) if weights is None else weights.detach().numpy()
    with _controller().limit(limits=1, user_api="blas"):  # every thread calls BLAS for itself
        _solve(
            view.order.numpy(), starts, view.columns.numpy(), stacked, offsets, targets.detach().numpy(), weighed,
            ridge.numpy(), table.detach().numpy(), values, _runs(starts, threads * SHARE),
        )  # fmt: skip
    return torch.from_numpy(values)


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Looks for BLAS libraries once: that takes longer than a small solve."""
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
    wanted = np.linspace(0, work[-1], count + 1)
    edges = np.searchsorted(work, wanted)
    edges[0], edges[-1] = 0, len(starts) - 1
    return np.unique(edges).astype(np.int64)


@njit(parallel=True, cache=True, nogil=True)
def _solve(order, starts, columns, stacked, offsets, targets, weights, ridge, table, values, runs):  # type: ignore[no-untyped-def]
    rank = table.shape[1]
    modes = columns.shape[0]
    uniform = weights.shape[0] == 1 and targets.shape[0] != 1
    for run in prange(runs.shape[0] - 1):
        h = np.empty((BLOCK, rank + 1), np.float32)  # the last column holds y: one product gives both sides
        scaled = h if uniform else np.empty((BLOCK, rank + 1), np.float32)
        product = np.empty((rank + 1, rank + 1), np.float32)
        gram = np.empty((rank, rank), np.float64)
        right = np.empty(rank, np.float64)
        for row in range(runs[run], runs[run + 1]):
            begin, end = starts[row], starts[row + 1]
            gram[:] = 0.0
            right[:] = 0.0
            for block in range(begin, end, BLOCK):
                many = min(BLOCK, end - block)
                _gather(h, block, many, modes, columns, stacked, offsets, rank)
                for e in range(many):
                    h[e, rank] = targets[order[block + e]]
                if not uniform:
                    for e in range(many):
                        w = weights[order[block + e]]
                        for r in range(rank + 1):
                            scaled[e, r] = w * h[e, r]
                np.dot(scaled[:many].T, h[:many], product)
                for r in range(rank):
                    right[r] += product[r, rank]
                    for c in range(rank):
                        gram[r, c] += product[r, c]
            _cholesky(gram, right, ridge[row])
            for r in range(rank):
                table[row, r] = right[r]
            if values.shape[0] == 0:
                continue
            for block in range(begin, end, BLOCK):
                many = min(BLOCK, end - block)
                if end - begin > BLOCK:
                    _gather(h, block, many, modes, columns, stacked, offsets, rank)
                _evaluate(h, table[row], order[block : block + many], values)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _evaluate(h, row, order, values):  # type: ignore[no-untyped-def]
    """h_eᵀ a_i of some sorted entries; the sums may be taken in any order, so that they run in parallel lanes."""
    for e in range(order.shape[0]):
        value = np.float32(0.0)
        for r in range(row.shape[0]):
            value += h[e, r] * row[r]
        values[order[e]] = value


@njit(cache=True, nogil=True)
def _gather(h, block, many, modes, columns, stacked, offsets, rank):  # type: ignore[no-untyped-def]
    """Khatri-Rao rows of some sorted entries; ones where there are no other modes. Up to three modes in one go."""
    if modes == 0:
        h[:many, :rank] = 1.0
    elif modes == 1:
        for e in range(many):
            a = stacked[offsets[0] + columns[0, block + e]]
            for r in range(rank):
                h[e, r] = a[r]
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


@njit(cache=True, nogil=True)
def _cholesky(gram, right, ridge):  # type: ignore[no-untyped-def]
    """Solve ``(gram + ridge I) x = right`` in place of ``right``; zero where there is no solution."""
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
            return
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
            return
