"""Kriging of :mod:`jointensor.predictors.kriging` for many entries, compiled by numba: a small system per entry."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.numba_threads import parallel_loop

MAX_TABULATED_POSITIONS = 1024
"""Positions along a mode up to which all pairwise covariances are computed once: a table of 8 MB."""


def predict_from_neighbours(
    queries: NDArray[np.int64],
    keys: NDArray[np.int64],
    residuals: NDArray[np.float32],
    coordinates: NDArray[np.float64],
    size: int,
    period: float,
    near: float,
    length: float,
    far: float,
    far_length: float,
    side: int,
    itself: int,
) -> NDArray[np.float64]:
    """Best linear prediction for every query, a cell number, from up to ``side`` entries of its fiber on each side.

    ``itself`` is 1 where queries are among the keys, and each is to be predicted without itself; else 0.
    """
    covariance = (coordinates, period, near, length, far, far_length)
    table = _table(covariance) if len(coordinates) <= MAX_TABULATED_POSITIONS else np.empty((0, 0))
    order = np.argsort(queries)  # queries of one fiber read the same keys
    predictions = np.empty(len(queries))
    with parallel_loop():
        predictions[order] = _predict(queries[order], keys, residuals, size, covariance, table, side, itself)
    return predictions


@njit(parallel=True, cache=CACHE, nogil=True)
def _predict(queries, keys, residuals, size, covariance, table, side, itself):  # type: ignore[no-untyped-def]
    predictions = np.zeros(queries.shape[0])
    for e in prange(queries.shape[0]):
        places = np.empty(2 * side, dtype=np.int64)
        observed = np.empty(2 * side)
        count = _neighbours(queries[e], keys, residuals, size, covariance[1] > 0, side, itself, places, observed)
        if count == 0:
            continue
        here = queries[e] % size
        system = np.empty((count, count))
        right = np.empty(count)
        for i in range(count):
            right[i] = _covariance(places[i], here, covariance, table)
            for j in range(i):
                system[i, j] = _covariance(places[i], places[j], covariance, table)
            system[i, i] = 1.0
        predictions[e] = _dot_with_solution(system, right, observed, count)
    return predictions


@njit(cache=CACHE, nogil=True)
def _covariance(one, other, covariance, table):  # type: ignore[no-untyped-def]
    """Covariance of two positions along the mode."""
    if table.size:
        return table[one, other]
    coordinates, period, near, length, far, far_length = covariance
    gap = abs(coordinates[one] - coordinates[other])
    if period > 0:
        gap = min(gap, period - gap)
    return near * np.exp(-gap / length) + far * np.exp(-gap / far_length)


@njit(cache=CACHE, nogil=True)
def _table(covariance):  # type: ignore[no-untyped-def]
    size = len(covariance[0])
    table, nothing = np.empty((size, size)), np.empty((0, 0))
    for one in range(size):
        for other in range(size):
            table[one, other] = _covariance(one, other, covariance, nothing)
    return table


@njit(cache=CACHE, nogil=True)
def _neighbours(query, keys, residuals, size, cyclic, side, itself, places, observed):  # type: ignore[no-untyped-def]
    """Positions and residuals of the nearest entries of the same fiber; returns how many there are."""
    fiber = query // size
    place = np.searchsorted(keys, query)
    first, total = 0, len(keys)
    if cyclic:
        first = np.searchsorted(keys, fiber * size)
        total = np.searchsorted(keys, (fiber + 1) * size) - first
    count = 0
    for step in range(2 * side):
        offset = step - side if step < side else step - side + itself
        at = place - first + offset
        if cyclic:  # around the cycle, but no neighbour twice
            others = total - itself
            back = others // 2
            if (offset < 0 and -offset > back) or (offset >= 0 and offset - itself >= others - back):
                continue
            at %= total
        elif at < 0 or at >= total or keys[at] // size != fiber:
            continue
        places[count] = keys[first + at] % size
        observed[count] = residuals[first + at]
        count += 1
    return count


@njit(cache=CACHE, nogil=True)
def _dot_with_solution(system, right, observed, count):  # type: ignore[no-untyped-def]
    """observedᵀ x with system x = right, by Cholesky in place; zero where there is no solution."""
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
        total += right[r] * observed[r]
    return total
