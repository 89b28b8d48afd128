import json
import math
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from jointensor import read_tensor, split
from jointensor.predictors import fit_bias
from jointensor.runs.folder import load_run
from tests.command_line import QUICK

MODES = ("--modes", "user,movie,day", "--value", "value")


def test_help_answers_without_loading_torch():
    code = """
import sys
from jointensor.cli import main
sys.argv = ["jointensor", "--help"]
try:
    main()
except SystemExit:
    assert not {"torch", "polars", "numpy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("fit", "predict", "evaluate", "complete", "components", "demo"):
        assert command in done.stdout


def test_the_paper_recipe_has_the_phases_of_the_paper(cli, table, tmp_path):
    out = tmp_path / "run"
    code, _, err = cli("fit", table, *MODES, "--rank", "2/3", "--recipe", "paper", "--out", out, *QUICK)
    assert code == 0, err
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["phase"] for row in rows] == [
        "warm start",
        "alternate: nonlinear",
        "alternate: linear",
        "refine",
        "refine",
    ]
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8"))["linear"] == "cp:2"


def test_fit_writes_the_whole_run_folder(fitted):
    out, metrics = fitted
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json", "checkpoints", "model.safetensors", "labels.json", "history.jsonl", "environment.json",
        "report.html", "report.json", "metrics.json",
    }  # fmt: skip
    for part in (metrics["test"], metrics["valid"], *(one["test"] for one in metrics["baselines"].values())):
        assert set(part) >= {"rmse", "mae", "rfe", "n"}
        assert all(
            value is None or math.isfinite(value) for key, value in part.items() if key in ("rmse", "mae", "rfe")
        )
    assert set(metrics["baselines"]) == {"mean", "bias", "tables", "interp"}
    assert metrics["outcome"] in ("converged", "budget")
    for key in (
        "returned",
        "restarts",
        "epochs",
        "resumed_from_epoch",
        "seconds",
        "engine",
        "device",
        "world_size",
        "entries_per_rank",
        "seed",
        "split",
    ):
        assert key in metrics
    phases = [json.loads(line)["phase"] for line in (out / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    solved, alone = phases.index("warm start: nonlinear"), phases.count("warm start: nonlinear")
    assert solved >= 4 * 8
    assert solved % 8 == 0  # eight sweeps with each ridge
    linear, nonlinear = ["alternate: linear"] * 3, ["alternate: nonlinear"]  # the ridge and its neighbours
    turns = [*nonlinear, *linear] if metrics["first"] == "linear" else [*["warm start"] * 12, *linear, *nonlinear]
    network = ["warm start: nonlinear"] * alone
    assert phases == [*["warm start"] * solved, *network, *turns, "refine", "refine"]
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["source"].startswith("/")
    assert len(config["source_sha256"]) == 64
    assert config["rank"] == [2, 3]


def test_figures_are_those_of_the_standard_split(fitted, table, ratings):
    out, metrics = fitted
    tensor = ratings.take(np.lexsort(ratings.indices.T[::-1]))  # cells from a table are sorted by index
    parts = split(tensor, seed=0)
    predicted = load_run(out).predictor.predict(parts.test.indices)
    assert metrics["test"]["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - parts.test.values) ** 2)), rel=1e-5)
    assert metrics["test"]["n"] == len(ratings) // 5
    bias = fit_bias(parts.train, parts.valid).predict(parts.test.indices)
    assert metrics["baselines"]["bias"]["test"]["rmse"] == pytest.approx(
        np.sqrt(np.mean((bias - parts.test.values) ** 2)), rel=1e-5
    )


def test_predictions_come_back_in_order_with_unseen_labels_flagged(cli, fitted, tmp_path):
    out, _ = fitted
    queries = tmp_path / "queries.csv"
    queries.write_text(
        "note,user,movie,day\nx,00003,B,2021-01-02\ny,nobody,B,2021-01-02\nz,00001,A,2021-01-05\n", encoding="utf-8"
    )
    code, stdout, stderr = cli("predict", out, queries, "--out", tmp_path / "answers.csv")
    assert code == 0
    assert "3 predictions" in stdout
    assert "1 of 3 queries have a label that no training entry had" in stderr
    answers = pl.read_csv(tmp_path / "answers.csv")
    assert answers["note"].to_list() == ["x", "y", "z"]
    assert answers["unseen"].to_list() == [False, True, False]
    run = load_run(out)
    expected = run.predictor.predict(np.array([[3, 1, 1], [-1, 1, 1], [1, 0, 4]]))
    assert answers["prediction"].to_numpy() == pytest.approx(expected, rel=1e-6)


def test_leading_zeros_are_part_of_a_label(cli, fitted, tmp_path):
    out, _ = fitted
    (tmp_path / "q.csv").write_text("user,movie,day\n3,B,2021-01-02\n", encoding="utf-8")
    cli("predict", out, tmp_path / "q.csv", "--out", tmp_path / "a.csv")
    assert pl.read_csv(tmp_path / "a.csv")["unseen"].to_list() == [True]


def test_npz_queries_come_back_as_npz_with_the_same_indices(cli, fitted, tmp_path):
    out, _ = fitted
    indices = np.array([[3, 1, 1], [11, 8, 4], [500, 0, 0]])
    np.savez(tmp_path / "q.npz", indices=indices)
    assert cli("predict", out, tmp_path / "q.npz", "--out", tmp_path / "a.npz")[0] == 0
    answers = np.load(tmp_path / "a.npz")
    assert answers["indices"].tolist() == indices.tolist()
    assert answers["unseen"].tolist() == [False, False, True]
    run = load_run(out)
    assert answers["values"] == pytest.approx(
        run.predictor.predict(np.array([[3, 1, 1], [11, 8, 4], [-1, 0, 0]])), rel=1e-6
    )


def test_evaluate_agrees_with_metrics_on_the_same_entries(cli, fitted, ratings, tmp_path):
    out, metrics = fitted
    tensor = ratings.take(np.lexsort(ratings.indices.T[::-1]))
    split(tensor, seed=0).test.to_frame().write_parquet(tmp_path / "test.parquet")
    code, stdout, _ = cli("evaluate", out, tmp_path / "test.parquet", "--json")
    assert code == 0
    assert json.loads(stdout)["rmse"] == pytest.approx(metrics["test"]["rmse"], rel=1e-6)


def test_complete_fills_in_a_slice_and_keeps_what_was_observed(cli, fitted, ratings, tmp_path):
    out, _ = fitted
    target = tmp_path / "filled.csv"
    code, _, stderr = cli("complete", out, "--where", "user = '00003' AND day = '2021-01-02'", "--out", target)
    assert code == 0
    assert "9 rows will be written" in stderr
    filled = pl.read_csv(target, infer_schema=False).with_columns(pl.col("value", "prediction").cast(pl.Float64))
    assert filled["movie"].to_list() == list("ABCDEFGHI")
    known = {int(i[1]): v for i, v in zip(ratings.indices, ratings.values, strict=True) if i[0] == 3 and i[2] == 1}
    for k, row in enumerate(filled.iter_rows(named=True)):
        assert row["observed"] == ("true" if k in known else "false")
        assert row["value"] == pytest.approx(known.get(k, row["prediction"]), rel=1e-5)


def test_complete_top_gives_the_largest_missing_cells(cli, fitted, ratings, tmp_path):
    out, _ = fitted
    assert cli("complete", out, "--top", "4", "--out", tmp_path / "top.csv")[0] == 0
    top = pl.read_csv(tmp_path / "top.csv", infer_schema=False)
    every = np.stack(np.unravel_index(np.arange(12 * 9 * 5), (12, 9, 5)), axis=1)
    seen = {tuple(row) for row in ratings.indices.tolist()}
    missing = np.array([cell for cell in every.tolist() if tuple(cell) not in seen])
    expected = np.sort(load_run(out).predictor.predict(missing))[::-1][:4]
    assert top["prediction"].cast(pl.Float64).to_numpy() == pytest.approx(expected, rel=1e-6)


def test_complete_handles_conditions_over_several_modes(cli, fitted, tmp_path):
    out, _ = fitted
    code, _, stderr = cli("complete", out, "--where", "movie = 'A' OR day = '2021-01-01'", "--out", tmp_path / "f.csv")
    assert code == 0
    count = 12 * (5 + 9 - 1)
    assert f"{count} rows will be written" in stderr
    assert pl.read_csv(tmp_path / "f.csv").height == count


@pytest.mark.parametrize("arguments", [(), ("--where", "nope = 1"), ("--where", "user ="), ("--top", "0")])
def test_complete_refuses_what_has_no_meaning(cli, fitted, tmp_path, arguments):
    out, _ = fitted
    code, _, stderr = cli("complete", out, "--out", tmp_path / "f.csv", *arguments)
    assert code == 2
    assert "error:" in stderr.lower() or "invalid value" in stderr.lower()
    assert not (tmp_path / "f.csv").exists()


def test_components_are_printed_and_drawn(cli, fitted):
    out, _ = fitted
    code, stdout, _ = cli("components", out, "--json", "--top", "2")
    found = json.loads(stdout)
    assert code == 0
    assert len(found) == 2
    assert found[0]["weight"] >= found[1]["weight"] >= 0
    assert len(found[0]["top"]["user"]) == 2
    assert (out / "components.png").read_bytes().startswith(b"\x89PNG")


def test_json_prints_what_metrics_json_holds_and_quiet_prints_nothing(cli, table, tmp_path):
    code, stdout, _ = cli("fit", table, *MODES, "--rank", "1/0", "--out", tmp_path / "a", "--json", *QUICK)
    assert code == 0
    assert json.loads(stdout) == json.loads((tmp_path / "a" / "metrics.json").read_text(encoding="utf-8"))
    assert cli("fit", table, *MODES, "--rank", "1/0", "--out", tmp_path / "b", "--quiet", *QUICK) == (0, "", "")


def test_without_test_entries_metrics_say_null(cli, table, tmp_path):
    assert cli("fit", table, *MODES, "--rank", "1/1", "--test", "0", "--out", tmp_path / "run", *QUICK)[0] == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"] is None
    assert metrics["valid"]["n"] == 30


def test_a_test_file_may_hold_a_cell_twice(cli, ratings, tmp_path):
    rows = ratings.to_frame().sample(fraction=1.0, shuffle=True, seed=0)
    rows[:200].write_csv(tmp_path / "train.csv")
    rows[200:].vstack(rows[200:230]).write_csv(tmp_path / "test.csv")
    code, _, err = cli(
        "fit", tmp_path / "train.csv", *MODES, "--rank", "1/0", "--test-file", tmp_path / "test.csv",
        "--out", tmp_path / "run", *QUICK,
    )  # fmt: skip
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))["test"]["n"] == 130
    code, _, err = cli(
        "predict", tmp_path / "run", tmp_path / "test.csv", "--interval", "0.9", "--out", tmp_path / "answers.csv"
    )
    assert code == 0, err


def test_a_test_file_of_ones_own_with_an_unseen_label(cli, table, tmp_path):
    (tmp_path / "test.csv").write_text(
        "user,movie,day,value\n00001,A,2021-01-01,1.5\nnew,A,2021-01-01,2.5\n", encoding="utf-8"
    )
    code, *_ = cli(
        "fit", table, *MODES, "--rank", "1/1", "--test-file", tmp_path / "test.csv", "--out", tmp_path / "run", *QUICK
    )
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert code == 0
    assert (metrics["test"]["n"], metrics["test"]["warm"]["n"], metrics["test"]["cold"]["n"]) == (2, 1, 1)
    assert metrics["entries"]["train"] == 270


def test_refit_keeps_a_model_of_all_entries_and_the_figures_of_the_other(cli, table, tmp_path):
    arguments = ("fit", table, *MODES, "--rank", "2/2", *QUICK)
    cli(*arguments, "--out", tmp_path / "a")
    cli(*arguments, "--refit", "--out", tmp_path / "b")
    a, b = (json.loads((tmp_path / name / "metrics.json").read_text(encoding="utf-8")) for name in "ab")
    assert a["test"] == b["test"]
    assert b["returned"] == {"model": "joint", "refit": True}
    cells = np.array([[1, 1, 1], [2, 2, 2]])
    assert (
        load_run(tmp_path / "a").predictor.predict(cells) != load_run(tmp_path / "b").predictor.predict(cells)
    ).any()


@pytest.mark.parametrize("change", ["nested=true", "max_rank=8", "solutions=2"])
def test_choices_by_validation_and_a_refit_without_it_are_refused(cli, table, tmp_path, change):
    code, _, err = cli("fit", table, *MODES, "--rank", "2/2", "--set", change, "--refit", "--out", tmp_path / "run")
    assert code == 2
    assert change.partition("=")[0] in err
    assert not (tmp_path / "run").exists()


def test_a_budget_is_kept(cli, table, tmp_path):
    code, *_ = cli("fit", table, *MODES, "--budget", "0", "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert code == 0
    assert metrics["outcome"] == "budget"
    assert metrics["epochs"] == 0


@pytest.mark.slow
def test_same_seed_same_figures_in_another_process_and_the_seed_never_moves_the_split(cli, table, tmp_path):
    arguments = ["fit", str(table), *MODES, "--rank", "2/3", *QUICK]
    cli(*arguments, "--out", tmp_path / "a")
    command = [sys.executable, "-m", "jointensor", *arguments, "--out", str(tmp_path / "b")]
    subprocess.run(command, check=True, capture_output=True)
    cli(*arguments, "--seed", "7", "--out", tmp_path / "c")
    a, b, c = (json.loads((tmp_path / name / "metrics.json").read_text(encoding="utf-8")) for name in "abc")
    assert a["test"] == b["test"]
    assert a["files"] == b["files"]
    assert a["test"]["rmse"] != c["test"]["rmse"]
    assert a["baselines"] == c["baselines"]


def test_headerless_training_tables_take_queries_with_a_header(cli, tmp_path):
    rng = np.random.default_rng(0)
    rows = sorted({(rng.integers(6), rng.integers(5)) for _ in range(40)})
    (tmp_path / "u.data").write_text(
        "".join(f"{a}\t{b}\t{a * b + 1}\t{881250949 + 86400 * (a % 3)}\n" for a, b in rows), encoding="utf-8"
    )
    code, _, stderr = cli(
        "fit", tmp_path / "u.data", "--no-header", "--columns", "user,movie,rating,time",
        "--mode", "user", "--mode", "movie", "--mode", "day=day(time)",
        "--value", "rating", "--rank", "1/1", "--out", tmp_path / "run", *QUICK,
    )  # fmt: skip
    assert code == 0, stderr
    (tmp_path / "q.csv").write_text("user,movie,time\n1,2,881250949\n", encoding="utf-8")
    assert cli("predict", tmp_path / "run", tmp_path / "q.csv", "--out", tmp_path / "a.csv")[::2] == (0, "")
    (tmp_path / "q.tsv").write_text("1\t2\t0\t881250949\n", encoding="utf-8")
    assert cli("predict", tmp_path / "run", tmp_path / "q.tsv", "--out", tmp_path / "b.csv")[0] == 0
    answers = [pl.read_csv(tmp_path / name)["prediction"].to_list() for name in ("a.csv", "b.csv")]
    assert answers[0] == answers[1]
    assert cli("complete", tmp_path / "run", "--where", "user = 1 AND movie < 3", "--out", tmp_path / "c.csv")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("missing.csv", *MODES), 1, "there is no file"),
        (("empty.csv", *MODES), 1, "empty"),
        (("ratings.csv", "--modes", "user,nope", "--value", "value"), 1, "no column 'nope'"),
        (("ratings.csv", "--modes", "user,movie,day", "--value", "nope"), 1, "no column 'nope'"),
        (("text.csv", *MODES), 1, "row 2: the value 'five'"),
        (("nan.csv", *MODES), 1, "row 1"),
        (("twice.csv", *MODES), 1, "user=a, movie=b, day=c"),
        (("cut.csv", *MODES), 1, "cut"),
        (("ratings.csv", "--modes", "user", "--value", "value", "--duplicates", "mean"), 1, "at least two modes"),
        (("fields.tns",), 1, "line 2: 3 fields"),
        (("zero.tns",), 1, "line 1: index 0"),
        (("negative.npz",), 1, "index -1"),
        (("fraction.npz",), 1, "not a whole number"),
        (("cut.npz",), 1, "cannot be read"),
        (("ratings.csv", *MODES, "--test", "1"), 2, "test share is 1"),
        (("ratings.csv", *MODES, "--test", "-0.1"), 2, "test share is -0.1"),
        (("ratings.csv", *MODES, "--rank", "0/0"), 2, "0/0"),
        (("ratings.csv", *MODES, "--rank", "atuo"), 2, "rank 'atuo'"),
        (("ratings.csv", *MODES, "--rank", "auto", "--linear", "cp:2"), 2, "leave out --linear"),
        (("ratings.csv", *MODES, "--linear", "implicit:user/movie"), 2, "write fm:K too"),
        (("ratings.csv", *MODES, "--linear", "cp:2+local:nowhere"), 2, "nowhere"),
        (("ratings.csv", *MODES, "--linear", "mean+cq:3"), 2, "no multilinear block 'cq'"),
        (("ratings.csv", *MODES, "--nonlinear", "julai"), 2, "did you mean 'julia'"),
        (("ratings.csv", *MODES, "--nonlinear", "julia,gat=free"), 2, "did you mean 'gate'"),
        (("ratings.csv", *MODES, "--recipe", "papr"), 2, "did you mean 'paper'"),
        (("ratings.csv", *MODES, "--set", "restarts=abc"), 2, "whole number"),
        (("ratings.csv", *MODES, "--set", "lr_linear=nan"), 2, "must be a number"),
        (("ratings.csv", "--modes", "user,value", "--value", "value"), 2, "as a mode and as the value"),
        (("ratings.csv", *MODES, "--set", "round=3"), 2, "did you mean 'rounds'"),
        (("ratings.csv", *MODES, "--loss", "square"), 2, "did you mean 'squared'"),
        (("ratings.csv", *MODES, "--split", "tme:day"), 2, "split 'tme:day'"),
        (("ratings.csv", *MODES, "--split", "time:dya"), 2, "no mode 'dya'"),
        (("ratings.csv", *MODES, "--order", "dya=cyclic"), 2, "no mode 'dya'"),
        (("ratings.csv", *MODES, "--device", "cuda:99"), 2, "device 'cuda:99'"),
        (("ratings.csv",), 2, "--modes"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_line_and_leaves_nothing(cli, table, tmp_path, monkeypatch, arguments, code, says):
    _write_bad_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    got, stdout, stderr = cli("fit", *arguments, "--out", "run", "--quiet", *QUICK)
    assert got == code, stderr
    assert says in stderr
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def _write_bad_files(folder):
    head = "user,movie,day,value\n"
    texts = {
        "empty.csv": "",
        "text.csv": head + "a,b,c,1\na,b,d,five\n",
        "nan.csv": head + "a,b,c,nan\na,b,d,5\n",
        "twice.csv": head + "a,b,c,1\na,b,c,2\n",
        "cut.csv": head + "a,b,c,1\na,b",
        "fields.tns": "1 1 1 2.0\n1 1 3.0\n",
        "zero.tns": "0 1 1 2.0\n1 1 1 3.0\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    np.savez(folder / "negative.npz", indices=np.array([[-1, 0]]), values=np.ones(1), shape=np.array([2, 2]))
    np.savez(folder / "fraction.npz", indices=np.array([[0.5, 0.0]]), values=np.ones(1), shape=np.array([2, 2]))
    np.savez(folder / "whole.npz", indices=np.zeros((1, 2), int), values=np.ones(1), shape=np.array([2, 2]))
    (folder / "cut.npz").write_bytes((folder / "whole.npz").read_bytes()[:-40])


@pytest.mark.slow
def test_the_months_of_uber_and_movielens_fit_in_one_command(cli, real, tmp_path):
    import zipfile

    zipfile.ZipFile(real("raw/uber-raw-data-apr14.csv.zip")).extract("uber-raw-data-apr14.csv", tmp_path)
    modes = ["date=day(Date/Time)", "hour=hour(Date/Time)", "lat=ROUND(Lat,3)", "lon=ROUND(Lon,3)"]
    quick = ("--set", "warm_epochs=0", "--set", "rounds=0", "--set", "refine_epochs=1")
    code, _, stderr = cli(
        "fit", tmp_path / "uber-raw-data-apr14.csv", *(x for m in modes for x in ("--mode", m)), "--value", "count",
        "--rank", "2/0", "--out", tmp_path / "uber", *quick,
    )  # fmt: skip
    assert code == 0, stderr
    assert "conditional on something having happened" in stderr
    metrics = json.loads((tmp_path / "uber" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["shape"] == [30, 24, 662, 1088]
    (tmp_path / "q.csv").write_text(
        "Date/Time,Lat,Lon\n4/2/2014 0:11:00,40.769,-73.9549\n9/9/2014 5:00:00,40.769,-73.9549\n", encoding="utf-8"
    )
    assert cli("predict", tmp_path / "uber", tmp_path / "q.csv", "--out", tmp_path / "a.csv")[0] == 0
    assert pl.read_csv(tmp_path / "a.csv")["unseen"].to_list() == [False, True]
    code, *_ = cli(
        "fit", real("raw/ml-100k.u.data"), "--no-header", "--columns", "user,movie,rating,time",
        "--mode", "user", "--mode", "movie", "--mode", "day=day(time)",
        "--value", "rating", "--rank", "1/0", "--out", tmp_path / "ml", *quick,
    )  # fmt: skip
    assert code == 0
    assert json.loads((tmp_path / "ml" / "metrics.json").read_text(encoding="utf-8"))["shape"] == list(
        read_tensor(real("ml_100k.npz")).tensor.shape
    )


@pytest.mark.parametrize("rule", ["first:200", "time:day", "slices:user", "group:user,movie"])
def test_every_split_goes_through_to_a_report(cli, table, tmp_path, rule):
    code, _, stderr = cli("fit", table, *MODES, "--rank", "1/1", "--split", rule, "--out", tmp_path / "run", *QUICK)
    assert code == 0, stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["split"]["rule"] == rule
    assert metrics["test"]["n"] > 0
    cold = metrics["test"]["cold"]["n"] == metrics["test"]["n"]
    assert cold == (rule in ("time:day", "slices:user"))


def test_labels_that_look_like_markup_or_formulas_are_shown_as_they_are(cli, tmp_path):
    rows = "".join(f"[/x{a}],$\\frac{{{b}$,{a * b + 1}\n" for a in range(6) for b in range(6))
    (tmp_path / "odd.csv").write_text("a,b,v\n" + rows, encoding="utf-8")
    odd = ("fit", tmp_path / "odd.csv", "--modes", "a,b", "--value", "v", "--rank", "1/0", "--out", tmp_path / "run")
    assert cli(*odd, *QUICK)[0] == 0
    code, stdout, stderr = cli("components", tmp_path / "run")
    assert code == 0, stderr
    assert "[/x5]" in stdout
    assert (tmp_path / "run" / "components.json").exists()


def test_semicolons_in_a_csv_are_found(cli, tmp_path):
    rows = "".join(f"{a};{b};{a * b + 1}\n" for a in range(6) for b in range(6))
    (tmp_path / "s.csv").write_text("a;b;v\n" + rows, encoding="utf-8")
    code, _, stderr = cli(
        "fit", tmp_path / "s.csv", "--modes", "a,b", "--value", "v", "--rank", "1/0", "--out", tmp_path / "run", *QUICK
    )
    assert code == 0, stderr


def test_a_test_file_is_merged_by_the_rule_that_made_the_tensor(cli, tmp_path):
    events = "".join(f"{a},{b},1\n" * (a + b + 1) for a in range(6) for b in range(6))
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("a,b,v\n" + events, encoding="utf-8")
    code, _, stderr = cli(
        "fit", tmp_path / "train.csv", "--modes", "a,b", "--value", "v", "--duplicates", "sum", "--rank", "1/0",
        "--test-file", tmp_path / "test.csv", "--out", tmp_path / "run", *QUICK,
    )  # fmt: skip
    assert code == 0, stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"]["n"] == 36
    assert metrics["baselines"]["mean"]["test"]["rmse"] > 1


@pytest.mark.parametrize("rank", ["9999999999999/0", "0/99999999", "9999999999999/4"])
def test_a_rank_beyond_memory_is_one_line_and_leaves_no_folder(cli, table, tmp_path, rank):
    out = tmp_path / "run"
    code, _, err = cli("fit", table, *MODES, "--rank", rank, "--out", out, "--quiet")
    assert code == 2
    assert err.startswith(f"error: rank {rank}")
    assert "GB of memory" in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--folds", "gaps"), "folds 'gaps' are not known; give like-gaps, random, group:MODE,MODE"),
        (("--folds", "group:place"), "there is no mode 'place'; the modes are user, movie, day"),
        (("--folds", "random", "--split", "group:day"), "--folds does not go with --split group:day"),
        (("--folds", "group:user", "--memory", "4GB"), "--folds group:… needs all entries in memory"),
    ],
)
def test_folds_that_cannot_be_made_are_refused(cli, table, tmp_path, options, message):
    code, _, err = cli("fit", table, *MODES, "--out", tmp_path / "run", *options)
    assert code == 2
    assert message in err
    assert not (tmp_path / "run").exists()


def test_folds_by_group_validate_with_whole_groups(cli, table, tmp_path):
    out = tmp_path / "run"
    code, _, err = cli("fit", table, *MODES, "--rank", "1/0", "--folds", "group:user", "--out", out, *QUICK)
    assert code == 0, err
    record = json.loads((out / "metrics.json").read_text(encoding="utf-8"))["split"]
    assert (record["folds"], record["together"]) == ("group:user", "user")


def test_validation_entries_look_like_the_cells_of_a_file(cli, table, tmp_path):
    """Users who have no entry yet: whole users are left out."""
    out, asked = tmp_path / "run", tmp_path / "asked.csv"
    rows = [f"new {k % 8},{'ABCDEFGHI'[k % 9]},2021-01-0{1 + k % 5}" for k in range(80)]
    asked.write_text("\n".join(["user,movie,day", *rows]), encoding="utf-8")
    code, _, err = cli("fit", table, *MODES, "--rank", "1/0", "--for", asked, "--out", out, *QUICK)
    assert code == 0, err
    said = "100 % of the cells that are asked for lie in whole groups (user): validated by leaving out such groups"
    assert said in err
    record = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert (record["split"]["folds"], record["split"]["together"]) == ("like-queries", "user")
    assert record["split"]["pattern"]["reason"] == said
    assert record["coverage"][0]["class"] == "all entries"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert said in page
    assert 'aria-label="cells of' in page


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ((), "user,movie\n1,2\n", "asked.csv: the queries need a column 'day'"),
        ((), "user,movie,day\n", "asked.csv has no cells"),
        (("--folds", "random"), "user,movie,day\n1,2,1\n", "give --folds or --for, not both"),
        (("--split", "group:user"), "user,movie,day\n1,2,1\n", "--for does not go with --split group:user"),
        (("--memory", "4GB"), "user,movie,day\n1,2,1\n", "--for needs all entries in memory"),
    ],
)
def test_queries_that_say_nothing_about_folds_are_refused(cli, table, tmp_path, options, text, message):
    asked = tmp_path / "asked.csv"
    asked.write_text(text, encoding="utf-8")
    code, _, err = cli("fit", table, *MODES, "--for", asked, "--out", tmp_path / "run", *options)
    assert code in (1, 2)
    assert message in err
    assert not (tmp_path / "run").exists()
