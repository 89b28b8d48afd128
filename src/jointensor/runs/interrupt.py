"""Ctrl-C: the first one finishes the step and keeps the best model so far; the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_interrupt(on_note: Callable[[str], None] = lambda _: None) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, for ``stopping`` of a fit or a search; the second raises ``KeyboardInterrupt``."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield asked.is_set
        return

    def hear(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, before)
        asked.set()
        on_note("Interrupted; finishing this step, then writing the best model so far. Ctrl-C again stops at once.")

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, hear)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
