"""One pipeline for every kind of run: the same stages and keys, and what worked before a command works after it."""

import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from jointensor.data.formats import write_tensor
from jointensor.data.synthetic import make_joint
from jointensor.runs import pipeline
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import METRICS, STAGED, load_run, settle
from jointensor.runs.pipeline import resume, run
from jointensor.runs.result import RunResult, Stages
from tests.distributed.launch import torchrun

STAGES = ["read", "split", "baselines", "train", "evaluate", "write"]
QUICK = {"refine_epochs": 6, "cycle": 0, "patience": 0, "ridges": (0.1,), "sweeps": 2, "batch_size": 64}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "tensor.npz"
    write_tensor(make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=1)[0], path)
    return path


def config_of(source, **changes):
    return RunConfig(str(source), **({"rank": (2, 3), "recipe_changes": QUICK, "device": "cpu"} | changes))


KINDS = {
    "in memory": {},
    "from disk": {"memory": 10**9, "stream": True},
    "by search": {"rank": "auto", "recipe_changes": {}, "budget_fits": 6},
}


class Killed(BaseException):
    """The end of the process, as far as the code under test can tell."""


def walked(call):
    """The functions of the pipeline in the order in which they are entered."""
    names = []

    def enter(frame, event, _):
        if event == "call" and frame.f_code.co_filename == pipeline.__file__:
            names.append(frame.f_code.co_name)

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in names if not name.startswith(("_", "<"))]


@pytest.fixture(scope="module")
def runs(source, tmp_path_factory):
    """A run of every kind: its folder, and the functions that it walked through."""
    folder, found = tmp_path_factory.mktemp("kinds"), {}
    for kind, changes in KINDS.items():
        out = folder / kind.replace(" ", "-")
        found[kind] = out, walked(lambda c=changes, o=out: run(config_of(source, **c), o))
    return found


def metrics_of(out):
    return json.loads((out / METRICS).read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_walks_the_same_stages_in_the_same_order(runs, kind):
    out, functions = runs[kind]
    assert functions == ["run", "read_and_split", "train", "evaluate", "write"]
    assert list(metrics_of(out)["steps"]) == STAGES


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_the_same_keys(runs, kind):
    metrics = metrics_of(runs[kind][0])
    assert list(metrics) == list(metrics_of(runs["in memory"][0]))
    assert set(metrics) == {field.name for field in fields(RunResult)}
    for part in ("test", "valid"):
        assert set(metrics[part]) == {"rmse", "mae", "rfe", "n", "warm", "cold"}
    assert set(metrics["baselines"]) == {"mean", "bias", "tables", "interp"}
    assert sum(metrics["entries"][part] for part in ("train", "valid", "test")) == metrics["entries"]["all"] == 600


def test_two_processes_walk_the_same_stages(source, tmp_path):
    changes = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    out = tmp_path / "run"
    done = torchrun("-m", "jointensor", "fit", source, "--rank", "2/3", "--device", "cpu", *changes, "--out", out)
    assert done.returncode == 0, done.stderr
    metrics = metrics_of(out)
    assert list(metrics["steps"]) == STAGES
    assert set(metrics) == {field.name for field in fields(RunResult)}
    assert metrics["world_size"] == 2


def stopped_run(source, out):
    """A run that was stopped after a few epochs, and finished with the best model so far."""
    epochs = []
    result = run(config_of(source), out, Listener(on_epoch=epochs.append, stopping=lambda: len(epochs) >= 4))
    assert result.interrupted
    return result


def test_a_resume_that_is_killed_leaves_the_model_that_worked(source, tmp_path):
    out = tmp_path / "run"
    before = stopped_run(source, out)
    predicted = load_run(out).predictor.predict(np.zeros((1, 3), dtype=int))

    def killed(_):
        raise Killed

    with pytest.raises(Killed):
        resume(out, Listener(on_epoch=killed))
    assert load_run(out).metrics["files"] == before.files
    assert load_run(out).predictor.predict(np.zeros((1, 3), dtype=int)) == predicted
    whole = run(config_of(source), tmp_path / "whole")
    assert resume(out).files == whole.files  # and it can still be finished, to the same weights


@pytest.mark.parametrize("moves", range(4))
def test_a_run_whose_new_files_were_not_all_in_place_has_one_model_or_the_other(source, tmp_path, monkeypatch, moves):
    out = tmp_path / "run"
    stopped_run(source, out)
    done, replace = [], Path.replace

    def cut_off(self, target):
        if self.parent.name == STAGED and len(done) >= moves:
            raise Killed
        if self.parent.name == STAGED:
            done.append(self.name)
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut_off)
        with pytest.raises(Killed):
            resume(out)
    assert len(done) == moves
    found = load_run(out)  # checks the checksums
    assert not found.metrics["interrupted"]
    assert not (out / STAGED).exists()


def test_new_files_that_are_not_whole_are_dropped(source, tmp_path):
    out = tmp_path / "run"
    before = run(config_of(source), out)
    (out / STAGED).mkdir()
    (out / STAGED / "model.safetensors").write_bytes(b"half")
    assert load_run(out).metrics["files"] == before.files
    settle(out)
    assert not (out / STAGED).exists()
    assert load_run(out).metrics["files"] == before.files


def test_stages_count_the_seconds_of_an_injected_clock():
    ticks = iter([0.0, 2.0, 2.0, 5.0, 6.0])
    stages = Stages(clock=lambda: next(ticks))
    with stages("read"):
        pass
    with stages("write"):
        assert stages.seconds() == {"read": 2.0, "write": 3.0}
