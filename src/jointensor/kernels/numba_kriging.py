"""Kriging of :mod:`jointensor.predictors.kriging`, compiled by numba: neighbours of entries, and a small system each.

Cells are numbered: ``key // size`` is the fiber, ``key % size`` the position along the axis.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.numba_threads import parallel_loop

MAX_TABULATED_GAP = 1 << 20
"""Longest distance, in steps, up to which covariances of whole distances are computed once: a table of 8 MB."""

BLOCK = 256
"""Cells that are predicted one after the other with the same scratch memory."""


class Covariance(NamedTuple):
    """Covariance of two positions along an axis, of residuals with a variance of 1."""

    coordinates: NDArray[np.float64]
    """Of positions, in steps."""
    period: float
    """After which the axis begins again; 0 if it does not."""
    smooth: NDArray[np.float64]
    """``(terms, 2)``: share and length of terms that decay with distance."""
    seasons: NDArray[np.float64]
    """``(seasons, 4)``: lag, share, length in lags, and width, of terms that come back after every lag."""


class Found(NamedTuple):
    """Neighbours of some cells."""

    rows: NDArray[np.int64]
    """Places among the keys, ``(cells, neighbours)``."""
    counts: NDArray[np.int64]
    """How many of them there are, ``(cells,)``."""


def find_neighbours(
    queries: NDArray[np.int64],
    keys: NDArray[np.int64],
    size: int,
    shifts: NDArray[np.int64],
    *,
    sides: tuple[int, int],
    cyclic: bool,
    itself: bool,
) -> Found:
    """Nearest entries of the same fiber on both sides, and those one or more seasons before and after.

    Parameters
    ----------
    queries
        Cells.
    keys
        Cells of the entries, sorted.
    size
        Positions along the axis.
    shifts
        ``(2 · seasons, positions)``: the position one lag later, and earlier; -1 where there is none.
    sides
        Nearest entries on each side, and entries of each season on each side.
    cyclic
        Whether the axis begins again after its last position.
    itself
        Whether queries are among the keys, and a query is not a neighbour of its own.
    """
    rows = np.empty((len(queries), 2 * sides[0] + len(shifts) * sides[1]), dtype=np.int64)
    with parallel_loop():
        return Found(rows, _find(queries, keys, size, shifts, sides[0], sides[1], cyclic, int(itself), rows))


def lag_products(
    queries: NDArray[np.int64],
    places: NDArray[np.int64],
    keys: NDArray[np.int64],
    residuals: NDArray[np.float32],
    size: int,
    coordinates: NDArray[np.float64],
    most: int,
) -> NDArray[np.float64]:
    """Of residuals at lags of 1, 2, …, most: how many pairs there are, and sums of a², b² and a·b, ``(lags, 4)``.

    Parameters
    ----------
    queries, places
        Cells of the first ones, a, and their places among the keys. Those of the second ones, b, are a lag later in the
        same fiber.
    keys, residuals
        Of the entries, sorted.
    size, coordinates
        Positions along the axis, and where they lie, in steps.
    most
        The longest lag.
    """
    sums = np.zeros((most, 4))
    even = bool((np.diff(coordinates) == 1).all())
    with parallel_loop():
        _lag_products(queries, places, keys, residuals, size, coordinates, even, sums)
    return sums


def predict_from_neighbours(
    queries: NDArray[np.int64],
    found: Found,
    keys: NDArray[np.int64],
    residuals: NDArray[np.float32],
    size: int,
    covariance: Covariance,
) -> NDArray[np.float64]:
    """Best linear prediction for every query from its neighbours, ``(queries,)``; zero without any."""
    table = np.empty(0)
    longest = covariance.coordinates[-1]
    if longest <= MAX_TABULATED_GAP and (covariance.coordinates % 1 == 0).all():
        table = _tabulate(int(longest), covariance.smooth, covariance.seasons)
    with parallel_loop():
        return _predict(queries, found.rows, found.counts, keys, residuals, size, covariance, table)


@njit(parallel=True, cache=CACHE, nogil=True)
def _lag_products(queries, places, keys, residuals, size, coordinates, even, sums):  # type: ignore[no-untyped-def]
    for row in prange(len(sums)):
        lag = row + 1
        for e in range(len(queries)):
            position = queries[e] % size
            there = position + lag if even else _position_at(coordinates[position] + lag, coordinates)
            if there <= position or there >= size:
                continue
            at = _place_near(queries[e] + there - position, keys, places[e], there - position)
            if at >= 0:
                one, other = np.float64(residuals[places[e]]), np.float64(residuals[at])
                sums[row, 0] += 1
                sums[row, 1] += one * one
                sums[row, 2] += other * other
                sums[row, 3] += one * other


@njit(cache=CACHE, nogil=True)
def _position_at(coordinate, coordinates):  # type: ignore[no-untyped-def]
    """The first position less than half a step from a coordinate; -1 if there is none."""
    at = np.searchsorted(coordinates, coordinate - 0.5)
    return at if at < len(coordinates) and abs(coordinates[at] - coordinate) < 0.5 else -1


@njit(parallel=True, cache=CACHE, nogil=True)
def _find(queries, keys, size, shifts, side, per_season, cyclic, itself, rows):  # type: ignore[no-untyped-def]
    counts = np.zeros(len(queries), dtype=np.int64)
    for e in prange(len(queries)):
        count = _nearest(queries[e], keys, size, cyclic, side, itself, rows[e])
        if len(shifts):
            count = _in_season(queries[e], keys, size, shifts, per_season, rows[e], count)
        counts[e] = count
    return counts


@njit(cache=CACHE, nogil=True)
def _nearest(query, keys, size, cyclic, side, itself, row):  # type: ignore[no-untyped-def]
    """The nearest entries of the fiber on both sides; returns how many there are."""
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
        row[count] = first + at
        count += 1
    return count


@njit(cache=CACHE, nogil=True)
def _in_season(query, keys, size, shifts, per_season, row, count):  # type: ignore[no-untyped-def]
    """Adds the nearest entries at whole lags, on each side; returns how many neighbours there are then."""
    asked = query % size
    first, place = query - asked, np.searchsorted(keys, query)
    for s in range(len(shifts)):
        here, taken = shifts[s, asked], 0
        while here >= 0 and taken < per_season:
            at = _place_near(first + here, keys, place, abs(here - asked))
            if at >= 0:
                known = False
                for k in range(count):
                    known = known or row[k] == at
                if not known:
                    row[count] = at
                    count += 1
                    taken += 1
            here = shifts[s, here]
    return count


@njit(cache=CACHE, nogil=True)
def _place_near(key, keys, place, most):  # type: ignore[no-untyped-def]
    """Place of a key that lies at most so many places from another one, as keys are distinct; -1 if it is not there."""
    low, high = max(place - most, 0), min(place + most, len(keys))
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < len(keys) and keys[low] == key else -1


@njit(parallel=True, cache=CACHE, nogil=True)
def _predict(queries, rows, counts, keys, residuals, size, covariance, table):  # type: ignore[no-untyped-def]
    coordinates, period, smooth, seasons = covariance  # in a loop, attributes are counted references
    predictions = np.zeros(len(queries))
    most = rows.shape[1]
    for block in prange((len(queries) + BLOCK - 1) // BLOCK):
        system, places = np.empty((most + 1, most)), np.empty(most + 1)
        for e in range(block * BLOCK, min((block + 1) * BLOCK, len(queries))):
            count = counts[e]
            for i in range(count):
                places[i] = coordinates[keys[rows[e, i]] % size]
            places[count] = coordinates[queries[e] % size]
            if len(table):
                _look_up(places, count, period, table, system)
            else:
                _compute(places, count, period, smooth, seasons, system)
            if not _solve(system, count):
                continue
            total = 0.0
            for i in range(count):
                total += system[count, i] * residuals[rows[e, i]]
            predictions[e] = total
    return predictions


@njit(cache=CACHE, nogil=True)
def _look_up(places, count, period, table, system):  # type: ignore[no-untyped-def]
    """Covariances of all places with those before, by whole distances; ``(count + 1, count)`` of the system is set."""
    for i in range(count + 1):
        for j in range(i):
            gap = abs(places[i] - places[j])
            if period > 0:
                gap = min(gap, period - gap)
            system[i, j] = table[int(gap)]


@njit(cache=CACHE, nogil=True)
def _compute(places, count, period, smooth, seasons, system):  # type: ignore[no-untyped-def]
    """The same by other distances."""
    for i in range(count + 1):
        for j in range(i):
            gap = abs(places[i] - places[j])
            if period > 0:
                gap = min(gap, period - gap)
            system[i, j] = _at_distance(gap, smooth, seasons)


@njit(cache=CACHE, nogil=True)
def _at_distance(gap, smooth, seasons):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(smooth)):
        total += smooth[k, 0] * np.exp(-gap / smooth[k, 1])
    for k in range(len(seasons)):
        lag, share, length, width = seasons[k, 0], seasons[k, 1], seasons[k, 2], seasons[k, 3]
        phase = abs(gap - lag * np.floor(gap / lag + 0.5))
        total += share * np.exp(-gap / (lag * length) - phase / width)
    return total


@njit(cache=CACHE, nogil=True)
def _tabulate(longest, smooth, seasons):  # type: ignore[no-untyped-def]
    """Covariances at distances of 0, 1, …, longest."""
    table = np.empty(longest + 1)
    for gap in range(longest + 1):
        table[gap] = _at_distance(gap, smooth, seasons)
    return table


@njit(cache=CACHE, nogil=True)
def _solve(system, count):  # type: ignore[no-untyped-def]
    """Solution of a system with a diagonal of 1 by Cholesky, in place; returns whether there is one.

    The lower triangle of the first rows is the matrix; the last row is the right-hand side and becomes the solution.
    The diagonal becomes the inverse of that of the factor: divisions take longest.
    """
    for c in range(count):
        pivot = 1.0
        for k in range(c):
            pivot -= system[c, k] * system[c, k]
        if not pivot > 0.0:
            return False
        inverse = 1.0 / np.sqrt(pivot)
        system[c, c] = inverse
        for r in range(c + 1, count + 1):  # the right-hand side with them
            entry = system[r, c]
            for k in range(c):
                entry -= system[r, k] * system[c, k]
            system[r, c] = entry * inverse
    for r in range(count - 1, -1, -1):
        system[count, r] *= system[r, r]
        for k in range(r):
            system[count, k] -= system[r, k] * system[count, r]
    return True
