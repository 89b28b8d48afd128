"""`jointensor bench`: tasks and methods are found, results are kept, and tables are what their records give."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from jointensor.bench import Problem
from jointensor.bench.method import find_method
from jointensor.bench.records import kept, read_record, records_in
from jointensor.bench.run import BenchConfig, bench
from jointensor.bench.seasonal import seasonal_mean
from jointensor.bench.table import as_csv, as_markdown, rows_of
from jointensor.bench.task import read_task
from jointensor.data.formats import write_tensor
from jointensor.data.modes import Mode
from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError, RunError

MINE = '''"""The mean of all values."""

CHOSEN = "nothing to choose"
PACKAGES = ("numpy",)


def predict(problem):
    return problem.everything.values.mean()
'''


def planted(entries=600, seed=0):
    rng = np.random.default_rng(seed)
    sizes = (9, 8, 15)
    rows = [rng.normal(size=size) for size in sizes]
    dense = 2 + rows[0][:, None, None] + rows[1][None, :, None] + 0.1 * rng.normal(size=sizes)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:entries]
    modes = (Mode("shop", 9), Mode("item", 8), Mode("day", 15, order="ordered"))
    return SparseTensor(cells, dense[tuple(cells.T)].astype(np.float32), modes)


@pytest.fixture
def folder(tmp_path):
    """A task, and a method of somebody's own."""
    write_tensor(planted(), tmp_path / "sales.npz")
    (tmp_path / "sales.toml").write_text('source = "sales.npz"\n')
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def run(folder, *methods, splits=2, **options):
    return bench(BenchConfig((folder / "sales.toml",), methods, splits, 60.0, 1, **options), folder / "out")


def test_every_method_is_measured_on_the_same_test_entries(folder):
    mine = str(folder / "mine.py")
    records = run(folder, "bias", mine)
    assert [(one["split"], one["method"]) for one in records] == [(0, "bias"), (0, "mine"), (1, "bias"), (1, "mine")]
    for one in records:
        parts = split(planted(), seed=one["split"])
        everything = np.concatenate([parts.train.values, parts.valid.values])
        assert one["test"]["n"] == len(parts.test)
        if one["method"] == "mine":
            expected = np.sqrt(np.mean((everything.mean() - parts.test.values.astype(float)) ** 2))
            assert one["test"]["rmse"] == pytest.approx(expected, rel=1e-6)
            assert (one["about"], one["chosen"], one["ensemble"]) == (
                "The mean of all values.",
                "nothing to choose",
                False,
            )
        assert {"commit", "clean", "command", "date", "versions", "machine", "seconds", "data"} <= one.keys()
        assert one["versions"]["numpy"] == np.__version__


def test_results_that_are_there_are_kept_and_failures_are_tried_again(folder):
    first = run(folder, "mean", splits=1)
    (folder / "later.py").write_text("def predict(problem):\n    raise ValueError('not today')\n")
    records = run(folder, "mean", str(folder / "later.py"), splits=1)
    assert records[0] == first[0]
    assert records[1]["error"] == "ValueError: not today"
    (folder / "later.py").write_text(MINE)
    again = run(folder, "mean", str(folder / "later.py"), splits=1)
    assert again[0] == first[0]
    assert again[1]["test"]["rmse"] > 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return [1.0, 2.0]", "predictions of shape"),
        ("return float('nan')", "not finite"),
        ("import os; os._exit(7)", "ended with 7"),
    ],
)
def test_a_method_that_fails_is_recorded_as_failed(folder, body, reason):
    (folder / "bad.py").write_text(f"def predict(problem):\n    {body}\n")
    (record,) = run(folder, str(folder / "bad.py"), splits=1)
    assert reason in record["error"]
    table = as_markdown(records_in(folder / "out", "*/*.json", failed=True), "fit")
    assert "Without a result" in table
    assert reason in table


def test_records_of_other_entries_or_seconds_are_not_mixed(folder):
    run(folder, "mean", splits=1)
    with pytest.raises(ConfigError, match=r"made with budget 60\.0, not 30\.0"):
        bench(BenchConfig((folder / "sales.toml",), ("mean",), 1, 30.0, 1), folder / "out")
    write_tensor(planted(seed=1), folder / "sales.npz")
    with pytest.raises(ConfigError, match="made with data"):
        run(folder, "mean", splits=1)


def test_a_method_does_not_see_what_is_asked_for(folder):
    (folder / "spy.py").write_text(
        "def predict(problem):\n"
        "    known = {tuple(one) for one in problem.everything.indices.tolist()}\n"
        "    assert not known & {tuple(one) for one in problem.cells.tolist()}\n"
        "    assert not hasattr(problem, 'test')\n"
        "    return 0.0\n"
    )
    (record,) = run(folder, str(folder / "spy.py"), splits=1)
    assert "error" not in record


def test_entries_of_a_test_file_are_not_learnt_from(tmp_path):
    tensor = planted()
    write_tensor(tensor, tmp_path / "all.npz")
    write_tensor(tensor.take(np.arange(100)), tmp_path / "asked.npz")
    (tmp_path / "t.toml").write_text('source = "all.npz"\ntest = "asked.npz"\n')
    parts, (cells, values) = read_task(tmp_path / "t.toml").divided(3)
    assert len(cells) == 100
    assert len(parts.train) + len(parts.valid) == 500
    assert len(parts.valid) == 50
    learnt = {tuple(one) for part in (parts.train, parts.valid) for one in part.indices.tolist()}
    assert not learnt & {tuple(one) for one in cells.tolist()}
    np.testing.assert_allclose(values, tensor.values[:100])


def test_tasks_of_tables_and_groups(tmp_path):
    rows = "".join(
        f"{user}\t{item}\t{(user * item) % 5}\t{900000000 + 86400 * item}\n" for user in range(20) for item in range(9)
    )
    (tmp_path / "u.data").write_text(rows)
    (tmp_path / "t.toml").write_text(
        'source = "u.data"\nsplit = "group:user"\n'
        '[table]\nmodes = ["user", "item", "day=day(time)"]\nvalue = "rating"\n'
        'columns = ["user", "item", "rating", "time"]\nseparator = "\\t"\nheader = false\n'
    )
    task = read_task(tmp_path / "t.toml")
    parts, (cells, _) = task.divided(0)
    assert parts.train.shape == (20, 9, 9)
    assert not set(parts.train.indices[:, 0]) & set(cells[:, 0])


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('sourse = "sales.npz"', ConfigError, "there is no key 'sourse'; .*source"),
        ('source = "gone.npz"', DataError, "gone.npz is not in .*--data"),
        ("source = ", ConfigError, "is not TOML"),
        ('about = "nothing"', ConfigError, "source"),
        ('source = "sales.npz"\n[[published]]\nmethod = "X"', ConfigError, "rmse"),
        ('source = "sales.npz"\ntest = "sales.npz"\nsplit = "group:shop"', ConfigError, "give one of them"),
    ],
)
def test_a_task_file_that_is_wrong_is_refused(folder, text, error, message):
    (folder / "t.toml").write_text(text)
    with pytest.raises(error, match=message):
        read_task(folder / "t.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fitt", "did you mean 'fit'"),
        ("julia:x", "R/F"),
        ("cp:20@papper", "papper"),
        ("gone.py", "there is no method file"),
    ],
)
def test_a_method_that_is_not_there_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        find_method(text)


def test_a_method_file_without_predict_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="no function predict"):
        find_method(str(tmp_path / "empty.py"))


def problem_of(tensor, seed=0, **more):
    parts = split(tensor, seed=seed)
    return Problem(parts.train, parts.valid, parts.test.indices, cores=1, **more), parts.test


def test_a_baseline_learns_from_validation_entries_in_the_end():
    problem, test = problem_of(planted())
    first = find_method("bias").predict(problem).predictions
    fewer = replace(problem, valid=problem.valid.take(np.arange(5)))
    assert not np.allclose(first, find_method("bias").predict(fewer).predictions)
    assert np.sqrt(np.mean((first - test.values) ** 2)) < 0.2


@pytest.mark.parametrize("name", ["fit", "cp:2", "julia:2/2@paper"])
def test_models_are_methods(name):
    problem, test = problem_of(planted(), seconds=20.0)
    answer = find_method(name).predict(problem)
    assert np.asarray(answer.predictions).shape == test.values.shape
    assert answer.settings
    assert find_method(name).ensemble == (name == "fit")


def test_the_seasonal_mean_finds_the_season():
    rng = np.random.default_rng(0)
    sizes = (6, 70)
    dense = rng.normal(size=(6, 7))[:, np.arange(70) % 7] + 0.1 * rng.normal(size=sizes)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:350]
    tensor = SparseTensor(cells, dense[tuple(cells.T)], (Mode("shop", 6), Mode("day", 70, order="ordered")))
    problem, test = problem_of(tensor)
    answer = seasonal_mean(problem)
    assert answer.settings == {"mode": "day", "length": 7}
    everything = problem.everything
    for cell, predicted in zip(test.indices, answer.predictions, strict=True):
        alike = (everything.indices[:, 0] == cell[0]) & (everything.indices[:, 1] % 7 == cell[1] % 7)
        if alike.any():
            assert predicted == pytest.approx(everything.values[alike].mean(), rel=1e-5)
    with pytest.raises(ConfigError, match="ordered mode"):
        seasonal_mean(problem_of(SparseTensor(cells, tensor.values, (Mode("a", 6), Mode("b", 70, order="none"))))[0])


def record(task, method, number, rmse, **more):
    facts = {"commit": "a" * 40, "clean": True, "versions": {"jointensor": "0.2"}}
    facts |= {"machine": {"cores": 2, "cpu": "X", "gpu": None}, "about": "", "settings": {}, "data": {}}
    facts |= {"seconds": 1.0, "budget": 60, "cores": 2, "division": "standard", "published": [], "chosen": "fixed"}
    test = {"rmse": rmse, "mae": rmse / 2, "rfe": rmse / 4, "n": 10}
    return {"task": task, "method": method, "split": number, "ensemble": method == "fit", "test": test} | facts | more


def test_differences_are_paired_and_have_the_interval_of_student():
    ours, others = [1.0, 2.0, 4.0], [1.1, 2.1, 4.1]
    records = [record("t", "fit", k, x) for k, x in enumerate(ours)]
    records += [record("t", "other", k, x) for k, x in reversed(list(enumerate(others)))]
    records += [record("t", "fit", 3, 100.0)]  # a split that the other has not
    row = next(one for one in rows_of(records, "fit") if one.method == "other")
    shares = [b / a - 1 for a, b in zip(ours, others, strict=True)]
    mean, half = row.difference
    low, high = stats.t.interval(0.95, 2, loc=np.mean(shares), scale=stats.sem(shares))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert next(one for one in rows_of(records, "fit") if one.method == "fit").difference is None


def test_what_is_lost_comes_first():
    published = [{"method": "LATC", "rmse": 0.5, "source": "a notebook", "chosen": "by test entries"}]
    records = [record("a", "fit", 0, 1.0, published=published), record("a", "rival", 0, 0.9, published=published)]
    records += [record("b", "fit", 0, 1.0), record("b", "rival", 0, 1.2)]
    table = as_markdown(records, "fit")
    lost = table.partition("### a")[0]
    assert "**a**: rival 0.9, -10.0%" in lost
    assert "**a**: LATC 0.5 (a notebook; settings by test entries) against 1" in lost
    assert "**b**" not in lost
    assert "fit (ensemble)" in table
    assert "nowhere behind" in as_markdown(records[2:], "fit")


def test_a_table_of_several_versions_says_so():
    records = [record("a", "fit", 0, 1.0), record("a", "fit", 1, 1.0, versions={"jointensor": "0.3"}, clean=False)]
    table = as_markdown(records, "fit")
    assert "Versions: 0.2, 0.3." in table
    assert "aaaaaaa with changes" in table


def test_the_csv_has_the_figures_of_the_records():
    records = [record("a", "fit", k, x) for k, x in enumerate([1.0, 3.0])] + [record("a", "rival", 0, 2.0)]
    rows = list(csv.DictReader(as_csv(rows_of(records, "fit")).splitlines()))
    by_name = {row["method"]: row for row in rows}
    assert float(by_name["fit"]["rmse"]) == 2.0
    assert float(by_name["fit"]["rmse_sd"]) == pytest.approx(math.sqrt(2))
    assert float(by_name["rival"]["difference"]) == 1.0
    assert by_name["rival"]["half_width"] == ""


def test_the_command_runs_tasks_and_prints_the_table(folder, cli, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["bench", "sales.toml", "--method", "bias", "--method", "mine.py", "--reference", "bias", "--splits", "1"]
    code, out, side = cli(*words, "--cores", "1")
    assert code == 0
    assert "| mine |" in out
    assert "2 of 2: mine on sales, split 0" in side
    assert (folder / "bench" / "table.md").read_text(encoding="utf-8").rstrip() == out.rstrip()
    assert cli("bench", "--reference", "bias")[1] == out
    code, _, side = cli("bench", "--out", "nothing")
    assert code == 1
    assert "there are no records in nothing" in side


def test_a_record_is_made_once(tmp_path):
    made = []
    for _ in range(2):
        kept(tmp_path / "r.json", lambda: made.append(1) or {"x": 1})
    assert made == [1]
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        read_record(tmp_path / "r.json")


TASKS = sorted(Path(__file__).parents[2].glob("benchmarks/tasks/*.toml"))


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_the_tasks_of_this_repository_are_tasks(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    for line in text.splitlines():  # their data are not here
        key, _, value = line.partition(" = ")
        if key in ("source", "test") and value.endswith(('npz"', 'data"', '.test"')):
            (tmp_path / json.loads(value)).touch()
    task = read_task(path, [tmp_path])
    assert task.name == path.stem
    assert all(one.rmse > 0 and one.source for one in task.published)
