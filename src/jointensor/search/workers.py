"""Threads that make fits side by side, each with its share of the cores, or with a stream of a GPU to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, local
from types import TracebackType
from typing import Self, TypeVar

import torch

from jointensor.search.settings import SETTINGS, SearchSettings
from jointensor.threads import use_threads

Result = TypeVar("Result")


class Workers:
    """Threads for fits, which end with the block that they are used in.

    A fit has as many threads as there are cores for each of those beside it, fits on a GPU not counted: a fit whose
    loops stay in one thread waits for no other, and is slowed down in proportion to the load of the machine, no more.

    Parameters
    ----------
    most
        Fits side by side, at most; 1: they are made in the calling thread, with all of its threads.
    device
        Of the fits.
    cpu_beside
        Whether as many fits that use the CPU only are made beside those on a GPU, which leave its cores idle.
    """

    def __init__(self, most: int = 1, device: torch.device | None = None, *, cpu_beside: bool = False) -> None:
        self.most, self._device, self.cpu_beside = most, device, cpu_beside
        self._pool: ThreadPoolExecutor | None = None
        self._cores = 1
        self._left, self._streams = Event(), local()

    @classmethod
    def of(cls, device: torch.device, entries: int, settings: SearchSettings = SETTINGS) -> Self:
        """As many as are worth it for fits to so many entries."""
        gpu = device.type == "cuda"
        most = settings.max_gpu_workers if gpu else min(torch.get_num_threads(), settings.max_workers)
        room = (settings.max_gpu_entries if gpu else settings.max_entries) // max(entries, 1)
        return cls(settings.workers or max(1, min(most, room)), device, cpu_beside=gpu)

    def count(self, fits: int) -> int:
        """How many of some fits are made side by side: by their number and the cores, never by what else is running."""
        return max(1, min(self.most, fits))

    def start(self, fit: Callable[[], Result], beside: int) -> Future[Result]:
        """Make a fit in a thread, one of ``beside`` at a time."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.most * (1 + self.cpu_beside), thread_name_prefix="fit")
            self._cores = torch.get_num_threads()

        def work() -> Result:
            with use_threads(max(1, self._cores // beside)), self._own_stream():
                return fit()

        return self._pool.submit(work)

    def stopping(self, asked: Callable[[], bool]) -> Callable[[], bool]:
        """For fits: whether somebody asked to stop, or nobody waits for their results any more."""
        return lambda: self._left.is_set() or asked()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No thread outlives the block: fits that are still running, after an error, are stopped."""
        self._left.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self._cores)  # what a new thread begins with is what was set last, in any thread

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        """A stream of the GPU: fits on one stream would wait for each other. What a fit leaves is finished."""
        if self._device is None or self._device.type != "cuda":
            yield
            return
        stream = getattr(self._streams, "one", None)
        if stream is None:  # always the same one: memory that a stream has used is kept for it
            stream = self._streams.one = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


ONE_WORKER = Workers()
"""Fits one after the other, in the calling thread."""
