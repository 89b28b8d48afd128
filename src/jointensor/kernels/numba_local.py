"""The guesses of :mod:`jointensor.training.local` for many entries, compiled by numba: a small system per entry."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from jointensor.kernels.numba_rows import CACHE


@njit(parallel=True, cache=CACHE, nogil=True)
def guess_from_neighbours(  # type: ignore[no-untyped-def]  # noqa: ANN201 - numba finds it out
    queries, keys, residuals, coordinates, size, period, near, length, far, long, side, itself
):
    """Best linear guess for every query, a cell number, from up to ``side`` entries of its fiber on each side."""
    answer = np.zeros(queries.shape[0])
    for e in prange(queries.shape[0]):
        gaps = np.empty(2 * side)
        known = np.empty(2 * side)
        count = _neighbours(queries[e], keys, residuals, coordinates, size, period, side, itself, gaps, known)
        if count == 0:
            continue
        system = np.empty((count, count))
        right = np.empty(count)
        for i in range(count):
            right[i] = near * np.exp(-abs(gaps[i]) / length) + far * np.exp(-abs(gaps[i]) / long)
            for j in range(i):
                d = abs(gaps[i] - gaps[j])
                if period > 0:
                    d = min(d, period - d)
                system[i, j] = near * np.exp(-d / length) + far * np.exp(-d / long)
            system[i, i] = 1.0
        answer[e] = _dot_with_solution(system, right, known, count)
    return answer


@njit(cache=CACHE, nogil=True)
def _neighbours(query, keys, residuals, coordinates, size, period, side, itself, gaps, known):  # type: ignore[no-untyped-def]
    fiber = query // size
    here = coordinates[query % size]
    first = np.searchsorted(keys, fiber * size)
    last = np.searchsorted(keys, (fiber + 1) * size)  # one past the fiber
    place = np.searchsorted(keys[first:last], query)
    total = last - first
    count = 0
    for step in range(2 * side):
        offset = step - side if step < side else step - side + itself
        at = place + offset
        if period > 0:  # round and round, but nobody twice
            others = total - itself
            back = others // 2
            if (offset < 0 and -offset > back) or (offset >= 0 and offset - itself >= others - back):
                continue
            at %= total
        elif at < 0 or at >= total:
            continue
        row = first + at
        gap = coordinates[keys[row] % size] - here
        if period > 0:
            gap = (gap + period / 2) % period - period / 2
        gaps[count] = gap
        known[count] = residuals[row]
        count += 1
    return count


@njit(cache=CACHE, nogil=True)
def _dot_with_solution(system, right, known, count):  # type: ignore[no-untyped-def]
    """knownᵀ x with system x = right, by Cholesky in place; zero where there is no solution."""
    for c in range(count):
        pivot = system[c, c]
        for k in range(c):
            pivot -= system[c, k] * system[c, k]
        if not pivot > 0.0:
            return 0.0
        pivot = np.sqrt(pivot)
        system[c, c] = pivot
        for r in range(c + 1, count):
            entry = system[r, c]
            for k in range(c):
                entry -= system[r, k] * system[c, k]
            system[r, c] = entry / pivot
    for r in range(count):
        for k in range(r):
            right[r] -= system[r, k] * right[k]
        right[r] /= system[r, r]
    total = 0.0
    for r in range(count - 1, -1, -1):
        for k in range(r + 1, count):
            right[r] -= system[k, r] * right[k]
        right[r] /= system[r, r]
        total += right[r] * known[r]
    return total
