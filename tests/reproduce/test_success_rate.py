"""How often a method succeeds: the table and the picture from the cells of a short run."""

import json

import numpy as np
import pytest
from matplotlib.image import imread

from jointensor import SparseTensor, write_tensor
from jointensor.reproduce.success_rate import as_markdown, draw, main, success_rates

METHODS = {
    "COSTCO": "costco:20",
    "JULIA-COSTCO (4/16)": "julia-costco:4/16",
    "NeurTN": "neurtn:10",
    "JULIA-NeurTN (2/8)": "julia-neurtn:2/8",
}
STARTS = {"raw": ",start=raw,restarts=0", "robust": ""}
SEEDS = 3
SHORT = {"warm_epochs": 1, "rounds": 1, "refine_epochs": 2, "batch_size": 32}


def cells_in(out):
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "cells").iterdir())]


def is_picture(path):
    image = imread(path)
    return path.read_bytes().startswith(b"\x89PNG") and (image[..., :3].min(axis=2) < 0.5).sum() > 500


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Fewer than a hundred counts of a 12 × 9 tensor."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(5 * rng.gamma(4.0, 0.25, (12, 1)) * rng.gamma(4.0, 0.25, (1, 9))).astype(float)
    path = tmp_path_factory.mktemp("data") / "visits.npz"
    write_tensor(SparseTensor.from_dense(np.where(rng.random(counts.shape) < 0.8, counts, np.nan)), path)
    return path


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("success") / "visits"


@pytest.fixture(scope="module")
def rows(source, out):
    return success_rates(source, out, seeds=SEEDS, jobs=1, device="cpu", changes=SHORT)


def planned_fits(row, out):
    return [cell for cell in cells_in(out) if cell["model"] == METHODS[row["method"]] + STARTS[row["start"]]]


def test_every_method_is_fitted_from_both_starts_once_per_seed(rows, out):
    assert [(row["tensor"], row["method"], row["start"]) for row in rows] == [
        ("visits", method, start) for method in METHODS for start in STARTS
    ]
    for row in rows:
        assert [cell["seed"] for cell in planned_fits(row, out)] == list(range(SEEDS))
        if row["start"] == "raw":
            assert [len(cell["attempts"]) for cell in planned_fits(row, out)] == [1] * SEEDS
    assert len(cells_in(out)) == len(METHODS) * len(STARTS) * SEEDS


def test_a_success_is_an_error_below_one_from_predictions_that_vary(rows, out):
    for row in rows:
        mine = planned_fits(row, out)
        good = [cell["test"]["rfe"] < 1 and cell["outcome"] not in ("dead", "diverged") for cell in mine]
        at_once = [success and len(cell["attempts"]) == 1 for success, cell in zip(good, mine, strict=True)]
        assert row["success_rate"] == pytest.approx(np.mean(good))
        assert row["first_success_rate"] == pytest.approx(np.mean(at_once))
    joint = [row["success_rate"] for row in rows if "JULIA" in row["method"] and row["start"] == "robust"]
    assert joint == [1.0, 1.0]  # the claim of the picture, on a planted tensor
    assert any(row["success_rate"] < 1 for row in rows if row["start"] == "raw")


def test_the_table_shows_counts_and_medians(rows, out):
    title, rule, *lines = as_markdown(rows).splitlines()
    assert title == "| tensor | method | start | success | without a restart | dead networks | median RMSE |"
    assert rule.count("|") == title.count("|")
    for line, row in zip(lines, rows, strict=True):
        mine = planned_fits(row, out)
        assert line.strip("| ").split(" | ") == [
            "visits",
            row["method"],
            row["start"],
            f"{sum(cell['success'] for cell in mine)} of {SEEDS}",
            f"{sum(cell['success'] and cell['restarts'] == 0 for cell in mine)} of {SEEDS}",
            str(sum(cell["nonlinear_dead"] for cell in mine) or "–"),
            f"{np.median([cell['test']['rmse'] for cell in mine]):.4g}",
        ]


def test_figures_that_are_not_there_are_dashes(rows):
    nothing = {"rmse_median": None, "success_rate": 0.0, "first_success_rate": 0.0, "nonlinear_dead": 0}
    line = as_markdown([rows[0] | nothing]).splitlines()[2]
    assert line == f"| visits | COSTCO | raw | 0 of {SEEDS} | 0 of {SEEDS} | – | – |"


def test_the_picture_has_a_panel_per_tensor(rows, tmp_path):
    draw(rows, tmp_path / "one.png")
    draw([*rows, *(row | {"tensor": "other"} for row in rows)], tmp_path / "two.png")
    assert is_picture(tmp_path / "one.png")
    assert is_picture(tmp_path / "two.png")
    one, two = (imread(tmp_path / name).shape for name in ("one.png", "two.png"))
    assert two[0] == one[0]
    assert two[1] == pytest.approx(2 * one[1], abs=2)


def test_finished_fits_are_kept(rows, source, out):
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    again = success_rates(source, out, seeds=SEEDS, jobs=1, device="cpu", changes=SHORT)
    assert again == rows
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before


def test_the_command_prints_its_table_and_writes_it_with_a_picture(tmp_path, capsys):
    rng = np.random.default_rng(1)
    tiny = rng.poisson(5.0 * rng.gamma(4.0, 0.25, (6, 1)), (6, 5)).astype(float)
    write_tensor(SparseTensor.from_dense(tiny), tmp_path / "tiny.npz")
    out = tmp_path / "out"
    main([str(tmp_path / "tiny.npz"), "--out", str(out), "--seeds", "1", "--jobs", "1", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert printed == (out / "success.md").read_text(encoding="utf-8")
    assert len(printed.splitlines()) == 2 + 8
    assert all(line.startswith("| tiny | ") for line in printed.splitlines()[2:])
    assert is_picture(out / "success.png")
    kept = json.loads((out / "success.json").read_text(encoding="utf-8"))
    assert as_markdown(kept) == printed
    assert len(cells_in(out / "tiny")) == 8
    config = json.loads((out / "tiny" / "config.json").read_text(encoding="utf-8"))
    assert (config["seeds"], config["recipe"], config["recipe_changes"]) == (1, "paper", {})
