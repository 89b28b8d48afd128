"""The command line around the search: ``--rank auto``, intervals, blocks that memorise, ``select``."""

import csv
import json
import math
import shutil
import signal
import sys
from functools import partial

import numpy as np
import polars as pl
import pytest

from jointensor import SparseTensor, write_tensor
from jointensor.cli import main
from jointensor.data.modes import Mode
from jointensor.data.split import folds
from jointensor.predictors.kriging import Kriging
from jointensor.runs.folder import load_run
from jointensor.search.families import FAMILIES
from jointensor.search.portfolio import BIAS, Candidate
from jointensor.search.search import search
from tests.command_line import QUICK

MODES = ("--modes", "user,movie,day", "--value", "value")
SIZES = (14, 10, 12)
LABELS = (
    tuple(f"{n:05d}" for n in range(SIZES[0])),
    tuple("ABCDEFGHIJ"),
    tuple(f"2021-01-{d:02d}" for d in range(1, SIZES[2] + 1)),
)


def smooth():
    """One component, and a path of its own along the days of every user and movie."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(size) + 0.5 for size in SIZES)
    path = rng.standard_normal(SIZES)
    for t in range(1, SIZES[2]):
        path[..., t] = 0.95 * path[..., t - 1] + math.sqrt(1 - 0.95**2) * path[..., t]
    return np.einsum("i,j,k->ijk", a, b, c) * 2 + path + 0.1 * rng.standard_normal(SIZES)


DENSE = smooth()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A table of 1,100 of the 1,680 cells."""
    cells = np.random.default_rng(1).permutation(np.argwhere(np.ones(SIZES)))[:1100]
    modes = tuple(
        Mode(name, len(own), own, order)
        for name, own, order in zip(("user", "movie", "day"), LABELS, ("none", "none", "ordered"), strict=True)
    )
    path = tmp_path_factory.mktemp("source") / "ratings.csv"
    write_tensor(SparseTensor(cells, DENSE[tuple(cells.T)], modes), path)
    return path


@pytest.fixture(scope="module")
def once(source, tmp_path_factory):
    """A finished search."""
    out = tmp_path_factory.mktemp("auto") / "run"
    words = ("fit", source, *MODES, "--rank", "auto", "--budget-fits", "14", "--quiet", "--out", out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["jointensor", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    return out


@pytest.fixture
def searched(once, tmp_path):
    """A copy of it, so that a test may spoil it, and what metrics.json holds."""
    out = shutil.copytree(once, tmp_path / "searched")
    return out, json.loads((out / "metrics.json").read_text(encoding="utf-8"))


def choose_from(monkeypatch, *candidates):
    """Searches choose from these candidates alone: there is no default fit."""
    monkeypatch.setattr("jointensor.runs.train.search", partial(search, candidates=list(candidates)))


@pytest.fixture
def few(monkeypatch):
    """Searches that choose between biases and two components, in a moment."""
    choose_from(monkeypatch, BIAS, Candidate("julia:2/0", "joint", 6, (2, 0), stage="core"))


def numbers_in(thing):
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list):
        return [number for one in thing for number in numbers_in(one)]
    return [thing] if isinstance(thing, int | float) else []


def ask(path, cells):
    rows = [[LABELS[n][i] for n, i in enumerate(cell)] for cell in cells]
    pl.DataFrame(rows, schema=["user", "movie", "day"], orient="row").write_csv(path)
    return path


def missing_cells(source):
    seen = {tuple(row[:3]) for row in pl.read_csv(source, infer_schema=False).iter_rows()}
    every = np.argwhere(np.ones(SIZES))
    return np.array([cell for cell in every if tuple(LABELS[n][i] for n, i in enumerate(cell)) not in seen])


# --- a search


def test_metrics_of_a_search_are_whole(searched):
    out, metrics = searched
    assert {"test", "valid", "baselines", "returned", "search", "outcome", "files", "notes"} <= set(metrics)
    assert all(math.isfinite(number) for number in numbers_in(metrics))
    assert metrics["returned"]["model"] == "auto"
    assert metrics["outcome"] in ("converged", "budget")
    assert metrics["test"]["n"] == 220
    assert metrics["valid"]["n"] <= 880
    assert metrics["valid"]["rmse"] == pytest.approx(metrics["search"]["all"], rel=1e-5)
    assert metrics["search"]["reason"] in metrics["notes"]
    assert sum(row["weight"] for row in metrics["search"]["trials"]) == pytest.approx(1.0)
    assert metrics["test"]["rmse"] < min(one["test"]["rmse"] for one in metrics["baselines"].values())
    assert not (out / "checkpoints" / "search").exists()
    assert (out / "report.html").exists()


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_a_search_predicts_with_intervals(cli, searched, source, tmp_path, ending):
    out, _ = searched
    cells = missing_cells(source)
    queries = ask(tmp_path / "q.csv", cells)
    code, _, err = cli("predict", out, queries, "--interval", "0.9", "--out", tmp_path / f"a.{ending}")
    assert code == 0, err
    if ending == "csv":
        frame = pl.read_csv(tmp_path / "a.csv")
        said, low, high = (frame[name].to_numpy() for name in ("prediction", "lower", "upper"))
    else:
        archive = np.load(tmp_path / "a.npz")
        said, low, high = (archive[name] for name in ("values", "lower", "upper"))
    truth = DENSE[tuple(cells.T)]
    assert np.mean((low <= said) & (said <= high)) > 0.95
    chance = 4 * math.sqrt(0.09 * (1 / len(cells) + 1 / 880))
    assert np.mean((low <= truth) & (truth <= high)) > 0.9 - chance
    # calibrated by models of four fifths of the entries, whose errors are larger: but not much wider than necessary
    assert np.mean(high - low) < 1.5 * 2 * np.quantile(np.abs(said - truth), 0.9)
    predictor = load_run(out).predictor
    np.testing.assert_allclose(said, predictor.predict(cells), rtol=1e-5)
    np.testing.assert_allclose(np.stack([low, high], axis=1), predictor.interval(cells, 0.9), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", ["0", "1", "90", "-0.1", "nan"])
def test_a_level_that_is_no_share_is_refused(cli, searched, tmp_path, level):
    queries = ask(tmp_path / "q.csv", [(0, 0, 0)])
    code, _, err = cli("predict", searched[0], queries, "--interval", level, "--out", tmp_path / "a.csv")
    assert code == 2, err
    assert not (tmp_path / "a.csv").exists()


def test_a_search_can_be_evaluated_and_completed(cli, searched, source, tmp_path):
    out, metrics = searched
    code, stdout, err = cli("evaluate", out, source, "--json")
    assert code == 0, err
    assert json.loads(stdout)["n"] == 1100
    assert json.loads(stdout)["rmse"] < metrics["test"]["rmse"]  # most of them were learnt from
    code, _, err = cli("complete", out, "--top", "3", "--out", tmp_path / "top.csv")
    assert code == 0, err
    assert pl.read_csv(tmp_path / "top.csv").height == 3


def test_components_of_a_search_are_shown_where_there_are_some(cli, few, source, tmp_path):
    out = tmp_path / "run"
    assert cli("fit", source, *MODES, "--rank", "auto", "--budget-fits", "40", "--out", out)[0] == 0
    code, stdout, err = cli("components", out, "--json", "--no-picture")
    assert code == 0, err
    assert len(json.loads(stdout)) == 2


def test_a_search_without_components_says_so(cli, source, tmp_path, monkeypatch):
    choose_from(monkeypatch, BIAS)
    out = tmp_path / "run"
    assert cli("fit", source, *MODES, "--rank", "auto", "--budget-fits", "40", "--out", out)[0] == 0
    assert load_run(out).predictor.model is None
    code, stdout, err = cli("components", out)
    assert code in (0, 1, 2)
    assert "no multilinear components" in " ".join((stdout + err).split())


def test_unseen_labels_are_answered_and_flagged(cli, searched, tmp_path):
    (tmp_path / "q.csv").write_text("user,movie,day\n00001,A,2021-01-01\nnobody,A,2021-01-02\n", encoding="utf-8")
    code, _, err = cli("predict", searched[0], tmp_path / "q.csv", "--interval", "0.8", "--out", tmp_path / "a.csv")
    assert code == 0, err
    frame = pl.read_csv(tmp_path / "a.csv")
    assert frame["unseen"].to_list() == [False, True]
    assert frame.select(pl.col("prediction", "lower", "upper").is_finite().all()).row(0) == (True, True, True)


def test_a_search_that_lost_its_metrics_is_resumed(cli, searched, few, source, tmp_path):
    out, before = searched
    code, _, err = cli("fit", "--resume", out)
    assert code == 2
    assert "finished already" in err
    (out / "metrics.json").unlink()
    assert cli("predict", out, source, "--out", tmp_path / "a.csv")[0] == 1
    code, _, err = cli("fit", "--resume", out)
    assert code == 0, err
    after = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert after["test"]["n"] == before["test"]["n"]
    assert after["returned"] == before["returned"]
    assert cli("predict", out, source, "--out", tmp_path / "a.csv")[0] == 0


def test_without_test_entries_there_are_no_test_figures(cli, few, source, tmp_path):
    out = tmp_path / "run"
    code, _, err = cli("fit", source, *MODES, "--rank", "auto", "--budget-fits", "40", "--test", "0", "--out", out)
    assert code == 0, err
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"] is None
    assert all(one["test"] is None for one in metrics["baselines"].values())
    assert metrics["valid"]["n"] == 1100
    assert all(math.isfinite(number) for number in numbers_in(metrics))


def test_groups_stay_on_one_side(cli, few, source, tmp_path):
    out = tmp_path / "run"
    arguments = ("--rank", "auto", "--budget-fits", "40", "--split", "group:user,movie")
    code, _, err = cli("fit", source, *MODES, *arguments, "--out", out)
    assert code == 0, err
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["split"]["rule"] == "group:user,movie"
    # a pair that is new has no neighbours along the days: figures must not be those of pairs that have some
    assert metrics["valid"]["rmse"] == pytest.approx(metrics["test"]["rmse"], rel=0.3)


def test_large_tensors_are_searched_too(cli, few, source, tmp_path, monkeypatch):
    """As if 1,000 entries were many: some of them only calibrate."""
    monkeypatch.setattr(folds, "MIN_ENTRIES_TO_HOLD_OUT", 500)
    monkeypatch.setattr(folds, "CALIBRATION_SHARE", 0.2)
    out = tmp_path / "run"
    code, _, err = cli("fit", source, *MODES, "--rank", "auto", "--budget-fits", "40", "--out", out)
    assert code == 0, err
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["valid"]["rmse"] == pytest.approx(metrics["search"]["all"], rel=1e-5)
    assert metrics["valid"]["n"] < 880


@pytest.mark.parametrize("more", [("--linear", "cp:2"), ("--refit",), ("--set", "rounds=3"), ("--recipe", "paper")])
def test_what_a_search_decides_cannot_be_given(cli, source, tmp_path, more):
    code, _, err = cli("fit", source, *MODES, "--rank", "auto", *more, "--out", tmp_path / "run")
    assert code == 2
    assert "--rank auto chooses by itself" in err
    assert not (tmp_path / "run").exists()


def test_an_interrupted_search_keeps_its_fits_and_is_resumed_to_the_same_result(
    cli, few, source, tmp_path, monkeypatch
):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    arguments = ("fit", source, *MODES, "--rank", "auto", "--budget-fits", "40", "--out")
    assert cli(*arguments, whole)[0] == 0
    real, calls = FAMILIES["joint"].fit, []

    def interrupted(*args):
        calls.append(None)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(FAMILIES["joint"], "fit", interrupted)
        code, _, err = cli(*arguments, stopped)
    assert code == 0, err
    first, metrics = (json.loads((out / "metrics.json").read_text(encoding="utf-8")) for out in (whole, stopped))
    assert metrics["outcome"] == "interrupted"
    assert any((stopped / "checkpoints" / "search").iterdir())
    code, _, err = cli("fit", "--resume", stopped)
    assert code == 0, err
    metrics = json.loads((stopped / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["outcome"] == first["outcome"] == "converged"
    assert (metrics["test"], metrics["valid"]) == (first["test"], first["valid"])
    assert metrics["search"]["reason"] == first["search"]["reason"]
    assert not (stopped / "checkpoints" / "search").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank", "auto", "--budget", "5", "--budget-fits", "20"), "not both"),
        (("--rank", "2/3", "--budget-fits", "20"), "goes with --rank auto"),
        (("--rank", "auto", "--budget-fits", "0"), "--budget-fits"),
    ],
)
def test_a_budget_in_fits_is_for_searches_and_instead_of_seconds(cli, source, tmp_path, arguments, message):
    code, _, err = cli("fit", source, *MODES, *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert message in err
    assert not (tmp_path / "run").exists()


# --- plain fits


def test_a_plain_fit_has_intervals(cli, fitted, ratings, tmp_path):
    out, _ = fitted
    np.savez(tmp_path / "q.npz", indices=ratings.indices)
    code, _, err = cli("predict", out, tmp_path / "q.npz", "--interval", "0.8", "--out", tmp_path / "a.npz")
    assert code == 0, err
    answers = np.load(tmp_path / "a.npz")
    assert (answers["lower"] <= answers["upper"]).all()
    wide = cli("predict", out, tmp_path / "q.npz", "--interval", "0.95", "--out", tmp_path / "b.npz")
    assert wide[0] == 0
    more = np.load(tmp_path / "b.npz")
    assert (more["lower"] <= answers["lower"] + 1e-6).all()
    assert (more["upper"] >= answers["upper"] - 1e-6).all()


def test_blocks_that_memorise_are_given_by_name(cli, source, tmp_path):
    cells, said = missing_cells(source), {}
    for name, linear in (("without", "mean+bias+cp:2"), ("with", "mean+bias+cp:2+local:day+tables")):
        out = tmp_path / name
        code, _, err = cli("fit", source, *MODES, "--rank", "0/0", "--linear", linear, "--out", out)
        assert code == 0, err
        said[name] = load_run(out).predictor.predict(cells)
    run = load_run(tmp_path / "with")
    assert [part.axis.modes for part in run.predictor.residual_models if isinstance(part, Kriging)] == [(2,)]
    assert any("local:day reduced the held-out squared error by" in note for note in run.metrics["notes"])
    errors = {name: np.sqrt(np.mean((one - DENSE[tuple(cells.T)]) ** 2)) for name, one in said.items()}
    assert errors["with"] < 0.8 * errors["without"]
    assert run.metrics["test"]["rmse"] == pytest.approx(errors["with"], rel=0.3)


@pytest.mark.parametrize("entries", [1, 2, 3, 4])
def test_a_handful_of_entries_is_memorised_or_not_but_fitted(entries, cli, tmp_path):
    tensor = SparseTensor([[n, n % 2] for n in range(entries)], np.arange(1.0, entries + 1), (4, 2))
    write_tensor(tensor, tmp_path / "few.npz")
    linear = "mean+bias+tables:mode_1+local:mode_0"
    code, _, err = cli(
        "fit", tmp_path / "few.npz", "--rank", "0/0", "--linear", linear, "--test", "0", "--valid", "0",
        "--out", tmp_path / "run", *QUICK,
    )  # fmt: skip
    assert code == 0, err
    assert np.isfinite(load_run(tmp_path / "run").predictor.predict(tensor.indices)).all()


def test_a_mode_that_is_not_there_cannot_be_memorised(cli, source, tmp_path):
    linear = "mean+bias+local:week"
    code, _, err = cli("fit", source, *MODES, "--rank", "0/0", "--linear", linear, "--out", tmp_path / "run")
    assert code in (1, 2)
    assert "week" in err
    assert not (tmp_path / "run").exists()


def test_blocks_can_be_drawn(cli, source, tmp_path):
    out = tmp_path / "run"
    code, _, err = cli(
        "fit", source, *MODES, "--rank", "0/0", "--linear", "mean+bias+fm:2+tables", "--set", "linear_solver=gibbs",
        "--set", "burn_in=10", "--set", "draws=10", "--out", out,
    )  # fmt: skip
    assert code == 0, err
    run = load_run(out)
    assert len(run.predictor.model.multilinear.draws) == 10
    assert run.metrics["test"]["rmse"] < run.metrics["baselines"]["bias"]["test"]["rmse"]
    assert run.config["recipe_changes"]["linear_solver"] == "gibbs"


# --- select


def test_select_writes_its_files(cli, source, tmp_path):
    out = tmp_path / "grid"
    grid = ("--linear-ranks", "2,1", "--nonlinear-ranks", "0", "--n-folds", "1", "--starts", "1")
    code, stdout, err = cli("select", source, *MODES, *grid, "--out", out)
    assert code == 0, err
    assert {path.name for path in out.iterdir()} == {"grid.csv", "grid.png", "selection.json"}
    with (out / "grid.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["R"], row["F"]) for row in rows] == [("1", "0"), ("2", "0")]
    chosen = json.loads((out / "selection.json").read_text(encoding="utf-8"))["chosen"]
    assert chosen in ([1, 0], [2, 0])
    assert f"{chosen[0]}/{chosen[1]}" in stdout
    code, _, err = cli("select", source, *MODES, *grid, "--out", out)
    assert code == 1
    assert "exists already" in err


@pytest.mark.parametrize("grid", [("1,x", "0"), ("", "0"), ("-1", "0"), ("0", "0")])
def test_select_refuses_what_is_no_grid(cli, source, tmp_path, grid):
    linear, nonlinear = grid
    code, _, err = cli(
        "select", source, *MODES, "--linear-ranks", linear, "--nonlinear-ranks", nonlinear, "--out", tmp_path / "g"
    )
    assert code == 2, err
    assert not (tmp_path / "g").exists()


def test_help_names_what_is_new(cli):
    assert "--interval" in cli("predict", "--help")[1]
    assert "auto" in cli("fit", "--help")[1]
    assert "--linear-ranks" in cli("select", "--help")[1]


def test_a_network_may_have_a_memory(cli, source, tmp_path):
    out = tmp_path / "run"
    code, _, err = cli(
        "fit", source, *MODES, "--rank", "2/3", "--linear", "mean+bias+cp:2+local:day", *QUICK, "--out", out
    )
    assert code == 0, err
    run = load_run(out)
    assert run.metrics["returned"]["model"] == "joint"
    assert [type(part) for part in run.predictor.residual_models] == [Kriging]
    assert run.predictor.calibration is not None
