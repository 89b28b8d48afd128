"""A comparison: its table from its cells, its cells from single fits, and what is kept, refused or run again."""

import csv
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn

from jointensor import SparseTensor, write_tensor
from jointensor.data.modes import Mode
from jointensor.errors import ConfigError, DataError, RunError
from jointensor.models.nonlinear import nonlinear_parts
from jointensor.runs.compare import CompareConfig, compare, pace
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.pipeline import run
from jointensor.training.fit import fit
from jointensor.training.history import Epoch
from tests.networks import Failing, Silent

QUICK = {"warm_epochs": 1, "rounds": 1, "refine_epochs": 2, "batch_size": 64}
MODELS = (
    "mean",
    "bias",
    "interp",
    "cp:2",
    "costco:8",
    "julia:2/3",
    "julia-costco:2/8,layout=official,lr_nonlinear=0.02",
)
TRAINED = MODELS[3:]
TIMES = ("seconds", "seconds_per_epoch", "threads")
COLUMNS = [
    "model",
    "rmse",
    "rmse_sd",
    "mae",
    "rfe",
    "skill",
    "parameters",
    "seconds",
    "seconds_per_epoch",
    "success_rate",
]


class Flat(Silent):
    """A network that says five whatever it is shown: a fair guess, and nothing learnt."""

    def forward(self, rows):
        return 5 + super().forward(rows)


class Normed(nn.Module):
    """Torch's own batch normalisation, which refuses to train on one entry."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(n_modes * width)

    def forward(self, rows):
        return self.norm(rows.flatten(1)).sum(dim=1)


def planted(seed=0, level=5.0, ordered=True):
    """A little over 300 entries of an 8 × 7 × 7 tensor of rank one, with noise; its last mode may be ordered."""
    rng = np.random.default_rng(seed)
    a, b, c = (rng.random(size) + 0.5 for size in (8, 7, 7))
    dense = level * a[:, None, None] * b[:, None] * c
    dense += 0.1 * level * rng.standard_normal(dense.shape)
    modes = [Mode("user", 8), Mode("movie", 7), Mode("day", 7, None, "ordered" if ordered else "none")]
    return SparseTensor.from_dense(np.where(rng.random(dense.shape) < 0.8, dense, np.nan), modes)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "planted.npz"
    write_tensor(planted(), path)
    return path


@pytest.fixture(scope="module")
def config(source):
    return CompareConfig(str(source), MODELS, seeds=2, split_seeds=2, recipe_changes=QUICK)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """A finished comparison; tests that change something take a copy."""
    out = tmp_path_factory.mktemp("comparison") / "out"
    compare(config, out)
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.fixture
def registry(monkeypatch):
    """The registry as it is, back as it was afterwards."""
    monkeypatch.setattr(nonlinear_parts, "_classes", dict(nonlinear_parts._classes))
    return nonlinear_parts


class Told(list):
    """What ``on_fit`` was told: model, split seed, seed, how many are finished, of how many."""

    def __call__(self, cell, done, total):
        self.append((cell["model"], cell["split_seed"], cell["seed"], done, total))


def cells_in(out):
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "cells").iterdir())]


def cells_by_place(out):
    return {(cell["model"], cell["split_seed"], cell["seed"]): cell for cell in cells_in(out)}


def table_in(out):
    with (out / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_times(cell):
    attempts = [{k: v for k, v in one.items() if k not in TIMES} for one in cell.get("attempts", [])]
    return {k: v for k, v in cell.items() if k not in TIMES} | {"attempts": attempts}


def snapshot(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def times_of(out):
    return {path.name: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}


def refused(kind, config, out, **options):
    """The message of a refusal, which must come before anything is trained."""
    told = Told()
    with pytest.raises(kind) as caught:
        compare(config, out, on_fit=told, **options)
    assert told == []
    return str(caught.value)


def standard_split(n, seed):
    """Training and test entries by the rule in the docs, with NumPy alone."""
    order = np.random.default_rng(seed).permutation(n)
    test, rest = order[: n // 5], order[n // 5 :]
    return rest[len(rest) // 10 :], test


def test_the_table_is_what_numpy_makes_of_the_cells(finished):
    cells, rows = cells_in(finished), table_in(finished)
    assert list(rows[0])[: len(COLUMNS)] == COLUMNS
    assert tuple(row["model"] for row in rows) == MODELS
    for row in rows:
        mine = [cell for cell in cells if cell["model"] == row["model"]]
        assert len(mine) == (4 if row["model"] in TRAINED else 2)
        for key in ("rmse", "mae", "rfe"):
            figures = [cell["test"][key] for cell in mine]
            assert len(set(figures)) == len(mine)
            assert float(row[key]) == pytest.approx(np.mean(figures), rel=1e-12)
            assert float(row[f"{key}_sd"]) == pytest.approx(np.std(figures, ddof=1), rel=1e-9)
        skills = [1 - cell["test"]["rmse"] / cell["mean_rmse"] for cell in mine]
        assert float(row["skill"]) == pytest.approx(np.mean(skills), abs=1e-12)
        assert float(row["rmse_median"]) == pytest.approx(np.median([cell["test"]["rmse"] for cell in mine]), rel=1e-12)
        assert float(row["seconds"]) == pytest.approx(np.mean([cell["seconds"] for cell in mine]), rel=1e-12)
        assert {int(row["parameters"])} == {cell["parameters"] for cell in mine}
        assert float(row["success_rate"]) == np.mean([cell["success"] for cell in mine])
        at_once = [cell["success"] and len(cell.get("attempts", [1])) == 1 for cell in mine]
        assert float(row["first_success_rate"]) == np.mean(at_once)
        assert int(row["fits"]) == len(mine)
        if row["model"] in TRAINED:
            pace = np.mean([cell["seconds_per_epoch"] for cell in mine])
            assert float(row["seconds_per_epoch"]) == pytest.approx(pace, rel=1e-12)
            assert [cell["success"] for cell in mine] == [cell["test"]["rfe"] < 1 for cell in mine]
        else:
            assert row["seconds_per_epoch"] == ""


def test_the_rows_that_come_back_are_those_of_the_table(config, copy):
    rows = compare(config, copy)
    for row, written in zip(rows, table_in(copy), strict=True):
        assert {key: "" if row[key] is None else str(row[key]) for key in written} == written
    lowest = min(rows, key=lambda row: row["rmse"])
    assert [row["model"] for row in rows if row["best"]] == [lowest["model"]]


def test_split_seeds_change_the_split_and_seeds_do_not(finished):
    """The mean predictor of every cell by the rule of the split: it depends on the split alone."""
    values = planted().values.astype(np.float64)
    cells = cells_by_place(finished)
    errors = []
    for split_seed in (0, 1):
        train, test = standard_split(len(values), split_seed)
        errors.append(np.sqrt(np.mean((values[test] - values[train].mean()) ** 2)))
        for (model, of_split, _), cell in cells.items():
            if of_split == split_seed:
                assert cell["mean_rmse"] == pytest.approx(errors[-1], rel=1e-6), model
                assert cell["test"]["n"] == len(test)
        assert cells["mean", split_seed, 0]["test"]["rmse"] == pytest.approx(errors[-1], rel=1e-6)
    assert errors[0] != pytest.approx(errors[1], rel=1e-3)
    for model, split_seed in itertools.product(TRAINED, (0, 1)):
        one, other = (cells[model, split_seed, seed]["test"]["rmse"] for seed in (0, 1))
        assert one != other


def test_a_baseline_is_fitted_once_per_split(finished):
    places = list(cells_by_place(finished))
    for name in ("mean", "bias", "interp"):
        assert [place for place in places if place[0] == name] == [(name, 0, 0), (name, 1, 0)]
    assert len(places) == 3 * 2 + 4 * 4


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("cp:2", {"rank": (2, 0)}),
        ("costco:8", {"rank": (0, 8), "nonlinear": "costco"}),
        ("julia:2/3", {"rank": (2, 3)}),
        (
            MODELS[-1],
            {
                "rank": (2, 8),
                "nonlinear": "costco,layout=official",
                "recipe_changes": QUICK | {"lr_nonlinear": 0.02},
            },
        ),
    ],
)
def test_a_cell_has_the_figures_of_a_single_fit(finished, source, tmp_path, model, asked):
    split_seed, seed = 1, 1
    alone = run(
        RunConfig(str(source), recipe="paper", **({"recipe_changes": QUICK} | asked), split_seed=split_seed, seed=seed),
        tmp_path / "run",
    ).to_dict()
    cells = cells_by_place(finished)
    cell = cells[model, split_seed, seed]
    for key in ("test", "valid", "parameters", "epochs", "outcome", "restarts", "nonlinear_dead", "device"):
        assert cell[key] == alone[key], key
    assert without_times(cell)["attempts"] == without_times(alone)["attempts"]
    for name in ("mean", "bias", "interp"):
        assert cells[name, split_seed, 0]["test"] == alone["baselines"][name]["test"]
        assert cells[name, split_seed, 0]["valid"] == alone["baselines"][name]["valid"]


def test_two_jobs_find_what_one_finds(config, finished, tmp_path):
    told = Told()
    compare(config, tmp_path / "out", jobs=2, on_fit=told)
    here, there = cells_by_place(finished), cells_by_place(tmp_path / "out")
    assert here.keys() == there.keys() == {place[:3] for place in told}
    assert [place[3:] for place in told] == [(k, len(here)) for k in range(1, len(here) + 1)]
    for place, cell in here.items():
        assert without_times(there[place]) == without_times(cell), place
    for one, other in zip(table_in(finished), table_in(tmp_path / "out"), strict=True):
        assert {k: v for k, v in one.items() if k not in TIMES} == {k: v for k, v in other.items() if k not in TIMES}


def test_a_finished_comparison_is_not_run_again(config, copy):
    before, cells, told, notes = snapshot(copy), times_of(copy), Told(), []
    compare(config, copy, on_fit=told, listener=Listener(on_note=notes.append))
    assert told == []
    assert times_of(copy) == cells
    assert {path: data for path, data in snapshot(copy).items() if path.suffix != ".png"} == {
        path: data for path, data in before.items() if path.suffix != ".png"
    }
    assert "22 of 22 fits are there already" in notes


def _remove(file):
    file.unlink()


def _cut_off(file):
    file.write_text(file.read_text(encoding="utf-8")[:100], encoding="utf-8")


def _empty(file):
    file.write_text("", encoding="utf-8")


def _fail(file):
    cell = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(cell | {"error": "out of memory", "test": None, "success": False}), encoding="utf-8")


@pytest.mark.parametrize("damage", [_remove, _cut_off, _empty, _fail])
def test_only_a_cell_that_is_not_whole_is_run_again(config, copy, damage):
    place = ("julia:2/3", 1, 0)
    file = copy / "cells" / "05-julia_2_3-split1-seed0.json"
    cell = json.loads(file.read_text(encoding="utf-8"))
    assert (cell["model"], cell["split_seed"], cell["seed"]) == place
    before = times_of(copy)
    results = {row["model"]: row["rmse"] for row in table_in(copy)}
    (copy / "results.csv").unlink()
    damage(file)
    told = Told()
    compare(config, copy, on_fit=told)
    assert told == [(*place, 22, 22)]
    assert without_times(json.loads(file.read_text(encoding="utf-8"))) == without_times(cell)
    after = times_of(copy)
    assert {name for name in before if after[name] != before[name]} == {file.name}
    assert {row["model"]: row["rmse"] for row in table_in(copy)} == results


def test_an_interrupted_comparison_goes_on_where_it_was(source, tmp_path):
    config = CompareConfig(str(source), ("mean", "cp:1", "cp:2"), seeds=1, recipe_changes=QUICK)

    def interrupt(cell, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "out", on_fit=interrupt)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cells", "config.json", "environment.json"]
    told = Told()
    compare(config, tmp_path / "out", on_fit=told)
    assert told == [("cp:2", 0, 0, 3, 3)]
    assert [row["model"] for row in table_in(tmp_path / "out")] == ["mean", "cp:1", "cp:2"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": 3}, "seeds is 2, not 3"),
        ({"split_seeds": 1}, "split_seeds is 2, not 1"),
        ({"models": MODELS[:2]}, f"models is {list(MODELS)!r}, not {list(MODELS[:2])!r}"),
        ({"models": MODELS[::-1]}, f"models is {list(MODELS)!r}, not {list(MODELS[::-1])!r}"),
        ({"recipe_changes": QUICK | {"rounds": 2}}, f"recipe_changes is {QUICK!r}, not {QUICK | {'rounds': 2}!r}"),
        ({"test": 0.3}, "test is 0.2, not 0.3"),
        ({"budget": 60.0}, "budget is None, not 60.0"),
        ({"orders": {"user": "ordered"}}, "orders is {}, not {'user': 'ordered'}"),
    ],
)
def test_the_folder_of_another_comparison_is_refused_and_left_alone(config, finished, change, said):
    before, times = snapshot(finished), times_of(finished)
    message = refused(RunError, replace(config, **change), finished)
    assert message == f"{finished} holds another comparison: its {said}; give another --out"
    assert snapshot(finished) == before
    assert times_of(finished) == times


def test_other_data_under_the_same_name_are_another_comparison(tmp_path):
    write_tensor(planted(), tmp_path / "data.npz")
    config = CompareConfig(str(tmp_path / "data.npz"), ("mean",), seeds=1)
    compare(config, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    write_tensor(planted(seed=1), tmp_path / "data.npz")
    message = refused(RunError, config, tmp_path / "out")
    assert message.startswith(f"{tmp_path / 'out'} holds another comparison: its source_sha256 is '")
    assert snapshot(tmp_path / "out") == before


def test_data_that_changed_are_read_again_for_a_new_comparison(tmp_path):
    config = CompareConfig(str(tmp_path / "data.npz"), ("mean",), seeds=1)
    for seed in (0, 1):
        write_tensor(planted(seed), tmp_path / "data.npz")
        values = planted(seed).values.astype(np.float64)
        train, test = standard_split(len(values), 0)
        (row,) = compare(config, tmp_path / f"out{seed}")
        expected = np.sqrt(np.mean((values[test] - values[train].mean()) ** 2))
        assert row["rmse"] == pytest.approx(expected, rel=1e-6), f"data {seed}"


def test_a_folder_that_is_no_comparison_is_refused_and_left_alone(config, source, tmp_path):
    plain, single = tmp_path / "plain", tmp_path / "single"
    plain.mkdir()
    (plain / "letter.txt").write_text("dear diary", encoding="utf-8")
    assert refused(RunError, config, plain) == f"{plain} exists already; give another --out, or remove it"
    assert snapshot(plain).keys() == {(plain / "letter.txt").relative_to(plain)}
    run(RunConfig(str(source), rank=(1, 0), recipe_changes=QUICK), single)
    before = snapshot(single)
    assert refused(RunError, config, single).startswith(f"{single} holds another comparison: its ")
    assert snapshot(single) == before


def test_a_damaged_config_is_said_to_be_damaged(config, copy):
    (copy / "config.json").write_text("{", encoding="utf-8")
    assert refused(RunError, config, copy).startswith(f"{copy / 'config.json'} is missing or damaged: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"models": ("mean", "cp:2", "tucker:2x2")},
            "model 'tucker:2x2': tucker:2x2 has 2 ranks, the tensor 3 modes; give one rank, or one per mode",
        ),
        (
            {"models": ("mean", "cp:2", "julia-costco:2/3,layout=offical")},
            "model 'julia-costco:2/3,layout=offical': costco: layout 'offical'; did you mean 'official'? "
            "known are official, paper",
        ),
        ({"models": ("cp:2", "mean", "cp:2")}, "model 'cp:2' is named twice"),
        ({"models": ()}, "name at least one model, such as: mean bias cp:20 julia:4/16"),
        ({"seeds": 0}, "seeds is 0, it must be at least 1"),
        ({"split_seeds": -1}, "split_seeds is -1, it must be at least 1"),
        ({"test": 0.0}, "a comparison needs test entries; give a --test share above 0"),
        ({"recipe_changes": {"batch_size": -1}}, "recipe: batch_size is -1, it must not be negative"),
        ({"recipe_changes": {"epochs_per_turn": 0}}, "recipe: epochs_per_turn is 0, it must be at least 1"),
        (
            {"split": "half"},
            "split 'half' is not known; give standard, first:N, time:MODE[,horizon=H,origins=K], slices:MODE, "
            "group:MODE,MODE or like-gaps",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_training_and_leaves_no_folder(config, tmp_path, change, said):
    assert refused(ConfigError, replace(config, **change), tmp_path / "new" / "out") == said
    assert not (tmp_path / "new").exists()


def test_jobs_and_devices_that_do_not_exist_are_refused(config, tmp_path):
    out = tmp_path / "out"
    assert refused(ConfigError, config, out, jobs=0) == "jobs is 0, it must be at least 1"
    assert refused(ConfigError, replace(config, device="abacus"), out).startswith(
        "device 'abacus' cannot be used here: "
    )
    nowhere = tmp_path / "nowhere.npz"
    assert refused(DataError, replace(config, source=str(nowhere)), out) == f"there is no file {nowhere}"
    assert not out.exists()


def test_interp_is_refused_where_no_mode_is_ordered(tmp_path):
    write_tensor(planted(ordered=False), tmp_path / "data.npz")
    config = CompareConfig(str(tmp_path / "data.npz"), ("mean", "interp"), seeds=1)
    message = refused(ConfigError, config, tmp_path / "out")
    assert message == "interp interpolates along an ordered mode, and there is none; see --order"
    assert not (tmp_path / "out").exists()
    rows = compare(replace(config, orders={"user": "ordered"}), tmp_path / "out")
    assert rows[1]["rmse"] > 0


def test_a_loss_that_the_values_do_not_allow_is_refused_before_training(tmp_path):
    tensor = planted()
    write_tensor(SparseTensor(tensor.indices, tensor.values - 5, tensor.modes), tmp_path / "data.npz")
    config = CompareConfig(str(tmp_path / "data.npz"), ("mean", "cp:1", "cp:1,loss=kl"), seeds=1, recipe_changes=QUICK)
    assert refused(DataError, config, tmp_path / "out").startswith("the kl loss needs values of at least 0; ")
    assert not (tmp_path / "out").exists()


def test_a_model_that_fails_keeps_its_row_and_the_others_their_figures(registry, config, finished, tmp_path):
    registry.register("failing")(Failing)
    models = ("mean", "failing:2", "cp:2", "julia-failing:2/2")
    told = Told()
    rows = compare(replace(config, models=models), tmp_path / "out", on_fit=told)
    assert len(told) == 2 + 3 * 4
    written = {row["model"]: row for row in table_in(tmp_path / "out")}
    assert tuple(written) == models
    known = {row["model"]: row for row in table_in(finished)}
    for model in ("mean", "cp:2"):
        for key in ("rmse", "rmse_sd", "mae", "rfe", "skill", "parameters", "success_rate"):
            assert written[model][key] == known[model][key]
    for model in ("failing:2", "julia-failing:2/2"):
        row = written[model]
        assert [row[key] for key in COLUMNS[1:]] == [""] * 8 + ["0.0"]
        assert row["fits"] == "4"
        mine = [cell for cell in cells_in(tmp_path / "out") if cell["model"] == model]
        assert {cell["error"] for cell in mine} == {"out of paper"}
        assert all(cell["test"] is None for cell in mine)
    assert [row["model"] for row in rows if row["best"]] == ["cp:2"]
    markdown = (tmp_path / "out" / "results.md").read_text(encoding="utf-8").splitlines()
    assert markdown[3] == "| failing:2 | – | – | – | – | – | – | – | 0 % | – |"


def test_a_comparison_of_nothing_but_failures_is_still_a_table(registry, source, tmp_path):
    registry.register("failing")(Failing)
    rows = compare(CompareConfig(str(source), ("failing:2",), seeds=2, recipe_changes=QUICK), tmp_path / "out")
    assert [(row["rmse"], row["success_rate"], row["best"]) for row in rows] == [(None, 0.0, False)]
    assert "**" not in (tmp_path / "out" / "results.md").read_text(encoding="utf-8")


def test_a_network_that_torch_refuses_to_train_keeps_its_row_too(registry, source, tmp_path):
    """A batch normalisation meets the one entry that is left over at the end of an epoch: a ValueError."""
    registry.register("normed")(Normed)
    n = len(standard_split(len(planted()), 0)[0])
    config = CompareConfig(
        str(source), ("mean", "normed:2"), seeds=1, recipe_changes=QUICK | {"batch_size": n - 1, "restarts": 0}
    )
    rows = compare(config, tmp_path / "out")
    assert rows[0]["rmse"] is not None
    assert (rows[1]["model"], rows[1]["rmse"], rows[1]["success_rate"]) == ("normed:2", None, 0.0)


def test_a_dead_network_inside_julia_is_counted_and_no_failure(registry, source, tmp_path):
    registry.register("silent")(Silent)
    config = CompareConfig(
        str(source),
        ("silent:2", "julia-silent:2/2", "julia:2/8"),
        seeds=2,
        recipe_changes=QUICK | {"refine_epochs": 4, "restarts": 1},
    )
    alone, dead, alive = compare(config, tmp_path / "out")
    assert (dead["nonlinear_dead"], dead["success_rate"], dead["restarts"]) == (2, 1.0, 0)
    assert (alive["nonlinear_dead"], alive["success_rate"]) == (0, 1.0)
    assert (alone["nonlinear_dead"], alone["success_rate"], alone["restarts"]) == (2, 0.0, 2)
    assert alone["rfe"] == pytest.approx(1.0, rel=1e-6)  # nothing but zeros
    _, _, *lines = (tmp_path / "out" / "results.md").read_text(encoding="utf-8").splitlines()
    assert [line.strip("|* ").split(" | ")[-1].strip("*") for line in lines] == ["2", "2", "–"]


def test_a_constant_is_no_success_however_well_it_is_chosen(registry, source, tmp_path):
    registry.register("flat")(Flat)
    config = CompareConfig(str(source), ("flat:2",), seeds=2, recipe_changes=QUICK | {"restarts": 1})
    (row,) = compare(config, tmp_path / "out")
    assert row["rfe"] < 1
    assert (row["success_rate"], row["nonlinear_dead"], row["restarts"]) == (0.0, 2, 2)


def test_the_pace_of_a_fit_leaves_out_what_happens_once():
    """Of two phases: one whose first epoch compiles something, and one of twice as many, quicker epochs."""
    seconds = {"warm start": [9.0, 0.4, 0.4], "refine": [0.1] * 6}
    history = [Epoch(0, phase, 0, 1, 0.0, None, one, False, 9) for phase, mine in seconds.items() for one in mine]
    assert pace(history) == pytest.approx((3 * 0.4 + 6 * 0.1) / 9)
    assert pace([]) == 0


def test_every_fit_keeps_to_the_same_budget(source, tmp_path, monkeypatch):
    given = []

    def timed(*arguments, budget, **options):
        given.append(budget)
        return fit(*arguments, budget=budget, **options)

    monkeypatch.setattr("jointensor.runs.compare.fit", timed)
    endless = {"refine_epochs": 10**9, "tolerance": 0.0, "patience": 0, "batch_size": 64, "rounds": 1}
    config = CompareConfig(str(source), ("cp:1", "julia:1/2"), seeds=1, recipe_changes=endless, budget=0.1)
    rows = compare(config, tmp_path / "out")
    assert [row["not_converged"] for row in rows] == [1, 1]
    for cell in cells_in(tmp_path / "out"):
        assert cell["outcome"] == "budget"
        assert cell["seconds"] >= 0.1
        assert cell["epochs"] < 10**9
    assert given == [0.1, 0.1]


def test_the_best_row_of_the_markdown_table_is_bold_and_no_other(finished):
    _, rule, *lines = (finished / "results.md").read_text(encoding="utf-8").splitlines()
    assert rule == "|---" + "|---:" * 9 + "|"
    rows = table_in(finished)
    best = min(range(len(rows)), key=lambda k: float(rows[k]["rmse"]))
    for k, (line, row) in enumerate(zip(lines, rows, strict=True)):
        fields = line.removeprefix("| ").removesuffix(" |").split(" | ")
        assert len(fields) == 10
        assert [field.startswith("**") and field.endswith("**") for field in fields] == [k == best] * 10
        plain = [field.strip("*") for field in fields]
        assert plain[0] == row["model"]
        assert plain[1] == f"{float(row['rmse']):.4g} ± {float(row['rmse_sd']):.2g}"
        assert plain[4] == f"{100 * float(row['skill']):+.1f} %"
        assert plain[5] == f"{int(row['parameters']):,}"


def test_the_pictures_are_pictures(finished):
    for name in ("accuracy.png", "accuracy_time.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        image = imread(finished / name)
        assert min(image.shape[:2]) > 200
        assert (image[..., :3].min(axis=2) < 0.5).sum() > 500  # something is drawn on it
    assert (finished / "accuracy.png").read_bytes() != (finished / "accuracy_time.png").read_bytes()


def test_the_folder_says_what_was_asked(finished, source):
    assert sorted(path.name for path in finished.iterdir()) == [
        "accuracy.png", "accuracy_time.png", "cells", "config.json", "environment.json", "report.html",
        "results.csv", "results.md",
    ]  # fmt: skip
    asked = json.loads((finished / "config.json").read_text(encoding="utf-8"))
    assert asked["source"] == str(source)
    assert asked["models"] == list(MODELS)
    assert asked["recipe_changes"] == QUICK
    assert json.loads((finished / "environment.json").read_text(encoding="utf-8"))["packages"]["torch"]


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_the_finished_cells(source, tmp_path):
    """The second model trains until its budget is over; both workers are killed when the first one is done."""
    endless = {"refine_epochs": 10**9, "tolerance": 0.0, "patience": 0}
    config = CompareConfig(str(source), ("mean", "cp:1"), seeds=1, recipe_changes=endless, budget=2.0)
    out, told = tmp_path / "out", Told()

    def kill(cell, done, total):
        told(cell, done, total)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(RunError) as caught:
        compare(config, out, jobs=2, on_fit=kill)
    assert str(caught.value) == (
        "a worker died, perhaps for lack of memory (or, called from a script, for lack of "
        "`if __name__ == '__main__':`); finished fits are kept: run the same again, with fewer jobs"
    )
    assert told == [("mean", 0, 0, 1, 2)]
    assert [cell["model"] for cell in cells_in(out)] == ["mean"]
    again = Told()
    compare(config, out, on_fit=again)
    assert again == [("cp:1", 0, 0, 2, 2)]


def test_workers_watch_the_process_that_started_them(monkeypatch):
    module, watched = importlib.import_module("jointensor.runs.compare"), []
    monkeypatch.setattr(module, "end_with_parent", lambda: watched.append(True))
    module._start_worker(torch.get_num_threads())
    assert watched == [True]
