"""The default recipe from the command line: biases that are returned, and what run folders say of it."""

import json

import numpy as np
import polars as pl
import pytest

from jointensor import SparseTensor, TensorCompleter, split, write_tensor
from jointensor.predictors import fit_bias
from jointensor.report.pages import figure_rows
from jointensor.runs.compare import CompareConfig, ComparedFit, run_fit
from jointensor.runs.folder import load_run
from jointensor.runs.model_specs import parse_model
from jointensor.training.recipe import RECIPES

SHAPE = (20, 18, 16)
ASKED = ("--rank", "2/8", "--set", "refine_epochs=8", "--device", "cpu")


@pytest.fixture(scope="module")
def tensor():
    """Effects of every mode under noise: all there is to know is biases."""
    rng = np.random.default_rng(1)
    effects = sum(rng.standard_normal([size if m == n else 1 for m in range(3)]) for n, size in enumerate(SHAPE))
    there = np.random.default_rng(0).random(SHAPE) < 0.3
    return SparseTensor.from_dense(np.where(there, effects + rng.standard_normal(SHAPE), np.nan))


@pytest.fixture
def noisy(tensor, tmp_path):
    write_tensor(tensor, tmp_path / "noisy.npz")
    return tmp_path / "noisy.npz"


def fitted(cli, source, out, *more):
    code, stdout, stderr = cli("fit", source, *ASKED, "--out", out, "--json", *more)
    assert code == 0, stderr
    return json.loads(stdout), stderr


def test_the_table_shows_the_joint_models_own_figures_beside_the_biases_that_are_returned(cli, noisy, tmp_path):
    metrics, _ = fitted(cli, noisy, tmp_path / "run")
    rows = {row["model"]: row["rmse"] for row in figure_rows(metrics)}
    assert rows["joint model"] == metrics["returned"]["joint"]["test"]["rmse"] != rows["bias"]
    assert rows["bias"] == pytest.approx(metrics["test"]["rmse"], rel=1e-5)


def test_biases_that_validate_better_are_what_a_run_returns(cli, noisy, tensor, tmp_path):
    metrics, stderr = fitted(cli, noisy, tmp_path / "run")
    parts = split(tensor, seed=0)
    bias = fit_bias(parts.train, parts.valid)
    returned = metrics["returned"]
    assert (returned["model"], returned["refit"]) == ("bias", False)
    for name in ("valid", "test"):
        assert metrics[name]["rmse"] == pytest.approx(metrics["baselines"]["bias"][name]["rmse"], rel=1e-5)
        assert returned["joint"][name]["rmse"] != metrics[name]["rmse"]
    assert returned["joint"]["valid"]["rmse"] > metrics["valid"]["rmse"]
    (note,) = [note for note in metrics["notes"] if note.startswith("the additive-bias predictor is returned")]
    assert note in stderr
    assert (metrics["linear"], metrics["engine"], metrics["first"]) == ("mean+bias+cp:2", "numba", "linear")
    loaded = load_run(tmp_path / "run")
    assert loaded.predictor.returned == "bias"
    np.testing.assert_allclose(
        loaded.predictor.predict(parts.test.indices), bias.predict(parts.test.indices), rtol=1e-6
    )
    code, _, stderr = cli("predict", tmp_path / "run", noisy, "--out", tmp_path / "answers.csv")
    assert code == 0, stderr
    answers = pl.read_csv(tmp_path / "answers.csv")["prediction"].to_numpy()
    np.testing.assert_allclose(answers, bias.predict(tensor.indices), rtol=1e-4, atol=1e-5)


def test_a_run_keeps_the_joint_model_where_it_is_told_to(cli, noisy, tmp_path):
    fell_back, _ = fitted(cli, noisy, tmp_path / "a")
    kept, stderr = fitted(cli, noisy, tmp_path / "b", "--set", "fall_back=false")
    assert kept["returned"] == {"model": "joint", "refit": False}
    assert (kept["valid"], kept["test"]) == tuple(fell_back["returned"]["joint"][name] for name in ("valid", "test"))
    assert "additive-bias" not in stderr
    assert load_run(tmp_path / "b").predictor.returned == "joint"


def test_biases_are_not_trained_once_more_on_all_entries(cli, noisy, tmp_path):
    metrics, stderr = fitted(cli, noisy, tmp_path / "run", "--refit")
    assert (metrics["returned"]["model"], metrics["returned"]["refit"]) == ("bias", False)
    assert "training once more" not in stderr


def test_the_joint_model_is_trained_once_more_where_it_is_returned(cli, noisy, tmp_path):
    metrics, stderr = fitted(cli, noisy, tmp_path / "run", "--refit", "--set", "fall_back=false")
    assert metrics["returned"] == {"model": "joint", "refit": True}
    assert "training once more on all entries" in stderr


def test_a_comparison_never_falls_back(cli, noisy, tmp_path):
    own, _ = fitted(cli, noisy, tmp_path / "run", "--set", "fall_back=false")
    changes = {"refine_epochs": 8, "fall_back": True}
    config = CompareConfig(
        str(noisy), ("julia:2/8,fall_back=true",), recipe="default", recipe_changes=changes, device="cpu"
    )
    cell = run_fit(config, ComparedFit(0, 0, 0))
    assert (cell["valid"], cell["test"]) == (own["valid"], own["test"])
    assert not parse_model("julia:2/8").recipe("default", fall_back=True).fall_back


def test_a_comparison_trains_as_the_paper_does_unless_it_is_told_otherwise(cli, noisy, tmp_path):
    assert CompareConfig("here.npz", ("cp:2",)).recipe == "paper"
    asked = ("compare", noisy, "cp:2", "--seeds", "1", "--jobs", "1", "--set", "refine_epochs=1")
    assert cli(*asked, "--out", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["recipe"] == "paper"


def test_the_default_recipe_is_what_fit_and_the_estimator_use(cli, noisy, tmp_path):
    code, _, stderr = cli("fit", noisy, "--out", tmp_path / "run", "--budget", "0")
    assert code == 0, stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["recipe"] == "default"
    assert TensorCompleter().recipe == "default"
    X, y = np.argwhere(np.ones((4, 3))), np.arange(12.0)
    estimator = TensorCompleter(rank=(2, 2), budget=0.0, device="cpu", random_state=0).fit(X, y)
    assert estimator.fit_.recipe == RECIPES["default"]
    assert estimator.fit_.model.linear == "mean+bias+cp:2"


@pytest.mark.parametrize(
    ("asked", "linear"),
    [
        (("--recipe", "paper"), "cp:2"),
        (("--linear", "cp:3"), "cp:3"),
        (("--set", "blocks=mean+cp"), "mean+cp:2"),
        ((), "mean+bias+cp:2"),
    ],
)
def test_blocks_are_those_of_the_recipe_unless_they_are_spelled_out(cli, noisy, tmp_path, asked, linear):
    code, stdout, stderr = cli(
        "fit", noisy, "--rank", "2/3", *asked, "--out", tmp_path / "run", "--budget", "0", "--json"
    )
    assert code == 0, stderr
    assert json.loads(stdout)["linear"] == linear


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_the_engine_that_was_asked_for_is_named(cli, noisy, tmp_path, engine):
    metrics, _ = fitted(cli, noisy, tmp_path / "run", "--engine", engine)
    assert metrics["engine"] == engine


def test_an_engine_that_cannot_be_used_is_one_line(cli, noisy, tmp_path):
    code, _, stderr = cli("fit", noisy, "--engine", "triton", "--device", "cpu", "--out", tmp_path / "run")
    assert code != 0
    assert "engine 'triton' cannot be used here: it runs on an NVIDIA GPU, not on cpu; take auto or reference" in stderr
    assert not (tmp_path / "run").exists()
