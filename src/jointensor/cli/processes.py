"""Several processes on the command line: errors are printed once, and all processes end alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jointensor.distributed.launch import join_processes
from jointensor.distributed.process_group import ProcessGroup
from jointensor.errors import ConfigError


@contextmanager
def joined(device: str) -> Iterator[ProcessGroup]:
    """The processes of this job. Exits quietly if another process has reported the error."""
    processes = join_processes(device)
    try:
        yield processes
    except Exception as error:
        if processes.should_report(error):
            raise
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    processes.leave()
