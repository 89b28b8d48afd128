"""Sums and differences by row of :mod:`jointensor.predictors.tables`, compiled by numba; other threads go on beside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jointensor.kernels.numba_cache import CACHE


def sums_by_row(rows: NDArray[np.int32], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Sum of the values of every row, ``(count,)``; added in the order of the entries."""
    sums = np.zeros(count)
    _add(rows, values, sums)
    return sums


def subtract_by_row(rows: NDArray[np.int32], numbers: NDArray[np.float64], values: NDArray[np.float64]) -> None:
    """Subtract the number of its row from every value, in place."""
    _subtract(rows, numbers, values)


def squared_errors(
    rows: NDArray[np.int32],
    values: NDArray[np.float64],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
    before: NDArray[np.float64],
    shrinkages: Sequence[float],
) -> NDArray[np.float64]:
    """Sum of the squares that a table leaves of some values, ``(shrinkages,)``.

    Its numbers were ``before``; they become ``sums / (counts + shrinkage)``, all of them ``(rows of the table,)``.
    """
    errors = np.zeros(len(shrinkages))
    _squared_errors(rows, values, sums, counts, before, np.array(shrinkages), errors)
    return errors


@njit(cache=CACHE, nogil=True)
def _add(rows, values, sums):  # type: ignore[no-untyped-def]
    for e in range(len(rows)):
        sums[rows[e]] += values[e]


@njit(cache=CACHE, nogil=True)
def _subtract(rows, numbers, values):  # type: ignore[no-untyped-def]
    for e in range(len(rows)):
        values[e] -= numbers[rows[e]]


@njit(cache=CACHE, nogil=True)
def _squared_errors(rows, values, sums, counts, before, shrinkages, errors):  # type: ignore[no-untyped-def]
    for e in range(len(rows)):
        row = rows[e]
        value, total, count = values[e] + before[row], sums[row], counts[row]
        for k in range(len(shrinkages)):
            left = value - total / (count + shrinkages[k])
            errors[k] += left * left
