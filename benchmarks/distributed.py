"""The same fits by one process and by several on this machine: RMSE, seconds, bytes that each process sends.

    python benchmarks/distributed.py --processes 2 --out benchmarks/results/distributed.json

A generated tensor (300 × 200 × 100 labels, drawn unevenly) is fitted by `jointensor fit` and by
`torchrun -m jointensor fit` with the same options, every process with one thread. Seconds per epoch are the median over
epochs as history.jsonl has them. Several processes on one machine share its memory and its network does not count: what
carries over to machines is the RMSE and the bytes, not the seconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from jointensor.atomic import write_json
from jointensor.bench.records import provenance

FITS = {
    "paper": ["--recipe", "paper", "--rank", "4/16"],
    "default": ["--rank", "4/16"],
    "als": ["--rank", "16/0"],
    "gibbs": ["--rank", "8/0", "--set", "linear_solver=gibbs"],
    "auto": ["--rank", "auto", "--budget", "90"],
}
"""What is fitted, and how."""

SHAPE = "300x200x100"


def start(processes, *arguments):
    """Run the command line in one process, or in several under torchrun."""
    launcher = [sys.executable, "-m"]
    if processes > 1:
        launcher += ["torch.distributed.run", "--nproc-per-node", str(processes), "-m"]
    command = [*launcher, "jointensor", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"})


def measured(processes, source, out, options):
    start(processes, "fit", source, "--out", out, *options)
    metrics = json.loads((out / "metrics.json").read_text())
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return {
        "rmse": metrics["test"]["rmse"],
        "epochs": metrics["epochs"],
        "seconds": metrics["seconds"],
        "seconds_per_epoch": statistics.median(row["seconds"] for row in rows) if rows else None,
        "entries_per_rank": metrics["entries_per_rank"],
        "communication": metrics["communication"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--only", nargs="*", default=list(FITS), choices=list(FITS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    fits = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tensor.npz"
        made = ["--shape", SHAPE, "--entries", options.entries, "--rank", "4/0", "--noise", 0.3, "--skew", 0.5]
        start(1, "data", "get", "synthetic", *made, "--out", source)
        for name in options.only:
            one, several = (
                measured(count, source, Path(folder) / f"{name}-{count}", FITS[name])
                for count in (1, options.processes)
            )
            fits[name] = {"one": one, "several": several, "rmse_ratio": several["rmse"] / one["rmse"]}
            sent = several["communication"]["bytes_per_epoch"]
            print(
                f"{name:8}  RMSE {one['rmse']:.5f} and {several['rmse']:.5f} ({fits[name]['rmse_ratio'] - 1:+.4%})  "
                f"{one['seconds']:.0f} and {several['seconds']:.0f} s  {sent / 1e3:,.0f} kB sent per epoch or fit"
            )
    if options.out is not None:
        about = provenance() | {"threads": 1}
        result = {**about, "shape": SHAPE, "entries": options.entries, "processes": options.processes, "fits": fits}
        write_json(options.out, result)


if __name__ == "__main__":
    main()
