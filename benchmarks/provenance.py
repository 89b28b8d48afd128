"""Commit, versions and machine, for records."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "numpy", "scipy", "numba", "lightgbm")


def provenance():
    """Commit, whether the tree was clean, versions and machine."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                if line.startswith("model name")), platform.processor())  # fmt: skip
    return {
        "commit": git("rev-parse", "HEAD"),
        "clean": not git("status", "--porcelain", "--untracked-files=no"),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": {"cpu": cpu, "cores": len(os.sched_getaffinity(0))},
    }
