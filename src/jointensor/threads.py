"""Calls in several threads, and how many threads a call has.

The number of threads of torch in the calling thread decides for everything: torch's own loops, those of numba, trees,
and calls in several threads here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock, local
from typing import TypeVar

import torch

PROCESS_STATE = RLock()
"""Held by whoever changes, for a while, what all threads of the process share: torch's global random state, and on a
GPU what must not happen while steps are recorded. One lock for all of it: steps that are recorded register torch's
random state, which nobody may use meanwhile."""

_THREADS = local()
"""``most``: threads that the calling thread has for work that is worth them; set within :func:`threads_for`."""

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


@contextmanager
def threads_for(work: float, least: float) -> Iterator[None]:
    """As many threads as some work is worth if each is to have ``least``: at least one, at most those that there are.

    Inside of such a block, another one may have more threads again, for work that is worth it.

    >>> with use_threads(4), threads_for(1.0, 1.0):
    ...     alone = torch.get_num_threads()
    ...     with threads_for(3.0, 1.0):
    ...         print(alone, torch.get_num_threads())
    1 3
    """
    outermost = not hasattr(_THREADS, "most")
    if outermost:
        _THREADS.most = torch.get_num_threads()
    try:
        with use_threads(max(1, int(min(_THREADS.most, work // least)))):
            yield
    finally:
        if outermost:
            del _THREADS.most
