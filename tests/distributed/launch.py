"""Starts processes the way users do: torchrun, with this interpreter."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def torchrun(*arguments, processes=2, restarts=0, timeout=300.0, **variables):
    """Run ``python -m torch.distributed.run … arguments``; what it said on both streams, and its exit code."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
        "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        "--max-restarts", str(restarts), *map(str, arguments),
    ]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **variables,
    }  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
