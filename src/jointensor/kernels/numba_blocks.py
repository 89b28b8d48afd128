"""Loops over entries that are in memory for a moment only: what g leaves of them, and their order by one mode."""

from __future__ import annotations

import numba
import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.numba_rows import CACHE
from jointensor.kernels.rows import ModeView
from jointensor.kernels.terms import Terms

STRETCH = 4096
"""Entries that a thread takes at a time."""


def subtract_terms_numba(terms: Terms, indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    """As :func:`jointensor.kernels.terms.subtract_terms`: take what the terms say from the values, in place."""
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    _subtract(
        indices, values, np.float32(terms.constant), terms.numbers, terms.ranks, terms.firsts, terms.modes,
        terms.offsets, terms.sums,
    )  # fmt: skip


def sorted_view_numba(indices: NDArray[np.int32], mode: int, others: tuple[int, ...], size: int) -> ModeView:
    """As :func:`jointensor.kernels.terms.sorted_view`, by counting."""
    order = np.empty(len(indices), np.int32)
    starts = np.zeros(size + 1, np.int64)
    columns = np.empty((len(others), len(indices)), np.int32)
    _order(indices, mode, order, starts)
    _columns(indices, np.array(others, np.int64), order, columns)
    return ModeView(*(torch.from_numpy(one) for one in (order, starts, columns)))


@njit(parallel=True, cache=CACHE, nogil=True, fastmath={"reassoc", "contract"})
def _subtract(indices, values, constant, numbers, ranks, firsts, modes, offsets, sums):  # type: ignore[no-untyped-def]
    count = values.shape[0]
    widest = 1
    for rank in ranks:
        widest = max(widest, rank)
    for stretch in prange((count + STRETCH - 1) // STRETCH):
        one = np.empty(widest, np.float32)
        for e in range(stretch * STRETCH, min(count, (stretch + 1) * STRETCH)):
            value = constant
            for t in range(ranks.shape[0]):
                rank, begin, end = ranks[t], firsts[t], firsts[t + 1]
                row = offsets[begin] + rank * np.int64(indices[e, modes[begin]])
                if rank == 1 and end - begin == 1:
                    value += numbers[row]
                    continue
                for r in range(rank):
                    one[r] = numbers[row + r]
                if not sums[t]:
                    for m in range(begin + 1, end):
                        row = offsets[m] + rank * np.int64(indices[e, modes[m]])
                        for r in range(rank):
                            one[r] *= numbers[row + r]
                    for r in range(rank):
                        value += one[r]
                    continue
                for m in range(begin + 1, end):  # Σ_{n<m} ⟨v_n, v_m⟩, with the sum of those before
                    row = offsets[m] + rank * np.int64(indices[e, modes[m]])
                    for r in range(rank):
                        value += one[r] * numbers[row + r]
                        one[r] += numbers[row + r]
            values[e] -= value


@njit(cache=CACHE, nogil=True)
def _order(indices, mode, order, starts):  # type: ignore[no-untyped-def]
    """Counting sort by one column."""
    for e in range(indices.shape[0]):
        starts[indices[e, mode] + 1] += 1
    for i in range(1, starts.shape[0]):
        starts[i] += starts[i - 1]
    place = starts[:-1].copy()
    for e in range(indices.shape[0]):
        row = indices[e, mode]
        order[place[row]] = e
        place[row] += 1


@njit(parallel=True, cache=CACHE, nogil=True)
def _columns(indices, others, order, columns):  # type: ignore[no-untyped-def]
    for e in prange(order.shape[0]):
        for m in range(others.shape[0]):
            columns[m, e] = indices[order[e], others[m]]
