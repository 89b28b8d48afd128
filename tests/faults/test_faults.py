"""Every fault is brought about, and what is left afterwards is looked at."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from jointensor.data.formats import write_tensor
from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.errors import MemoryFullError
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import load_run
from jointensor.runs.pipeline import run
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe
from tests.faults.networks import DriverHungry, Hungry, LateHungry, LaterNan, Starving

SHORT = make_recipe("default", refine_epochs=4, cycle=4, batch_size=4096, restarts=2)


@pytest.fixture(scope="module")
def tensor():
    return make_joint((30, 25, 20), (2, 0), observed=8000, noise=0.1, seed=2)[0]


@pytest.fixture
def source(tensor, tmp_path):
    path = tmp_path / "tensor.npz"
    write_tensor(tensor, path)
    return path


def command(*arguments):
    return [sys.executable, "-m", "jointensor", *map(str, arguments)]


def short_fit(source, out, *more):
    return command("fit", source, "--out", out, "--rank", "2/3", "--set", "refine_epochs=4", "--set", "cycle=4", *more)


# memory of a GPU


@pytest.mark.parametrize("network", [Hungry, LateHungry, DriverHungry])
def test_out_of_memory_halves_the_batch_says_so_and_goes_on(tensor, network):
    parts = split(tensor, seed=0)
    fitted = fit(JointModel(parts.train.shape, (2, 3), nonlinear=network), parts, SHORT, device="cpu")
    assert fitted.outcome == "converged"
    assert any("out of memory: steps of 1,024 entries" in note for note in fitted.notes)
    assert sum("out of memory" in note for note in fitted.notes) == 2  # what was learnt once is kept
    assert np.isfinite(fitted.predict(parts.test.indices)).all()


def test_too_little_memory_for_any_batch_is_a_plain_error(tensor):
    parts = split(tensor, seed=0)
    with pytest.raises(MemoryFullError, match="--device cpu"):
        fit(JointModel(parts.train.shape, (2, 3), nonlinear=Starving), parts, SHORT, device="cpu")


def test_evaluation_takes_smaller_batches_where_memory_is_short(tensor):
    model = JointModel(tensor.shape, (2, 3), nonlinear=Hungry).eval()
    indices = torch.as_tensor(np.array(tensor.indices))
    expected = torch.cat([model(part) for part in indices.split(500)])
    found = evaluate_in_batches(model, indices, 65536)
    torch.testing.assert_close(found, expected.detach())


# numbers that are none


def test_nan_in_the_middle_of_training_keeps_the_best_state_before(tensor):
    parts = split(tensor, seed=0)
    model = JointModel(parts.train.shape, (2, 3), nonlinear=LaterNan)
    fitted = fit(model, parts, make_recipe(SHORT, batch_size=64, refine_epochs=20, cycle=20), device="cpu")
    assert fitted.outcome == "diverged"
    assert fitted.restarts == 2
    assert np.isfinite([value.abs().max().item() for value in fitted.model.state_dict().values()]).all()


# disks and folders


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_does_not_cost_the_fit(tmp_path):
    out, source = tmp_path / "run", tmp_path / "tensor.npz"
    write_tensor(make_joint((100, 60, 40), (2, 0), observed=60_000, noise=0.1)[0], source)
    done = subprocess.run(
        short_fit(source, out, "--checkpoint-every", "0"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000)),
    )
    assert "no checkpoint was written, training goes on" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    load_run(out)


def test_a_run_folder_that_vanishes_is_one_line(source, tmp_path):
    out = tmp_path / "run"

    def vanish(_):
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if out.exists():
            out.rmdir()

    config = RunConfig(str(source), rank=(2, 3), recipe_changes={"refine_epochs": 2, "cycle": 2}, checkpoint_every=0.0)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is looked at
        run(config, out, Listener(on_epoch=vanish))
    assert type(caught.value).__module__ == "jointensor.errors"
    assert "cannot be written" in str(caught.value)


@pytest.mark.parametrize("place", ["/proc/run", pytest.param("/dev/null/run", marks=pytest.mark.slow)])
def test_a_place_that_cannot_be_written_to_is_one_line(source, place):
    done = subprocess.run(short_fit(source, place), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert place in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_one_line(source, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    done = subprocess.run(short_fit(source, closed / "run"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be made" in done.stderr


# files that go away


@pytest.mark.parametrize(
    "suffix", [pytest.param(suffix, marks=pytest.mark.slow) for suffix in ("parquet", "csv", "npz")]
)
def test_a_source_that_is_cut_off_while_it_is_read_never_ends_in_a_crash(tmp_path, suffix):
    source, out = tmp_path / f"table.{suffix}", tmp_path / "run"
    rng = np.random.default_rng(0)
    count, modes = 400_000, () if suffix == "npz" else ("--modes", "a,b", "--value", "value")
    if suffix == "npz":
        write_tensor(make_joint((200, 100, 50), (1, 0), observed=300_000)[0], source)
    else:
        cells = rng.permutation(1000 * 1000)[:count]
        frame = pl.DataFrame({"a": cells // 1000, "b": cells % 1000, "value": rng.random(count)})
        frame.write_parquet(source) if suffix == "parquet" else frame.write_csv(source)
    process = subprocess.Popen(
        short_fit(source, out, "--set", "rounds=1", "--set", "warm_epochs=1", "--quiet", *modes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (out / "config.json").exists() and process.poll() is None:
        time.sleep(0.0005)
    os.truncate(source, 1000)
    _, err = process.communicate()
    assert process.returncode in (0, 1), err  # it may have been quicker
    assert "Traceback" not in err
    assert (out / "metrics.json").exists() == (process.returncode == 0)


@pytest.mark.slow
def test_queries_that_are_cut_off_while_they_are_answered_leave_no_answer(source, tmp_path):
    out, queries, answers = tmp_path / "run", tmp_path / "queries.parquet", tmp_path / "answers.parquet"
    assert subprocess.run(short_fit(source, out, "--quiet"), check=False).returncode == 0
    rng = np.random.default_rng(0)
    shape = (30, 25, 20)
    names = [mode.name for mode in load_run(out).modes]
    frame = pl.DataFrame({name: rng.integers(0, size, 6_000_000) for name, size in zip(names, shape, strict=True)})
    frame.write_parquet(queries)
    process = subprocess.Popen(
        command("predict", out, queries, "--out", answers), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob(".writing-*")) and process.poll() is None:  # the draft of the answers
        time.sleep(0.0005)
    os.truncate(queries, 100_000)
    _, err = process.communicate()
    assert process.returncode in (0, 1), err
    assert "Traceback" not in err
    assert answers.exists() == (process.returncode == 0)


# workers


@pytest.mark.slow
def test_a_killed_worker_of_a_comparison_is_one_line_and_finished_fits_are_kept(source, tmp_path):
    out = tmp_path / "compared"
    arguments = command(
        "compare", source, "mean", "bias", "cp:2", "julia:2/3", "--seeds", "2", "--jobs", "2", "--out", out, "--quiet",
        "--set", "refine_epochs=60", "--set", "tolerance=0", "--set", "patience=0", "--set", "batch_size=64",
    )  # fmt: skip
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(list((out / "cells").glob("*.json"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    victim = next(pid for pid in children(process.pid) if "spawn_main" in cmdline(pid))
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "a worker died" in err
    assert "Traceback" not in err
    kept = {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}
    assert len(kept) >= 2
    assert subprocess.run(arguments, check=False, stderr=subprocess.DEVNULL).returncode == 0
    for name, written in kept.items():
        assert (out / "cells" / name).stat().st_mtime_ns == written
    assert len(json.loads((out / "config.json").read_text(encoding="utf-8"))["models"]) == 4


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def cmdline(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
