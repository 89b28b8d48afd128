"""Loops over entries that are in memory for a moment only: what g leaves of them, and the systems of their rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.numba_rows import CACHE, row_systems_numba
from jointensor.kernels.rows import ModeView
from jointensor.kernels.terms import Biases, Rows, Systems, Terms, add_sorted
from jointensor.threads import in_threads

IN_CACHE = 1 << 22
"""Bytes of a table's systems up to which entries are added in the order they come; for larger ones they are sorted."""

APIECE = 1 << 26
"""Bytes that the sums of all threads may take together before fewer threads are used."""


def subtract_terms_numba(terms: Terms, indices: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    """As :func:`jointensor.kernels.terms.subtract_terms`."""
    constant = np.float32(terms.constant)
    if np.all(terms.ranks == 1) and np.all(np.diff(terms.firsts) == 1):
        _in_threads(
            len(values),
            lambda part, _: _subtract_numbers(
                indices[part], values[part], constant, terms.numbers, terms.modes, terms.offsets, terms.signs
            ),
        )
        return
    _in_threads(
        len(values),
        lambda part, _: _subtract(
            indices[part], values[part], constant, terms.numbers, terms.ranks, terms.firsts, terms.modes,
            terms.offsets, terms.sums, terms.signs,
        ),
    )  # fmt: skip


def add_systems_numba(rows: Rows, indices: NDArray[np.int32], wanted: NDArray[np.float32], systems: Systems) -> None:
    """As :func:`jointensor.kernels.terms.add_systems`.

    Small systems stay in the cache, and every thread adds to its own. Entries of large ones are sorted by row first.
    """
    if not rows.all_rows or 8 * (systems.gram.numel() + systems.right.numel()) > IN_CACHE:
        add_sorted(rows, _sorted_view, row_systems_numba, torch.from_numpy(indices), torch.from_numpy(wanted), systems)
        return
    block, threads, (count, rank) = rows.block, torch.get_num_threads(), systems.right.shape
    others = Terms(0.0, [type(block)((block.modes[m],), (block.tables[m],)) for m in rows.others])
    gram, right = np.zeros((threads, count, rank, rank)), np.zeros((threads, count, rank))
    scatter, squares = _scatter_of(rank), np.zeros(threads)

    def add(part: slice, thread: int) -> None:
        squares[thread] = scatter(
            indices[part], wanted[part], block.modes[rows.k], others.modes, others.numbers, others.offsets, block.sums,
            gram[thread], right[thread],
        )  # fmt: skip

    _in_threads(len(wanted), add, threads)
    systems.gram.add_(torch.from_numpy(gram.sum(axis=0)))
    systems.right.add_(torch.from_numpy(right.sum(axis=0)))
    systems.squares.add_(float(squares.sum()))


def add_biases_numba(
    biases: Biases, mode: int, block: tuple[NDArray[np.int32], NDArray[np.float32]], sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """As :func:`jointensor.kernels.terms.add_biases`."""
    threads = max(1, min(torch.get_num_threads(), APIECE // max(sums.nbytes, 1)))
    added, squares = np.zeros((threads, *sums.shape)), np.zeros((threads, sums.shape[1]))
    indices, values = block
    _in_threads(
        len(values),
        lambda part, thread: _add_biases(
            indices[part], values[part], biases.mean, biases.effects, biases.starts, mode, added[thread],
            squares[thread],
        ),
        threads,
    )  # fmt: skip
    sums += added.sum(axis=0)
    return squares.sum(axis=0)


def _in_threads(count: int, loop: Callable[[slice, int], None], threads: int | None = None) -> None:
    """Let every thread run a loop over its share of the entries. (Numba's own threads take far longer to compile.)"""
    threads = torch.get_num_threads() if threads is None else threads
    edges = [k * count // threads for k in range(threads + 1)]
    shares = [(slice(*edge), k) for k, edge in enumerate(pairwise(edges))]
    if threads == 1:
        loop(*shares[0])
        return
    in_threads(lambda share: loop(*share), shares)


def _sorted_view(indices: Tensor, mode: int, others: list[int], size: int) -> ModeView:
    """As :meth:`ModeView.of`, by counting."""
    given = indices.numpy()
    order, starts = np.empty(len(given), np.int32), np.zeros(size + 1, np.int64)
    columns, wanted = np.empty((len(others), len(given)), np.int32), np.array(others, np.int64)
    _order(given, mode, order, starts)
    _in_threads(len(given), lambda part, _: _columns(given, wanted, order[part], columns[:, part]))
    return ModeView(torch.from_numpy(order), torch.from_numpy(starts), torch.from_numpy(columns))


@njit(cache=CACHE, nogil=True, fastmath={"reassoc", "contract"}, inline="always")
def _product(numbers, a, b, c, d, modes, rank):  # type: ignore[no-untyped-def]
    """Σ_r of the product of two, three or four rows."""
    total = np.float32(0.0)
    if modes == 2:
        for r in range(rank):
            total += numbers[a + r] * numbers[b + r]
    elif modes == 3:
        for r in range(rank):
            total += numbers[a + r] * numbers[b + r] * numbers[c + r]
    else:
        for r in range(rank):
            total += numbers[a + r] * numbers[b + r] * numbers[c + r] * numbers[d + r]
    return total


@njit(cache=CACHE, nogil=True, fastmath={"reassoc", "contract"})
def _subtract(indices, values, constant, numbers, ranks, firsts, modes, offsets, sums, signs):  # type: ignore[no-untyped-def]
    widest = 1
    for rank in ranks:
        widest = max(widest, rank)
    one = np.empty(widest, np.float32)
    for e in range(values.shape[0]):
        value = constant
        for t in range(ranks.shape[0]):
            rank, begin, end = ranks[t], firsts[t], firsts[t + 1]
            row = offsets[begin] + rank * np.int64(indices[e, modes[begin]])
            if rank == 1 and end - begin == 1:
                value += signs[t] * numbers[row]
                continue
            if end - begin <= 4 and not sums[t]:  # the usual numbers of modes, in one go
                second = offsets[begin + 1] + rank * np.int64(indices[e, modes[begin + 1]])
                third = fourth = row
                if end - begin > 2:
                    third = offsets[begin + 2] + rank * np.int64(indices[e, modes[begin + 2]])
                if end - begin > 3:
                    fourth = offsets[begin + 3] + rank * np.int64(indices[e, modes[begin + 3]])
                value += signs[t] * _product(numbers, row, second, third, fourth, end - begin, rank)
                continue
            for r in range(rank):
                one[r] = signs[t] * numbers[row + r]
            if not sums[t]:
                for m in range(begin + 1, end - 1):
                    row = offsets[m] + rank * np.int64(indices[e, modes[m]])
                    for r in range(rank):
                        one[r] *= numbers[row + r]
                row = offsets[end - 1] + rank * np.int64(indices[e, modes[end - 1]])
                for r in range(rank):
                    value += one[r] * numbers[row + r]
                continue
            for m in range(begin + 1, end):  # Σ_{n<m} ⟨v_n, v_m⟩, with the sum of those before
                row = offsets[m] + rank * np.int64(indices[e, modes[m]])
                for r in range(rank):
                    value += one[r] * numbers[row + r]
                    one[r] += signs[t] * numbers[row + r]
        values[e] -= value


@njit(cache=CACHE, nogil=True)
def _subtract_numbers(indices, values, constant, numbers, modes, offsets, signs):  # type: ignore[no-untyped-def]
    """The same where every term is one number."""
    for e in range(values.shape[0]):
        value = constant
        for t in range(modes.shape[0]):
            value += signs[t] * numbers[offsets[t] + indices[e, modes[t]]]
        values[e] -= value


@lru_cache(maxsize=64)
def _scatter_of(rank):  # type: ignore[no-untyped-def]
    """The loop that adds entries to the systems of their rows, for a rank that is known when it is compiled."""

    @njit(cache=CACHE, nogil=True, fastmath={"reassoc", "contract"})
    def scatter(indices, wanted, mode, modes, numbers, offsets, sums, gram, right):  # type: ignore[no-untyped-def]
        h = np.empty(rank, np.float32)
        total = 0.0
        for e in range(wanted.shape[0]):
            y, row = wanted[e], indices[e, mode]
            start = offsets[0] + rank * np.int64(indices[e, modes[0]])
            for r in range(rank):
                h[r] = numbers[start + r]
            for m in range(1, modes.shape[0]):
                start = offsets[m] + rank * np.int64(indices[e, modes[m]])
                if sums:
                    for r in range(rank):
                        h[r] += numbers[start + r]
                else:
                    for r in range(rank):
                        h[r] *= numbers[start + r]
            for r in range(rank):
                right[row, r] += y * h[r]
                for c in range(rank):
                    gram[row, r, c] += h[r] * h[c]
            total += y * y
        return total

    return scatter


@njit(cache=CACHE, nogil=True)
def _add_biases(indices, values, mean, effects, starts, mode, sums, squares):  # type: ignore[no-untyped-def]
    trials = squares.shape[0]
    left = np.empty(trials)
    for e in range(values.shape[0]):
        left[:] = values[e] - mean
        for n in range(indices.shape[1]):
            row = starts[n] + indices[e, n]
            for k in range(trials):
                left[k] -= effects[row, k]
        row = indices[e, mode]
        for k in range(trials):
            sums[row, k] += left[k]
            squares[k] += left[k] * left[k]


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


@njit(cache=CACHE, nogil=True)
def _columns(indices, others, order, columns):  # type: ignore[no-untyped-def]
    for e in range(order.shape[0]):
        for m in range(others.shape[0]):
            columns[m, e] = indices[order[e], others[m]]
