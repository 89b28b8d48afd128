"""Ctrl-C: the first one finishes the step and writes the best model so far; the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from jointensor.runs.config import Listener


@contextmanager
def interruptible(listener: Listener, *, search: bool) -> Iterator[Listener]:
    """A listener that asks to stop after the first Ctrl-C; the second one raises ``KeyboardInterrupt``.

    A search handles ``KeyboardInterrupt`` itself.
    """
    if search or threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield listener
        return
    asked = threading.Event()

    def hear(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, before)
        asked.set()
        listener.on_note(
            "Interrupted; finishing this step, then writing the best model so far. Ctrl-C again stops at once."
        )

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, hear)
    try:
        yield replace(listener, stopping=asked.is_set)
    finally:
        signal.signal(signal.SIGINT, before)
