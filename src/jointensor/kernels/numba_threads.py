"""Parallel loops of numba in the threads of this package: as many as torch has in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock

import numba
import torch
from numba.np.ufunc.parallel import threading_layer

SAFE_LAYERS = ("omp", "tbb")
"""Threading layers of numba that several threads may call at the same time; with the other one the process ends."""

ONE_CALLER = RLock()
"""Held by the caller of a parallel loop where numba's threads serve one at a time."""


def numba_threads() -> int:
    """How many threads a parallel loop has in the calling thread."""
    return min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@contextmanager
def parallel_loop() -> Iterator[None]:
    """Parallel loops that are called in here have as many threads as torch has."""
    given = torch.get_num_threads()
    numba.set_num_threads(numba_threads())  # starts the threads, if they are not there yet
    try:
        with nullcontext() if _is_safe() else ONE_CALLER:
            yield
    finally:
        if torch.get_num_threads() != given:  # numba, starting its threads, may set those of torch's OpenMP as well
            torch.set_num_threads(given)


def _is_safe() -> bool:
    return threading_layer() in SAFE_LAYERS  # type: ignore[no-untyped-call]
