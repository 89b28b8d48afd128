"""Ctrl-C and requests to stop: the first one ends the search with the fits that have finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup

T = TypeVar("T")


class StopRequested(Exception):
    """Somebody asked to stop; raised between fits, in all processes."""


class Interruption:
    """Whether a search was interrupted, and what that does to its stages.

    Parameters
    ----------
    stopping
        Asked between fits whether to stop.
    processes
        The first one is asked. Ctrl-C, which not all of them may have received, ends a search in several processes.
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
        """A stage that an interruption ends early; what it has done so far counts. The second Ctrl-C is raised."""
        try:
            yield
        except StopRequested:
            self._record()
        except KeyboardInterrupt:
            if self._processes.shared or self.happened:
                raise
            self._record()

    def complete(self, stage: Callable[[], T]) -> T:
        """The result of a stage that there must be one of: after an interruption it is run again, in its short form."""
        with self.ends_stage():
            return stage()
        return stage()

    def _record(self) -> None:
        self.happened = True
        self._on_note("Interrupted; using the fits that have finished.")
