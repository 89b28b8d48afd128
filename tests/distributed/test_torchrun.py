"""Fits by two processes under torchrun: what one process finds, and ends that are the same for all."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from jointensor.cli.app import app
from jointensor.data.formats import read_tensor, write_tensor
from jointensor.data.synthetic import make_joint
from jointensor.runs.folder import load_run
from tests.distributed.launch import torchrun

SMALL = ("--rank", "2/3", "--engine", "reference", "--set", "refine_epochs=8", "--set", "restarts=0")
WEAK = (*SMALL, "--recipe", "paper", "--set", "batch_size=64", "--nonlinear", "weak")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("torchrun") / "tensor.npz"
    write_tensor(make_joint((20, 15, 10), (2, 0), observed=1501, noise=0.1, seed=1)[0], path)
    return path


def alone(source, out, *options):
    done = CliRunner().invoke(app, list(map(str, ("fit", source, "--out", out, *options, "--quiet"))))
    assert done.exit_code == 0, done.output
    return metrics_of(out)


def together(source, out, *options, **how):
    done = torchrun("-m", "jointensor", "fit", source, "--out", out, *options, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return metrics_of(out), done


def metrics_of(out):
    return json.loads((out / "metrics.json").read_text(encoding="utf-8"))


def test_two_processes_find_what_one_finds_each_with_half_of_the_entries(source, tmp_path):
    one = alone(source, tmp_path / "one", *SMALL)
    two, done = together(source, tmp_path / "two", *SMALL)
    assert two["test"]["rmse"] == pytest.approx(one["test"]["rmse"], rel=1e-3)
    assert two["baselines"] == one["baselines"]
    assert (one["world_size"], two["world_size"]) == (1, 2)
    train = two["entries"]["train"]
    assert train % 2 == 1  # one process has an entry more
    assert two["entries_per_rank"] == [train // 2 + 1, train // 2]
    assert two["communication"]["bytes"] == pytest.approx(two["communication"]["bytes_per_epoch"] * two["epochs"])
    assert one["communication"] is None
    assert done.stdout.count("run folder:") == 1
    assert done.stderr.count("entries to train on") == 1
    assert load_run(tmp_path / "two").predictor.model.n_parameters() == one["parameters"]


@pytest.mark.slow
def test_a_process_that_fails_ends_all_with_its_message(source, tmp_path):
    done = torchrun("-m", "tests.distributed.trouble", "lost", "fit", source, "--out", tmp_path / "run", *SMALL)
    assert done.returncode != 0
    assert done.stderr.count("error: there is no file") == 1
    assert done.stderr.count("error: ") == 1


@pytest.mark.slow
def test_processes_must_read_the_same_source(source, tmp_path):
    (source.parent / "other.npz").write_bytes(source.read_bytes() + b" ")
    done = torchrun("-m", "tests.distributed.trouble", "other", "fit", source, "--out", tmp_path / "run", *SMALL)
    assert done.returncode != 0
    assert done.stderr.count("error: process 1 of 2 reads another") == 1
    assert done.stderr.count("error: ") == 1


@pytest.mark.slow
def test_a_failure_in_the_middle_of_training_ends_all_with_its_message(source, tmp_path):
    done = torchrun("-m", "tests.distributed.trouble", "fails", "fit", source, "--out", tmp_path / "run", *WEAK)
    assert done.returncode != 0
    assert done.stderr.count("ArithmeticError: the network of process 1 fell over") == 1
    assert "error: one of the 2 processes" not in done.stderr


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_given_up(source, tmp_path):
    given = ("fit", source, "--out", tmp_path / "run", *WEAK)
    done = torchrun("-m", "tests.distributed.trouble", "sleeps", *given, JOINTENSOR_TIMEOUT="8")
    assert done.returncode != 0
    assert done.stderr.count("error: one of the 2 processes has ended or does not answer") == 1


@pytest.mark.slow
def test_a_stopped_process_of_a_search_is_named_and_ends_all(source, tmp_path):
    given = ("fit", source, "--out", tmp_path / "run", "--rank", "auto", "--budget-fits", "8")
    done = torchrun("-m", "tests.distributed.trouble", "stopped", *given, JOINTENSOR_TIMEOUT="8")
    assert done.returncode != 0
    assert done.stderr.count("error: process 1 of 2 gave no sign of life for 8 s") == 1


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_job_ends_with_the_right_result(source, tmp_path):
    given = ("fit", source, *WEAK, "--checkpoint-every", "0")
    done = [
        torchrun("-m", "tests.distributed.trouble", kind, *given, "--out", tmp_path / kind, restarts=1)
        for kind in ("killed", "fine")
    ]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr[-3000:]
    killed, fine = (metrics_of(tmp_path / kind) for kind in ("killed", "fine"))
    assert killed["resumed_from_epoch"] > 0
    assert killed["test"]["rmse"] == pytest.approx(fine["test"]["rmse"], rel=1e-5)
    assert killed["epochs"] == fine["epochs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--recipe", "paper", "--rank", "2/3"),
        ("--rank", "3/0", "--set", "linear_solver=gibbs", "--set", "draws=100"),
        ("--rank", "2/3", "--set", "linear_solver=gibbs", "--linear", "mean+bias+tables+fm:3+implicit:mode_0/mode_1"),
        ("--rank", "2/0", "--loss", "huber", "--refit"),
        ("--rank", "2/3", "--nonlinear", "neptune", "--set", "refine_epochs=8"),
    ],
    ids=["paper", "gibbs", "gibbs-joint", "huber-refit", "neptune"],
)
def test_recipes_and_solvers_agree_with_one_process(tmp_path, options):
    tensor = tmp_path / "tensor.npz"
    write_tensor(make_joint((30, 25, 20), (2, 0), observed=8000, noise=0.3, seed=1)[0], tensor)
    one = alone(tensor, tmp_path / "one", *options)
    two, _ = together(tensor, tmp_path / "two", *options)
    noise = 0.02 if "neptune" in options else 0.005  # what drops out, and batch statistics, are a process's own
    assert two["test"]["rmse"] == pytest.approx(one["test"]["rmse"], rel=noise)


@pytest.mark.slow
def test_a_search_shares_its_fits_out(source, tmp_path):
    options = ("--rank", "auto", "--budget-fits", "16")
    one = alone(source, tmp_path / "one", *options)
    two, _ = together(source, tmp_path / "two", *options)
    assert two["entries_per_rank"] == [two["entries"]["train"]] * 2
    assert "whole fits were shared out to 2 processes; each has all entries" in two["notes"]
    assert two["valid"]["rmse"] <= 1.05 * one["valid"]["rmse"]


@pytest.mark.slow
def test_one_process_under_torchrun_goes_the_way_of_several(source, tmp_path):
    one = alone(source, tmp_path / "one", *SMALL)
    joined, _ = together(source, tmp_path / "joined", *SMALL, processes=1)
    assert joined["entries_per_rank"] == [joined["entries"]["train"]]
    assert joined["test"]["rmse"] == pytest.approx(one["test"]["rmse"], rel=1e-3)
    again = torchrun("-m", "jointensor", "fit", source, "--out", tmp_path / "joined", *SMALL, processes=1)
    assert again.returncode != 0
    assert again.stderr.count("exists already") == 1


@pytest.mark.slow
def test_an_error_of_all_is_said_once_and_an_unfinished_folder_is_gone_on_with(source, tmp_path):
    out = tmp_path / "run"
    wrong = torchrun("-m", "jointensor", "fit", source, "--out", out, *SMALL, "--recipe", "papr")
    assert wrong.returncode != 0
    assert wrong.stderr.count("error: ") == 1
    assert not out.exists()
    stopped = torchrun("-m", "tests.distributed.trouble", "killed", "fit", source, "--out", out, *WEAK)
    assert stopped.returncode != 0
    assert not (out / "metrics.json").exists()
    other = torchrun("-m", "tests.distributed.trouble", "fine", "fit", source, "--out", out, *WEAK, "--seed", "1")
    assert "was begun with other options" in other.stderr
    done = torchrun("-m", "tests.distributed.trouble", "fine", "fit", source, "--out", out, *WEAK)
    assert done.returncode == 0, done.stderr[-3000:]
    assert metrics_of(out)["world_size"] == 2


def test_two_processes_from_disk_find_what_one_finds_in_memory(source, tmp_path):
    options = (
        "--rank",
        "2/0",
        "--refit",
        "--set",
        "sweeps=3",
        "--set",
        "ridges=(0.01, 0.1)",
        "--set",
        "refine_epochs=3",
    )
    one = alone(source, tmp_path / "one", *options)
    two, done = together(source, tmp_path / "two", *options, "--memory", "1GB", "--stream")
    assert two["entries"] == one["entries"]
    assert sum(two["entries_per_rank"]) == two["entries"]["train"]
    assert len(two["entries_per_rank"]) == two["world_size"] == 2
    for part in ("test", "valid"):
        assert two[part]["n"] == one[part]["n"]
        assert two[part]["rmse"] == pytest.approx(one[part]["rmse"], rel=1e-3)
        assert two["baselines"]["bias"][part]["rmse"] == pytest.approx(one["baselines"]["bias"][part]["rmse"], rel=1e-5)
    assert two["returned"] == one["returned"] == {"model": "joint", "refit": True}
    indices = read_tensor(source).tensor.indices
    wanted, found = (load_run(tmp_path / name).predictor.predict(indices) for name in ("one", "two"))
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    assert done.stderr.count("entries stay on disk") == 1
    assert not list((tmp_path / "two" / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_joint_fit_by_two_processes_from_disk(source, tmp_path):
    one = alone(source, tmp_path / "one", *SMALL)
    two, _ = together(source, tmp_path / "two", *SMALL, "--memory", "1GB", "--stream")
    assert two["test"]["rmse"] < 1.1 * one["test"]["rmse"]
