"""Requests to stop (Ctrl-C is one): the search ends with the fits that have finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup


class StopRequested(Exception):
    """Somebody asked to stop; raised between fits, in all processes, or by a fit that was stopped."""


class Interruption:
    """Whether a search was interrupted, and what that does to its stages.

    Parameters
    ----------
    stopping
        Asked between fits whether to stop.
    processes
        The first one is asked.
    on_note
        Called with a line for the user.
    """

    def __init__(
        self,
        stopping: Callable[[], bool] = lambda: False,
        processes: ProcessGroup = SINGLE_PROCESS,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stopping, self._processes, self._on_note = stopping, processes, on_note
        self.happened = False

    def check(self) -> None:
        """Raise :class:`StopRequested` if somebody asked to stop, once."""
        if not self.happened and self._processes.decide(self._stopping):
            raise StopRequested

    @contextmanager
    def ends_stage(self) -> Iterator[None]:
        """A stage that a request to stop ends early; what it has done so far counts."""
        try:
            yield
        except StopRequested:
            self.happened = True
            self._on_note("Interrupted; using the fits that have finished.")
