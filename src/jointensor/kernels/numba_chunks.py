"""Loops over chunks of entries, compiled by numba: values of CP, and residuals of g."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from jointensor.kernels.cp import cp_values
from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.terms import Terms
from jointensor.threads import in_threads, threads_for

MIN_PRODUCTS = 20_000_000
"""Products of numbers that are worth a thread, a few milliseconds."""


def cp_values_numba(stacked: Tensor, places: Tensor) -> Tensor:
    """As :func:`jointensor.kernels.cp.cp_values`, which stands for it where gradients are asked for, or not on the CPU.

    No product of rows is written to memory, which takes most of the time where R is large.
    """
    known = stacked.dtype == torch.float32 and stacked.ndim == places.ndim == 2  # a damaged file may have others
    if stacked.device.type != "cpu" or not known or (stacked.requires_grad and torch.is_grad_enabled()):
        return cp_values(stacked, places)
    # compiled for one kind of arrays: those of a file may lie anywhere
    cells = np.require(places.numpy(), np.int64, ("C", "A", "W"))
    rows = np.require(stacked.detach().numpy(), np.float32, ("C", "A", "W"))
    if len(cells) and not 0 <= cells.min() <= cells.max() < len(rows):
        raise IndexError(f"there are rows 0 to {len(rows) - 1}; {cells.min()} to {cells.max()} are asked for")
    values = np.zeros(len(cells), np.float32)
    modes, offsets = np.arange(cells.shape[1]), np.zeros(cells.shape[1], np.int64)

    def add(part: slice) -> None:
        _subtract_products(cells[part], values[part], modes, offsets, rows, np.float32(-1.0))

    with threads_for(len(cells) * rows.shape[1] * cells.shape[1], MIN_PRODUCTS):
        threads = torch.get_num_threads()
        edges = [k * len(cells) // threads for k in range(threads + 1)]
        in_threads(add, [slice(*edge) for edge in pairwise(edges)])
    return torch.from_numpy(values)


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

    def subtract(part: slice) -> None:
        _subtract_numbers(cells[part], left[part], np.float32(terms.constant), *single, signs)
        for modes, offsets, rows, term in packed:
            loop = _subtract_pairs if term.sums else _subtract_products
            loop(cells[part], left[part], modes, offsets, rows, np.float32(term.sign))

    threads = torch.get_num_threads()  # numba's own take far longer to compile
    edges = [k * len(values) // threads for k in range(threads + 1)]
    in_threads(subtract, [slice(*edge) for edge in pairwise(edges)])


def _pack(tables: Sequence[tuple[int, Tensor]], rank: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """The modes of tables, where each begins, and all of their rows one below the other."""
    modes = np.array([mode for mode, _ in tables], np.int64)
    offsets = np.cumsum([0, *(len(table) for _, table in tables)])[:-1].astype(np.int64)
    rows = [np.zeros((0, rank), np.float32), *(table.detach().numpy() for _, table in tables)]
    return modes, offsets, np.concatenate(rows)


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
