"""Runs that are killed, interrupted and resumed, as processes: the result is that of a run that was not."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from jointensor.data.formats.files import write_tensor
from jointensor.data.synthetic import make_joint
from jointensor.training.checkpoint import Slot

OPTIONS = (
    "--rank", "2/3", "--engine", "reference", "--device", "cpu", "--set", "batch_size=64", "--set", "refine_epochs=30",
    "--set", "cycle=30", "--refit",
)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "tensor.npz"
    write_tensor(make_joint((20, 15, 10), (2, 0), observed=1500, noise=0.1, seed=1)[0], path)
    return path


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """What a run without any interruption ends with."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert start(source, out).wait() == 0
    return metrics_of(out)


def start(source, out, every=0.3):
    """A run in a process of its own, or what is left of it."""
    fresh = (source, "--out", out, *OPTIONS, "--checkpoint-every", every)
    given = ("--resume", out) if (out / "config.json").exists() else fresh
    command = [sys.executable, "-m", "jointensor", "fit", *map(str, given), "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def metrics_of(out):
    return json.loads((out / "metrics.json").read_text())


def files(out):
    return {path.name for path in (out / "checkpoints").glob("*.safetensors")}


def wait_for_checkpoint(process, out):
    """Until one more is written or the process ends."""
    before, deadline = files(out), time.monotonic() + 120
    while process.poll() is None and not files(out) - before and time.monotonic() < deadline:
        time.sleep(0.01)


def epochs_written(out):
    """Epochs of all fits that the checkpoints of a run hold."""
    names = {name.split(".")[0] for name in files(out)}
    found = [Slot(out / "checkpoints", name, 0.0, lambda: 0.0).read() for name in names]
    return sum(one["epochs"] for one in found if one is not None)


def kill_until_done(source, out, rng, most):
    """Start and kill a run, again and again, then let it end; returns how often it was killed, and its metrics."""
    for kills in range(most):
        process = start(source, out, every=rng.choice([0.02, 0.1, 0.4]))
        wait_for_checkpoint(process, out)
        time.sleep(rng.random() * 0.4)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0 or (out / "metrics.json").exists():  # written last: a run that has it is finished
            return kills, metrics_of(out)
    known = epochs_written(out)
    assert start(source, out).wait() == 0
    assert metrics_of(out)["resumed_from_epoch"] == pytest.approx(known)
    return most, metrics_of(out)


def assert_same(found, whole):
    assert found["test"]["rmse"] == pytest.approx(whole["test"]["rmse"], rel=1e-6)
    assert found["epochs"] == whole["epochs"]
    assert found["files"] == whole["files"]  # the weights are the same, bit for bit


def test_a_killed_run_goes_on_from_its_last_checkpoint_to_the_same_weights(source, whole, tmp_path):
    kills, found = kill_until_done(source, tmp_path / "run", random.Random(1), 2)
    assert kills
    assert_same(found, whole)
    assert found["resumed_from_epoch"] > 0
    assert not files(tmp_path / "run")  # a finished run needs none


@pytest.mark.slow
def test_a_hundred_kills(source, whole, tmp_path):
    rng, kills, runs = random.Random(0), 0, 0
    while kills < 100:
        runs += 1
        more, found = kill_until_done(source, tmp_path / str(runs), rng, 100 - kills)
        kills += more
        assert_same(found, whole)


@pytest.mark.slow
def test_ctrl_c_once_keeps_the_best_so_far_and_can_be_resumed(source, whole, tmp_path):
    out = tmp_path / "run"
    process = start(source, out)
    wait_for_checkpoint(process, out)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    stopped = metrics_of(out)
    assert stopped["interrupted"]
    assert stopped["epochs"] < whole["epochs"]
    assert any("--resume" in note for note in stopped["notes"])
    assert start(source, out).wait() == 0
    assert_same(metrics_of(out), whole)
    assert not metrics_of(out)["interrupted"]


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_leaves_the_checkpoint(source, whole, tmp_path):
    for gap in (0.1, 0.05, 0.02, 0.01, 0.005):  # two that come at once are one, and a first one may be done in time
        out = tmp_path / f"after {gap}"
        process = start(source, out, every=0.1)
        wait_for_checkpoint(process, out)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(gap)
        if process.wait(timeout=10) != 0:
            break
        assert metrics_of(out)["interrupted"]
    assert process.returncode == 130
    # the second one may come when everything but the report is written
    assert not (out / "metrics.json").exists() or metrics_of(out)["interrupted"]
    assert start(source, out).wait() == 0
    assert_same(metrics_of(out), whole)
