"""Calls in several threads, and how many threads a call has.

The number of threads of torch in the calling thread decides for everything: torch's own loops, those of numba, trees,
and calls in several threads here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Results of a function for all items, computed by as many threads as torch may use; each call keeps to its thread.

    Meant for NumPy and torch: they let other threads run while they sort, look up and multiply.
    """
    threads, items = torch.get_num_threads(), list(items)
    if threads == 1 or len(items) <= 1:
        return [function(item) for item in items]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, items))
    finally:
        torch.set_num_threads(threads)  # what a new thread begins with is what was set last, in any thread


def slices_of(count: int, size: int) -> list[slice]:
    """Slices of a size; the last takes the rest along: rows at the end of a very small product of matrices are rounded
    differently.

    >>> slices_of(7, 3)
    [slice(0, 3, None), slice(3, 7, None)]
    """
    starts = list(range(0, max(count - size, 0) + 1, size))
    return [slice(a, b) for a, b in zip(starts, (*starts[1:], count), strict=True)]


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Use so many threads for what the calling thread does in here; others keep theirs.

    >>> with use_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()  # asked first: a thread that never was takes the number that was set last
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(work: float, least: float) -> int:
    """Threads for some work of which each is to have ``least``: at least one, and no more than there are."""
    return max(1, min(torch.get_num_threads(), int(work // least)))
