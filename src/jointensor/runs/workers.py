"""Processes that fit for another one."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it has ended, be it killed.

    A worker that waits for work would notice by itself; one in the middle of a fit would go on for hours.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # nobody's worker
        return

    def watch() -> None:
        parent.join()  # a pipe that breaks with the parent: true on all systems, and for any way to end
        os._exit(1)  # at once: there is nobody to hand a result to

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
