"""Where records come from: command, date, commit, versions and machine. And how they are kept and shown.

A tree that is a copy without ``.git`` (on a machine that was sent the files) cannot say its commit: the environment
variable JOINTENSOR_COMMIT does, as "<hash>" or "<hash>-dirty". Without it, commit and cleanness are null in the record.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jointensor.atomic import write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "numpy", "scipy", "numba", "lightgbm")

DEVICE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"device": "cuda" if cuda else "cpu", "gpu": torch.cuda.get_device_name() if cuda else None}))
"""


def provenance(packages=()):
    """Of a record that is made now; ``packages`` are others whose versions matter."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **commit_of(ROOT),
        "versions": {name: _version(name) for name in (*PACKAGES, *packages)} | {"python": platform.python_version()},
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
            "load_at_start": os.getloadavg()[0],
            **_device(),
        },
    }


def commit_of(root):
    """Commit of a source tree, whether it was clean, and who says so. Records of benchmarks do not count as changes."""

    def git(*words):
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    if (root / ".git").exists() and git("rev-parse", "HEAD"):
        changes = git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
        return {"commit": git("rev-parse", "HEAD"), "clean": changes == "", "commit_source": "git"}
    told = os.environ.get("JOINTENSOR_COMMIT", "")
    if told:
        name = told.removesuffix("-dirty")
        return {"commit": name, "clean": name == told, "commit_source": "JOINTENSOR_COMMIT"}
    return {"commit": None, "clean": None, "commit_source": "unknown: no .git, and JOINTENSOR_COMMIT is not set"}


@cache
def _device():
    """The device that torch takes, and its name; asked in a process of its own, which then leaves the GPU."""
    done = subprocess.run([sys.executable, "-c", DEVICE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@cache
def _cpu():
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def kept(path, make):
    """The record in a file; made and written with its provenance if it is not there yet, or if it failed."""
    if not path.exists() or "error" in json.loads(path.read_text(encoding="utf-8")):
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = provenance()
        write_json(path, {**make(), **facts})
    return json.loads(path.read_text(encoding="utf-8"))


def records_in(folder, pattern="*.json"):
    """All records of a folder, without those of runs that failed."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(pattern))]
    return [one for one in found if "error" not in one]


def origin(records):
    """A line for under a table: commits and machines of the records that it is made from."""
    commits = sorted({_commit(one) for one in records})
    machines = sorted({_machine(one["machine"]) for one in records})
    return f"Commits: {', '.join(commits)}. Machines: {', '.join(machines)}."


def _commit(record):
    if record["commit"] is None:
        return "unknown"
    return record["commit"][:7] + ("" if record["clean"] else " with changes")


def _machine(machine):
    cores = f"{machine['cores']} cores of {machine['cpu']}"
    return f"{machine['gpu']} and {cores}" if machine.get("gpu") else cores
