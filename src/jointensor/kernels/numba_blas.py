"""Matrix products and Cholesky solves inside loops that numba compiles, by the BLAS and LAPACK of SciPy.

Matrices are stored by rows. BLAS reads them by columns, as their transposes: a lower triangle here is an upper one
there. Every argument of BLAS is an address; ``numbers``, an array of int32, has room for its sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
from numba import njit, types
from numba.extending import get_cython_function_address
from threadpoolctl import ThreadpoolController

from jointensor.kernels.numba_cache import CACHE

SMALL_PRODUCTS = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
"""Kernels of OpenBLAS that multiply small matrices in place, without copying them into panels first."""

SMALL_TILE = 16
"""Rows and columns of a product that these kernels keep in registers: 1.3 to 3 times as fast as ``ssyrk``."""

WIDE_TILE = 64
"""Rows and columns of a product elsewhere, where ``ssyrk`` cannot be used."""

BLAS_NUMBERS = 5
"""Length of ``numbers``."""

_NO, _YES, _UPPER = (np.frombuffer(letter, np.uint8) for letter in (b"N", b"T", b"U"))
_ONE = np.ones(1, np.float32)


def _external(module: str, name: str, arguments: int) -> Any:
    """A function of SciPy under a name that compiled and cached code is linked to."""
    symbol = f"jointensor_{name}"
    llvmlite.binding.add_symbol(symbol, get_cython_function_address(f"scipy.linalg.{module}", name))
    return types.ExternalFunction(symbol, types.void(*[types.voidptr] * arguments))


_sgemm = _external("cython_blas", "sgemm", 13)
_ssyrk = _external("cython_blas", "ssyrk", 10)
_sgemv = _external("cython_blas", "sgemv", 11)
_dpotrf = _external("cython_lapack", "dpotrf", 5)
_dpotrs = _external("cython_lapack", "dpotrs", 8)


@lru_cache(maxsize=1)
def blas_controller() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes longer than a small solve."""
    return ThreadpoolController()


class _OneThread:
    """BLAS limited to one thread, by all callers together: the limit is the process's, and the last one lifts it."""

    def __init__(self) -> None:
        self._lock, self._callers, self._limits = Lock(), 0, ExitStack()

    def begin(self) -> None:
        with self._lock:
            if not self._callers:
                self._limits.enter_context(blas_controller().limit(limits=1, user_api="blas"))
            self._callers += 1

    def end(self) -> None:
        with self._lock:
            self._callers -= 1
            if not self._callers:
                self._limits.close()


_ONE_THREAD = _OneThread()


@contextmanager
def blas_alone() -> Iterator[None]:
    """Every call of BLAS stays in its thread: the loops that make the calls are parallel."""
    _ONE_THREAD.begin()
    try:
        yield
    finally:
        _ONE_THREAD.end()


@lru_cache(maxsize=1)
def product_tile() -> int:
    """Tile of matrix products on this machine."""
    kernels = {library.get("architecture") for library in blas_controller().info() if library["user_api"] == "blas"}
    return SMALL_TILE if kernels and kernels <= SMALL_PRODUCTS else WIDE_TILE


@njit(cache=CACHE, nogil=True)
def add_gram(left, right, uniform, count, stride, rank, tile, out, numbers) -> None:  # type: ignore[no-untyped-def]
    """Add Σ_e left_e right_eᵀ to the lower triangle of ``out (R, R)``, over ``count`` rows that begin every ``stride``
    numbers; above the diagonal, ``out`` is undefined afterwards.

    ``left`` and ``right`` differ by a factor per row; ``uniform``: not even by that.
    """
    numbers[2], numbers[3], numbers[4] = count, stride, out.shape[1]
    if uniform and tile == WIDE_TILE:
        numbers[0] = rank
        _ssyrk(
            _UPPER.ctypes, _NO.ctypes, numbers.ctypes, numbers[2:].ctypes, _ONE.ctypes, left.ctypes,
            numbers[3:].ctypes, _ONE.ctypes, out.ctypes, numbers[4:].ctypes,
        )  # fmt: skip
        return
    for first in range(0, rank, tile):
        numbers[0] = min(tile, rank - first)
        for second in range(0, first + 1, tile):
            numbers[1] = min(tile, rank - second)
            _sgemm(
                _NO.ctypes, _YES.ctypes, numbers[1:].ctypes, numbers.ctypes, numbers[2:].ctypes, _ONE.ctypes,
                right[second:].ctypes, numbers[3:].ctypes, left[first:].ctypes, numbers[3:].ctypes, _ONE.ctypes,
                out[first, second:].ctypes, numbers[4:].ctypes,
            )  # fmt: skip


@njit(cache=CACHE, nogil=True)
def add_inner(rows, count, stride, rank, tile, out, numbers) -> None:  # type: ignore[no-untyped-def]
    """Add ⟨row_d, row_e⟩ to the lower triangle of ``out (count, count)``; as :func:`add_gram` otherwise."""
    numbers[2], numbers[3], numbers[4] = rank, stride, out.shape[1]
    for first in range(0, count, tile):
        numbers[0] = min(tile, count - first)
        for second in range(0, first + 1, tile):
            numbers[1] = min(tile, count - second)
            _sgemm(
                _YES.ctypes, _NO.ctypes, numbers[1:].ctypes, numbers.ctypes, numbers[2:].ctypes, _ONE.ctypes,
                rows[second * stride :].ctypes, numbers[3:].ctypes, rows[first * stride :].ctypes, numbers[3:].ctypes,
                _ONE.ctypes, out[first, second:].ctypes, numbers[4:].ctypes,
            )  # fmt: skip


@njit(cache=CACHE, nogil=True)
def add_weighted(rows, factors, count, stride, rank, out, numbers) -> None:  # type: ignore[no-untyped-def]
    """Add Σ_e factor_e row_e to ``out (R,)``."""
    numbers[0], numbers[1], numbers[2], numbers[3] = rank, count, stride, 1
    _sgemv(
        _NO.ctypes, numbers.ctypes, numbers[1:].ctypes, _ONE.ctypes, rows.ctypes, numbers[2:].ctypes, factors.ctypes,
        numbers[3:].ctypes, _ONE.ctypes, out.ctypes, numbers[3:].ctypes,
    )  # fmt: skip


@njit(cache=CACHE, nogil=True)
def add_dots(rows, vector, count, stride, rank, out, numbers) -> None:  # type: ignore[no-untyped-def]
    """Add ⟨row_e, vector⟩ to ``out (count,)``."""
    numbers[0], numbers[1], numbers[2], numbers[3] = rank, count, stride, 1
    _sgemv(
        _YES.ctypes, numbers.ctypes, numbers[1:].ctypes, _ONE.ctypes, rows.ctypes, numbers[2:].ctypes, vector.ctypes,
        numbers[3:].ctypes, _ONE.ctypes, out.ctypes, numbers[3:].ctypes,
    )  # fmt: skip


@njit(cache=CACHE, nogil=True)
def solve_positive(matrix, size, right, numbers) -> bool:  # type: ignore[no-untyped-def]
    """Solve a symmetric system of the given size in 64 bits, in place of ``right``; whether there is a solution.

    Of ``matrix`` the lower triangle is read, and replaced by its Cholesky factor.
    """
    numbers[0], numbers[1], numbers[2], numbers[3] = size, 1, matrix.shape[1], 0
    _dpotrf(_UPPER.ctypes, numbers.ctypes, matrix.ctypes, numbers[2:].ctypes, numbers[3:].ctypes)
    if numbers[3] != 0:
        return False
    _dpotrs(
        _UPPER.ctypes, numbers.ctypes, numbers[1:].ctypes, matrix.ctypes, numbers[2:].ctypes, right.ctypes,
        numbers.ctypes, numbers[3:].ctypes,
    )  # fmt: skip
    usable = True
    for r in range(size):
        usable = usable and np.isfinite(right[r])
    return usable
