import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from jointensor import JointModel, fit, split
from jointensor.errors import RunError
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.runs.folder import load_run
from jointensor.training.recipe import make_recipe
from tests.command_line import QUICK

MODES = ("--modes", "user,movie,day", "--value", "value")


def test_saved_and_loaded_predictions_are_identical(ratings, tmp_path):
    recipe = make_recipe("paper", warm_epochs=1, rounds=1, refine_epochs=2, batch_size=64)
    model = JointModel(ratings.shape, (2, 3), linear="mean+bias+cp:2", nonlinear="julia,gate=sigmoid,activation=tanh")
    result = fit(model, split(ratings), recipe)
    save_predictor(result.predictor, tmp_path / "w.safetensors")
    loaded = load_predictor(tmp_path / "w.safetensors")
    cells = np.concatenate([ratings.indices, [[-1, 0, 0], [0, -1, 2]]])
    assert (loaded.predict(cells) == result.predict(cells)).all()
    assert (loaded.unseen(cells) == result.predictor.unseen(cells)).all()


def test_a_link_survives_saving(ratings, tmp_path):
    result = fit(
        JointModel(ratings.shape, (1, 1)),
        split(ratings),
        make_recipe("paper", loss="kl", warm_epochs=1, rounds=1, refine_epochs=1),
    )
    save_predictor(result.predictor, tmp_path / "w.safetensors")
    loaded = load_predictor(tmp_path / "w.safetensors")
    assert loaded.model.link == "softplus"
    assert (loaded.predict(ratings.indices) == result.predict(ratings.indices)).all()


def _truncate(out):
    data = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(data[: len(data) // 2])


def _tamper(out):
    tensors = load_file(out / "model.safetensors")
    next(iter(tensors.values())).add_(1)
    save_file(tensors, out / "model.safetensors")


def _relabel(out):
    labels = json.loads((out / "labels.json").read_text(encoding="utf-8"))
    labels["modes"][0]["labels"][0] = "someone else"
    (out / "labels.json").write_text(json.dumps(labels), encoding="utf-8")


@pytest.mark.parametrize("damage", [_truncate, _tamper, _relabel, lambda out: (out / "model.safetensors").unlink()])
def test_damaged_weights_and_labels_are_refused(cli, fitted, tmp_path, damage):
    out, _ = fitted
    damage(out)
    (tmp_path / "q.csv").write_text("user,movie,day\n00003,B,2021-01-02\n", encoding="utf-8")
    code, _, stderr = cli("predict", out, tmp_path / "q.csv", "--out", tmp_path / "a.csv")
    assert code == 1
    assert "checksum" in stderr
    assert not (tmp_path / "a.csv").exists()


def test_a_truncated_safetensors_file_is_a_run_error(fitted, tmp_path):
    out, _ = fitted
    _truncate(out)
    with pytest.raises(RunError, match="damaged"):
        load_predictor(out / "model.safetensors")


def test_an_out_folder_that_exists_is_refused_and_left_alone(cli, fitted, table):
    out, _ = fitted
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    code, _, stderr = cli("fit", table, *MODES, "--out", out)
    assert code == 1
    assert f"{out} exists already" in stderr
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_an_unfinished_run_is_refused_and_resumes_to_the_same_result(cli, fitted, tmp_path):
    out, metrics = fitted
    broken = tmp_path / "broken"
    shutil.copytree(out, broken)
    (broken / "metrics.json").unlink()
    (broken / "model.safetensors").write_bytes(b"half")
    code, _, stderr = cli("components", broken)
    assert code == 1
    assert "unfinished" in stderr
    assert "--resume" in stderr
    assert cli("fit", "--resume", broken)[0] == 0
    resumed = json.loads((broken / "metrics.json").read_text(encoding="utf-8"))
    assert resumed["test"] == metrics["test"]
    assert resumed["files"] == metrics["files"]
    assert cli("fit", "--resume", broken)[0] == 2


def test_a_killed_run_leaves_nothing_that_loads_and_can_be_resumed(cli, table, tmp_path):
    out = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "jointensor",
        "fit",
        str(table),
        *MODES,
        "--out",
        str(out),
        "--recipe",
        "paper",
        "--set",
        "refine_epochs=1000000",
        "--set",
        "tolerance=0",
        "--set",
        "patience=0",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while process.poll() is None and b"epoch" not in process.stderr.readline():  # until it trains
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "metrics.json").exists()
    with pytest.raises(RunError, match="unfinished"):
        load_run(out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["recipe_changes"] = {"warm_epochs": 1, "rounds": 1, "refine_epochs": 1}
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert cli("fit", "--resume", out)[0] == 0


def fit_on_a_small_disk(table, out, limit):
    """A fit whose files may not be larger than ``limit`` bytes."""
    command = [sys.executable, "-m", "jointensor", "fit", str(table), *MODES, "--out", str(out), "--quiet", *QUICK]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def test_a_full_disk_before_training_is_one_line_and_leaves_nothing(table, tmp_path):
    out = tmp_path / "run"
    done = fit_on_a_small_disk(table, out, 100)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["ratings.csv"]


@pytest.mark.parametrize("limit", [pytest.param(3000, marks=pytest.mark.slow), 20_000])
def test_a_full_disk_after_training_keeps_the_run_and_says_how_to_go_on(cli, fitted, table, tmp_path, limit):
    out = tmp_path / "full"
    done = fit_on_a_small_disk(table, out, limit)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert f"jointensor fit --resume {out}" in done.stderr.replace("\n", " ")
    assert done.stderr.count("\n") == 1
    with pytest.raises(RunError, match="unfinished"):
        load_run(out)
    code, _, stderr = cli("fit", "--resume", out)
    assert code == 0, stderr
    assert load_run(out).metrics["test"]["n"] == 60


@pytest.mark.parametrize("rank", ["2/3", "auto"])
def test_a_report_that_fails_does_not_cost_the_fit(cli, table, tmp_path, rank):
    """A folder lies where the page should go; it is made as soon as the run's folder is there."""
    out = tmp_path / "run"
    stop = threading.Event()

    def in_the_way():
        while not stop.is_set() and not (out / "config.json").exists():
            time.sleep(0.001)
        (out / "report.html").mkdir()

    other = threading.Thread(target=in_the_way)
    other.start()
    try:
        short = ("--budget-fits", "3") if rank == "auto" else QUICK
        code, _, _ = cli("fit", table, *MODES, "--rank", rank, "--out", out, *short)
    finally:
        stop.set()
        other.join()
    assert code == 1
    assert load_run(out).predictor.predict(np.zeros((1, 3), dtype=int)).shape == (1,)


def test_the_report_is_one_page_without_outside_files_and_escapes_labels(fitted):
    out, metrics = fitted
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page
    assert f"{metrics['test']['rmse']:.4g}" in page
    assert "<svg" in page
