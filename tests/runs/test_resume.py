"""Runs that are killed or interrupted and then resumed, as processes: the result is that of a run that was not.

A process sends the signal to itself when it has written a given number of checkpoints, so that where it ends does not
depend on the speed of the machine.
"""

import json
import random
import signal
import subprocess
import sys

import pytest

from jointensor.data.formats import write_tensor
from jointensor.data.synthetic import make_joint

OPTIONS = (
    "--rank", "2/3", "--engine", "reference", "--device", "cpu", "--set", "batch_size=256", "--set", "refine_epochs=8",
    "--set", "cycle=8", "--refit",
)  # fmt: skip

SIGNALLED = """
import os, signal, sys
from jointensor.cli import main
from jointensor.training.checkpoint import Slot

signals, after = [getattr(signal, name) for name in sys.argv.pop(1).split(",")], int(sys.argv.pop(1))
write = Slot.write

def write_and_signal(slot, *given, **options):
    global after
    write(slot, *given, **options)
    after -= 1
    if after == 0:
        for number in signals:
            os.kill(os.getpid(), number)

Slot.write = write_and_signal
main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "tensor.npz"
    write_tensor(make_joint((20, 15, 10), (2, 0), observed=1500, noise=0.1, seed=1)[0], path)
    return path


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """What a run without any interruption ends with."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert start(source, out) == 0
    return metrics_of(out)


def start(source, out, signals="SIGKILL", after=0):
    """Run, or resume, in a process of its own that signals itself after so many checkpoints; its exit code."""
    fresh = (source, "--out", out, *OPTIONS, "--checkpoint-every", "0")
    given = ("--resume", out) if (out / "config.json").exists() else fresh
    command = [sys.executable, "-c", SIGNALLED, signals, after, "fit", *given, "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run([str(word) for word in command], check=False, **quiet).returncode


def metrics_of(out):
    return json.loads((out / "metrics.json").read_text(encoding="utf-8"))


def checkpoints(out):
    return list((out / "checkpoints").glob("*.safetensors"))


def assert_same(found, whole):
    assert found["test"]["rmse"] == pytest.approx(whole["test"]["rmse"], rel=1e-6)
    assert found["epochs"] == whole["epochs"]
    assert found["files"] == whole["files"]  # the weights are the same, bit for bit


def test_a_killed_run_goes_on_from_its_last_checkpoint_to_the_same_weights(source, whole, tmp_path):
    out = tmp_path / "run"
    for after in (5, 20):
        assert start(source, out, after=after) == -signal.SIGKILL
        assert not (out / "metrics.json").exists()
        assert checkpoints(out)
    assert start(source, out) == 0
    assert_same(metrics_of(out), whole)
    assert metrics_of(out)["resumed_from_epoch"] > 0
    assert not checkpoints(out)  # a finished run needs none


@pytest.mark.slow
def test_a_hundred_kills(source, whole, tmp_path):
    rng, kills, runs = random.Random(0), 0, 0
    while kills < 100:
        runs += 1
        out = tmp_path / str(runs)
        while kills < 100 and start(source, out, after=rng.randrange(1, 40)) != 0:
            kills += 1
        if not (out / "metrics.json").exists():
            assert start(source, out) == 0
        assert_same(metrics_of(out), whole)


def test_ctrl_c_once_keeps_the_best_so_far_and_can_be_resumed(source, whole, tmp_path):
    out = tmp_path / "run"
    assert start(source, out, "SIGINT", 15) == 0
    stopped = metrics_of(out)
    assert stopped["interrupted"]
    assert stopped["epochs"] < whole["epochs"]
    assert any("--resume" in note for note in stopped["notes"])
    assert start(source, out) == 0
    assert_same(metrics_of(out), whole)
    assert not metrics_of(out)["interrupted"]


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_leaves_the_checkpoint(source, whole, tmp_path):
    out = tmp_path / "run"
    assert start(source, out, "SIGINT,SIGINT", 15) == 130
    assert not (out / "metrics.json").exists()
    assert start(source, out) == 0
    assert_same(metrics_of(out), whole)
