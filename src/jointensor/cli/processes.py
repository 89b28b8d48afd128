"""Several processes on the command line: one voice, and the same end for all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jointensor.distributed.launch import join_processes
from jointensor.distributed.process_group import ProcessGroup
from jointensor.errors import ConfigError


@contextmanager
def joined(device: str) -> Iterator[ProcessGroup]:
    """The processes of this job; an error that another one has caused, or said, ends this one without a word."""
    processes = join_processes(device)
    try:
        yield processes
    except Exception as error:
        if processes.first_to_say(error):
            raise
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    processes.leave()
