"""Workers end with the process that started them."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from jointensor.runs.compare import end_with_parent

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds that a busy machine may take to end a process; nothing is measured by them."""


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # one that nobody has waited for yet has ended all the same


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_workers_end_when_their_parent_is_killed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    parent = subprocess.Popen([sys.executable, "-m", "tests.runs.parent", tmp_path], env=environment)
    try:
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert wait_until(lambda: not any(map(is_running, workers)))


def test_a_process_that_is_nobodys_worker_watches_nobody():
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before
