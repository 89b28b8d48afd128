"""The command line with one process in trouble.

``-m tests.distributed.trouble KIND …`` is ``-m jointensor …``, but process 1, in its first life, has a source that is
not there (``lost``) or another one (``other``), is stopped when the others wait for it (``stopped``), or has a network
that fails, sleeps or is killed in the middle of training (``fails``, ``sleeps``, ``killed``).
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from jointensor.cli import main
from jointensor.distributed.process_group import ProcessGroup
from jointensor.models.nonlinear.base import nonlinear_parts

AFTER = 25
"""Steps of training that go well."""

KIND = sys.argv[1] if os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else "none"


class Weak(nn.Module):
    """A network that stands a few steps."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.head = nn.Linear(n_modes * width, 1)
        self.left = AFTER

    def forward(self, rows):
        self.left -= self.training
        if self.left <= 0:
            if KIND == "fails":
                raise ArithmeticError("the network of process 1 fell over")
            if KIND == "sleeps":
                time.sleep(300)
            if KIND == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.tanh(self.head(rows.flatten(1))).squeeze(-1)


if __name__ == "__main__":
    nonlinear_parts.register("weak")(Weak)  # here only: others ask what is registered
    sys.argv.pop(1)
    if KIND == "lost":
        sys.argv[2] += ".gone"
    if KIND == "other":
        sys.argv[2] = str(Path(sys.argv[2]).with_name("other.npz"))
    if KIND == "stopped":
        ProcessGroup.meet = lambda processes: os.kill(os.getpid(), signal.SIGSTOP)
    main()
