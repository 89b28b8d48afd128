"""Khatri-Rao rows of sorted entries, compiled by numba with explicit vector instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from jointensor.kernels.numba_cache import CACHE

LANES = 8
"""Numbers of 32 bits that are multiplied at once; rows are padded to a multiple of it."""


def padded(rank: int) -> int:
    """Numbers that a row of a table takes."""
    return -(-rank // LANES) * LANES


def _combine(operation: str) -> Any:
    """``function(out, at, tables, places)``: products or sums of LANES numbers at every place of ``tables``."""

    @intrinsic
    def combine(_context, out, at, tables, places):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            lanes = ir.VectorType(ir.FloatType(), LANES).as_pointer()

            def address(k: int, offset: Any) -> Any:
                array = context.make_array(signature.args[k])(context, builder, arguments[k])
                return builder.bitcast(builder.gep(array.data, [offset]), lanes)

            found = None
            for k in range(signature.args[3].count):
                numbers = builder.load(address(2, builder.extract_value(arguments[3], k)))
                numbers.align = 4
                found = numbers if found is None else getattr(builder, operation)(found, numbers)
            builder.store(found, address(0, arguments[1])).align = 4
            return context.get_dummy_value()

        return types.void(out, at, tables, places), generate

    return combine


def _prefetch() -> Any:
    """``function(array, place)``: ask for a number of an array that is used soon."""

    @intrinsic
    def prefetch(_context, array, place):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
            builder.call(function, [address, number(0), number(3), number(1)])  # a read, of data, for every cache
            return context.get_dummy_value()

        return types.void(array, place), generate

    return prefetch


_product: Callable[..., None] = _combine("fmul")
_sum: Callable[..., None] = _combine("fadd")
_request: Callable[..., None] = _prefetch()


@njit(cache=CACHE, nogil=True)
def gather(h, stride, begin, count, entries, soon) -> None:  # type: ignore[no-untyped-def]
    """h_e of some sorted entries, every ``stride`` numbers; ones where there are no other modes.

    ``entries``: a ``SortedEntries``.
    ``soon``: an array whose numbers of these entries, in the original order, are used next; they are on their way then.
    """
    order, columns, tables = entries.order, entries.columns, entries.tables
    offsets, width, sums, modes = entries.offsets, entries.width, entries.sums, entries.columns.shape[0]
    if modes == 0:
        h[: count * stride] = 1.0
        return
    first = offsets[0]
    if modes == 1:
        for e in range(count):
            _request(soon, np.int64(order[begin + e]))
            a = (first + columns[0, begin + e]) * width
            for r in range(0, width, LANES):
                _product(h, e * stride + r, tables, (a + r,))
        return
    second = offsets[1]
    if sums:
        for e in range(count):
            _request(soon, np.int64(order[begin + e]))
            a, b = (first + columns[0, begin + e]) * width, (second + columns[1, begin + e]) * width
            for r in range(0, width, LANES):
                _sum(h, e * stride + r, tables, (a + r, b + r))
    elif modes == 2:
        for e in range(count):
            _request(soon, np.int64(order[begin + e]))
            a, b = (first + columns[0, begin + e]) * width, (second + columns[1, begin + e]) * width
            for r in range(0, width, LANES):
                _product(h, e * stride + r, tables, (a + r, b + r))
    else:
        third = offsets[2]
        for e in range(count):
            _request(soon, np.int64(order[begin + e]))
            a, b = (first + columns[0, begin + e]) * width, (second + columns[1, begin + e]) * width
            c = (third + columns[2, begin + e]) * width
            for r in range(0, width, LANES):
                _product(h, e * stride + r, tables, (a + r, b + r, c + r))
    for m in range(2 if sums else 3, modes):
        for e in range(count):
            a, out = (offsets[m] + columns[m, begin + e]) * width, e * stride
            for r in range(width):
                if sums:
                    h[out + r] += tables[a + r]
                else:
                    h[out + r] *= tables[a + r]
