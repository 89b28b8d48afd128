"""Loops over chunks of entries, compiled by numba: residuals of g, sums by label, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.rows import ModeView
from jointensor.kernels.terms import Biases, Terms
from jointensor.threads import in_threads

MAX_SUMS_BYTES = 1 << 26
"""Bytes that the sums of all threads may take together; fewer threads are used where they would take more."""


def subtract_terms_numba(terms: Terms, indices: Tensor, values: Tensor) -> None:
    """As :func:`jointensor.kernels.terms.subtract_terms`."""
    cells, left = indices.numpy(), values.numpy()
    numbers = [term for term in terms.terms if len(term.modes) == 1 and term.tables[0].shape[1] == 1]
    single = _pack([(term.modes[0], term.tables[0]) for term in numbers], 1)
    signs = np.array([term.sign for term in numbers], np.float32)
    packed = [
        (*_pack(list(zip(term.modes, term.tables, strict=True)), term.tables[0].shape[1]), term)
        for term in terms.terms
        if term not in numbers
    ]

    def subtract(part: slice, _: int) -> None:
        _subtract_numbers(cells[part], left[part], np.float32(terms.constant), *single, signs)
        for modes, offsets, rows, term in packed:
            loop = _subtract_pairs if term.sums else _subtract_products
            loop(cells[part], left[part], modes, offsets, rows, np.float32(term.sign))

    _in_threads(len(values), subtract)


def _pack(tables: Sequence[tuple[int, Tensor]], rank: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """The modes of tables, where each begins, and all of their rows one below the other."""
    modes = np.array([mode for mode, _ in tables], np.int64)
    offsets = np.cumsum([0, *(len(table) for _, table in tables)])[:-1].astype(np.int64)
    rows = [np.zeros((0, rank), np.float32), *(table.detach().numpy() for _, table in tables)]
    return modes, offsets, np.concatenate(rows)


def add_numbers_numba(indices: Tensor, mode: int, targets: Tensor, sums: Tensor) -> None:
    """As :func:`jointensor.kernels.terms.add_numbers`."""
    threads = max(1, min(torch.get_num_threads(), MAX_SUMS_BYTES // max(sums.nbytes, 1)))
    cells, numbers, added = indices.numpy(), targets.numpy(), np.zeros((threads, len(sums)))
    _in_threads(
        len(numbers), lambda part, thread: _add_numbers(cells[part], mode, numbers[part], added[thread]), threads
    )
    sums += torch.from_numpy(added.sum(axis=0))


def add_biases_numba(
    biases: Biases, mode: int, block: tuple[NDArray[np.int32], NDArray[np.float32]], sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """As :func:`jointensor.kernels.terms.add_biases`."""
    threads = max(1, min(torch.get_num_threads(), MAX_SUMS_BYTES // max(sums.nbytes, 1)))
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


def sorted_view(indices: Tensor, mode: int, others: Sequence[int], size: int) -> ModeView:
    """As :meth:`ModeView.of`, by counting."""
    given = indices.numpy()
    order, starts = np.empty(len(given), np.int32), np.zeros(size + 1, np.int64)
    columns, modes = np.empty((len(others), len(given)), np.int32), np.array(others, np.int64)
    _order(given, mode, order, starts)
    _in_threads(len(given), lambda part, _: _columns(given, modes, order[part], columns[:, part]))
    return ModeView(torch.from_numpy(order), torch.from_numpy(starts), torch.from_numpy(columns))


@njit(cache=CACHE, nogil=True)
def _subtract_numbers(indices, values, constant, modes, offsets, rows, signs):  # type: ignore[no-untyped-def]
    for e in range(values.shape[0]):
        value = constant
        for t in range(modes.shape[0]):
            value += signs[t] * rows[offsets[t] + indices[e, modes[t]], 0]
        values[e] -= value


@njit(cache=CACHE, nogil=True, fastmath={"reassoc", "contract"})
def _subtract_products(indices, values, modes, offsets, rows, sign):  # type: ignore[no-untyped-def]
    """Σ_r of a product of rows; the usual numbers of modes in one go, and sums in any order, so that lanes are used."""
    rank, count = rows.shape[1], modes.shape[0]
    product = np.empty(rank, np.float32)
    for e in range(values.shape[0]):
        value = np.float32(0.0)
        a = rows[offsets[0] + indices[e, modes[0]]]
        b = rows[offsets[1] + indices[e, modes[1]]]
        if count == 2:
            for r in range(rank):
                value += a[r] * b[r]
        elif count == 3:
            c = rows[offsets[2] + indices[e, modes[2]]]
            for r in range(rank):
                value += a[r] * b[r] * c[r]
        else:
            c = rows[offsets[2] + indices[e, modes[2]]]
            for r in range(rank):
                product[r] = a[r] * b[r] * c[r]
            for m in range(3, count - 1):
                d = rows[offsets[m] + indices[e, modes[m]]]
                for r in range(rank):
                    product[r] *= d[r]
            d = rows[offsets[count - 1] + indices[e, modes[count - 1]]]
            for r in range(rank):
                value += product[r] * d[r]
        values[e] -= sign * value


@njit(cache=CACHE, nogil=True, fastmath={"reassoc", "contract"})
def _subtract_pairs(indices, values, modes, offsets, rows, sign):  # type: ignore[no-untyped-def]
    """Σ_{n<m} ⟨v_n, v_m⟩, each row with the sum of those before."""
    rank = rows.shape[1]
    before = np.empty(rank, np.float32)
    for e in range(values.shape[0]):
        value = np.float32(0.0)
        before[:] = 0.0
        for m in range(modes.shape[0]):
            one = rows[offsets[m] + indices[e, modes[m]]]
            for r in range(rank):
                value += before[r] * one[r]
                before[r] += one[r]
        values[e] -= sign * value


@njit(cache=CACHE, nogil=True)
def _add_numbers(indices, mode, targets, sums):  # type: ignore[no-untyped-def]
    for e in range(targets.shape[0]):
        sums[indices[e, mode]] += targets[e]


@njit(cache=CACHE, nogil=True)
def _add_biases(indices, values, mean, effects, starts, mode, sums, squares):  # type: ignore[no-untyped-def]
    trials = squares.shape[0]
    residuals = np.empty(trials)
    for e in range(values.shape[0]):
        residuals[:] = values[e] - mean
        for n in range(indices.shape[1]):
            row = starts[n] + indices[e, n]
            for k in range(trials):
                residuals[k] -= effects[row, k]
        row = indices[e, mode]
        for k in range(trials):
            sums[row, k] += residuals[k]
            squares[k] += residuals[k] * residuals[k]


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
