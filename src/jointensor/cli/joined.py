"""Several processes on the command line: one voice, and the same end for all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jointensor.errors import ConfigError
from jointensor.training.launch import join_world
from jointensor.training.world import World


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The processes of this job; an error that another one has caused, or said, ends this one without a word."""
    world = join_world(device)
    try:
        yield world
    except Exception as error:
        if world.first_to_say(error):
            raise
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    world.leave()
