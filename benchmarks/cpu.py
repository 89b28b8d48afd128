"""Ratios against other ways to complete a tensor: same tensor, same rank, same threads, on the CPU.

    python benchmarks/cpu.py --threads 2 --end-to-end

Prints a table; leaves ``cpu.json`` and ``cpu.png`` in benchmarks/results. docs/benchmarks.md says what is measured.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tensors import DATA

from jointensor.atomic import write_json, write_whole
from jointensor.bench.records import provenance
from report import draw, print_table

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "tensorly": "tensorly", "pyttb": "pyttb", "pygenten": "pygenten", "myfm": "myfm", "scikit-surprise": "surprise",
}  # fmt: skip
"""Rivals by their name on PyPI, and what they are imported as."""
TORCH = ("sliced Adam", "batched loader", "plain DataLoader")
LIMIT = 1800
"""Seconds after which a job is given up."""


def threads_of(threads):
    """Settings that every library obeys. They have to be in the environment: numba's pool, when it starts, sets the
    thread count of the OpenMP that torch shares to its own, whatever torch was told before."""
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def run_job(kind, name, options):
    """What a job found, or why it found nothing."""
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        return {"reason": "not installed"}
    needed = {"ratings": "ml_100k.npz", "end_to_end": "uber_apr_jun.npz"}.get(kind)
    if needed is not None and not (DATA / needed).exists():
        return {"reason": f"real data are not here: {needed}"}
    if options.only and kind not in options.only.split(","):
        return {"reason": "not asked for"}
    if options.quick and kind == "memory" and name != "exact sweep":
        return {"reason": "not measured by --quick"}
    print(f"  {kind}: {name}", file=sys.stderr, flush=True)
    command = [sys.executable, "-W", "ignore", str(HERE / "jobs.py"), kind, name] + ["--quick"] * options.quick
    environment = os.environ | threads_of(options.threads)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"reason": f"took more than {LIMIT} s"}
    if done.returncode != 0:
        return {"reason": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["torch_threads"] not in (None, options.threads):
        return {"reason": f"ran on {found['torch_threads']} threads, not {options.threads}"}
    return found


def end_to_end(options):
    """The two recipes; a list of recipes is asked for in a process of its own, so that this one stays small."""
    if not options.end_to_end:
        return {}
    ask = "from jointensor.training.recipe import RECIPES; print(*RECIPES)"
    known = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    missing = {"reason": "there is no recipe of this name"}
    return {name: run_job("end_to_end", name, options) if name in known else missing for name in ("paper", "default")}


def measure(options):
    def each(kind, names):
        return {name: run_job(kind, name, options) for name in names}

    growth = run_job("scaling", "exact sweep", options)
    rivals = [*TORCH, "tensorly", "pyttb", "pygenten"]
    return {
        "throughput": each("throughput", rivals),
        "paper": run_job("paper", "julia", options),
        "target": each("target", ["exact sweeps", "sliced Adam", "tensorly", "pyttb", "pygenten"]),
        "ratings": each("ratings", ["jointensor", "myfm", "scikit-surprise"]),
        "memory": each("memory", ["exact sweep", *rivals]),
        "scaling": {name: growth.get(name, growth) for name in ("entries", "modes", "rank")},
        "end_to_end": end_to_end(options),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast anything is")
    parser.add_argument("--end-to-end", action="store_true", help="whole fits by recipe; minutes long")
    parser.add_argument("--only", metavar="KIND,…", help="some measurements, as docs/benchmarks.md names them")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for cpu.json and cpu.png")
    options = parser.parse_args()
    about = {"quick": options.quick, "threads": options.threads}
    results = provenance(PACKAGES) | about | measure(options)
    print_table(results)
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / "cpu.json", results)
    write_whole(options.out / "cpu.png", lambda path: draw(results, path))


if __name__ == "__main__":
    main()
