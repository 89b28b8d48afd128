"""Records of results: one JSON file each, with where it comes from, so that a table is made of files alone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jointensor._version import __version__
from jointensor.atomic import write_json
from jointensor.errors import RunError

PACKAGES = ("torch", "numpy", "scipy", "numba", "lightgbm")
"""Distributions whose versions every record has."""

COMMIT = "JOINTENSOR_COMMIT"
"""Environment variable that says the commit of a copy of the sources without ``.git``; ``-dirty`` after it: changed."""

Record = dict[str, Any]


def provenance(packages: Sequence[str] = (), source: Path | None = None) -> Record:
    """Command, date, commit, versions and machine of a record that is made now.

    Parameters
    ----------
    packages
        Other distributions whose versions matter.
    source
        The tree of the sources; that of this package if not given.
    """
    names = ("jointensor", *PACKAGES, *packages)
    versions = {name: _version(name) for name in names} | {"python": platform.python_version()}
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **commit_of(Path(__file__).resolve().parents[3] if source is None else source),
        "versions": versions | {"jointensor": __version__},
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": platform.platform(),
            "load_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "gpu": _gpu(),
        },
    }


def commit_of(root: Path) -> Record:
    """Commit of a source tree, whether it was clean, and who says so. Records and docs do not count as changes."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD") if (root / ".git").exists() else None
    if head:
        changes = git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
        return {"commit": head, "clean": changes == "", "commit_source": "git"}
    told = os.environ.get(COMMIT, "")
    if told:
        name = told.removesuffix("-dirty")
        return {"commit": name, "clean": name == told, "commit_source": COMMIT}
    return {"commit": None, "clean": None, "commit_source": f"unknown: no .git, and {COMMIT} is not set"}


@cache
def _gpu() -> str | None:
    import torch  # noqa: PLC0415 - libraries read their number of threads when they are loaded, not before

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


@cache
def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_record(path: Path) -> Record | None:
    """The record in a file; ``None`` if there is none."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"record {path} is damaged ({error}); remove it, and run again") from error
    if not isinstance(found, dict):
        raise RunError(f"record {path} is damaged; remove it, and run again")
    return found


def kept(path: Path, make: Callable[[], Record], packages: Sequence[str] = ()) -> Record:
    """The record in a file; made, and written with its provenance, if it is not there yet or if it failed."""
    found = read_record(path)
    if found is None or "error" in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = provenance(packages)
        found = {**make(), **facts}
        write_json(path, found)
    return found


def records_in(folder: Path, pattern: str = "*.json", *, failed: bool = False) -> list[Record]:
    """All records of a folder; without those of runs that failed, unless they are asked for."""
    found = [one for path in sorted(folder.glob(pattern)) if (one := read_record(path)) is not None]
    return [one for one in found if failed or "error" not in one]


def origin(records: Sequence[Record]) -> str:
    """A line for under a table: commits and machines of the records that it is made from."""
    commits = sorted({_commit(one) for one in records})
    machines = sorted({_machine(one["machine"]) for one in records})
    versions = sorted({str(one["versions"]["jointensor"]) for one in records if "jointensor" in one["versions"]})
    several = f" Versions: {', '.join(versions)}." if len(versions) > 1 else ""
    return f"Commits: {', '.join(commits)}. Machines: {', '.join(machines)}.{several}"


def _commit(record: Record) -> str:
    if record["commit"] is None:
        return "unknown"
    return str(record["commit"])[:7] + ("" if record["clean"] else " with changes")


def _machine(machine: Record) -> str:
    cores = f"{machine['cores']} cores of {machine['cpu']}"
    return f"{machine['gpu']} and {cores}" if machine.get("gpu") else cores
