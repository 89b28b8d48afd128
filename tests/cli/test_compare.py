"""``jointensor compare`` from the command line, and ``fit`` with the parts and blocks that came with it."""

import csv
import json

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

from jointensor import SparseTensor, write_tensor
from jointensor.models.nonlinear import nonlinear_parts
from tests.command_line import QUICK
from tests.networks import Failing, Silent

MODES = ("--modes", "user,movie,day", "--value", "value")
ONE = ("--jobs", "1")
QUICK_CHANGES = {"warm_epochs": 1, "rounds": 1, "refine_epochs": 2, "batch_size": 64}


@pytest.fixture
def registry(monkeypatch):
    """The registry as it is, back as it was afterwards."""
    monkeypatch.setattr(nonlinear_parts, "_classes", dict(nonlinear_parts._classes))
    return nonlinear_parts


@pytest.fixture
def archive(ratings, tmp_path):
    path = tmp_path / "ratings.npz"
    write_tensor(ratings, path)
    return path


def table_in(out):
    with (out / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def first_words(text):
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def test_results_go_to_stdout_and_progress_to_stderr(cli, archive, tmp_path):
    out, models = tmp_path / "out", ("mean", "cp:2", "julia-avocado:2/3")
    code, stdout, stderr = cli("compare", archive, *models, "--out", out, "--seeds", "2", *ONE, *QUICK)
    assert code == 0, stderr
    rows = table_in(out)
    assert [row["model"] for row in rows] == list(models)
    *shown, last = [line.split() for line in stdout.splitlines() if line.split() and line.split()[0] in models]
    assert [line[0] for line in shown] == list(models)
    assert [line[1:4] for line in shown[1:]] == [
        [f"{float(row['rmse']):.4g}", "±", f"{float(row['rmse_sd']):.2g}"] for row in rows[1:]
    ]
    assert shown[0][1] == f"{float(rows[0]['rmse']):.4g}"
    for line, row in zip(shown, rows, strict=True):
        assert f"{100 * float(row['skill']):+.1f}" in line
        assert f"{int(row['parameters']):,}" in line
    assert " ".join(last) == f"mean ± standard deviation over fits; figures of every fit: {out}"
    lines = stderr.splitlines()
    assert any(line.startswith("SparseTensor 12 x 9 x 5 (user, movie, day): 300 entries") for line in lines)
    counted = [line for line in lines if " of 5  " in line]
    assert [line.split("  ")[0] for line in counted] == [f"{k} of 5" for k in range(1, 6)]
    assert {line.split("  ")[1] for line in counted} == set(models)
    assert all("RMSE" in line for line in counted)
    assert len(list((out / "cells").iterdir())) == 5


def test_json_prints_the_rows_of_the_table(cli, archive, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = cli("compare", archive, "bias", "cp:2", "--out", out, "--seeds", "2", "--json", *ONE, *QUICK)
    assert code == 0
    rows = json.loads(stdout)
    for row, written in zip(rows, table_in(out), strict=True):
        assert {key: "" if row[key] is None else str(row[key]) for key in written} == written
    assert rows[0]["rmse_sd"] is None
    assert rows[1]["rmse_sd"] > 0


def test_quiet_prints_nothing_but_errors(cli, archive, tmp_path):
    out = tmp_path / "out"
    asked = ("compare", archive, "mean", "cp:1", "--out", out, "--seeds", "1", "--quiet", *ONE, *QUICK)
    assert cli(*asked) == (0, "", "")
    assert [row["model"] for row in table_in(out)] == ["mean", "cp:1"]
    assert cli(*asked, "--json") == (0, "", "")
    code, stdout, stderr = cli("compare", archive, "mean", "--out", out, "--seeds", "1", "--quiet", *ONE, *QUICK)
    assert (code, stdout) == (1, "")
    assert stderr == (
        f"error: {out} holds another comparison: its models is ['mean', 'cp:1'], not ['mean']; give another --out\n"
    )


def test_the_same_command_again_runs_nothing_and_prints_the_same_table(cli, archive, tmp_path):
    asked = ("compare", archive, "mean", "cp:1", "--out", tmp_path / "out", "--seeds", "2", *ONE, *QUICK)
    first, second = cli(*asked), cli(*asked)
    assert (first[0], second[0]) == (0, 0)
    assert first[1] == second[1]
    assert " of 3  " in first[2]
    assert " of 3  " not in second[2]
    assert "3 of 3 fits are there already" in second[2]


def test_a_table_is_compared_like_the_tensor_it_stands_for(cli, table, tmp_path):
    """The same figures as ``fit`` has for the same table, model and seeds."""
    out, run = tmp_path / "out", tmp_path / "run"
    code, _, stderr = cli(
        "compare", table, "interp", "julia-costco:2/4", *MODES, "--order", "day=ordered", "--out", out,
        "--seeds", "2", *ONE, *QUICK,
    )  # fmt: skip
    assert code == 0, stderr
    code, stdout, stderr = cli(
        "fit", table, *MODES, "--order", "day=ordered", "--rank", "2/4", "--nonlinear", "costco", "--seed", "1",
        "--recipe", "paper", "--out", run, "--json", *QUICK,
    )  # fmt: skip
    assert code == 0, stderr
    metrics = json.loads(stdout)
    cell = json.loads((out / "cells" / "01-julia-costco_2_4-split0-seed1.json").read_text(encoding="utf-8"))
    assert (cell["test"], cell["valid"]) == (metrics["test"], metrics["valid"])
    cell = json.loads((out / "cells" / "00-interp-split0-seed0.json").read_text(encoding="utf-8"))
    assert cell["test"] == metrics["baselines"]["interp"]["test"]
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["table"]["value"] == "value"


def test_options_reach_the_comparison(cli, archive, tmp_path):
    out = tmp_path / "out"
    asked = (
        "compare", archive, "mean", "cp:1,rounds=3", "--out", out, "--seeds", "1", "--split-seeds", "2",
        "--loss", "absolute", "--no-restart", "--test", "0.5", "--valid", "0.2", "--budget", "60", "--device", "cpu",
        *ONE, *QUICK,
    )  # fmt: skip
    assert cli(*asked)[0] == 0
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["source"] == str(archive)
    assert config["recipe_changes"] == QUICK_CHANGES | {"loss": "absolute", "restarts": 0}
    assert (config["seeds"], config["split_seeds"], config["budget"]) == (1, 2, 60.0)
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "cells").iterdir())]
    assert [(cell["model"], cell["split_seed"]) for cell in cells] == [
        ("mean", 0), ("mean", 1), ("cp:1,rounds=3", 0), ("cp:1,rounds=3", 1),
    ]  # fmt: skip
    assert {(cell["test"]["n"], cell["valid"]["n"]) for cell in cells} == {(150, 30)}


def test_a_model_that_fails_is_a_row_without_figures(cli, registry, archive, tmp_path):
    registry.register("failing")(Failing)
    out = tmp_path / "out"
    code, stdout, stderr = cli("compare", archive, "failing:2", "cp:1", "--out", out, "--seeds", "1", *ONE, *QUICK)
    assert code == 0
    assert "1 of 2  failing:2  split 0 seed 0  out of paper" in stderr.splitlines()
    (line,) = [line.split() for line in stdout.splitlines() if line.split()[:1] == ["failing:2"]]
    assert line == ["failing:2", *"–" * 7, "0", "%", "–"]
    assert [row["rmse"] == "" for row in table_in(out)] == [True, False]


def test_a_network_that_ended_as_a_constant_is_pointed_out(cli, registry, archive, tmp_path):
    registry.register("silent")(Silent)
    asked = ("compare", archive, "julia-silent:1/2", "cp:1", "--out", tmp_path / "out", "--seeds", "2", *ONE, *QUICK)
    code, _, stderr = cli(*asked)
    assert code == 0
    assert (
        "the network ended as a constant in julia-silent:1/2 (2 of 2): only the multilinear part predicts there"
        in stderr.splitlines()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cotsco:20",), "error: there is no model 'cotsco'; did you mean 'costco'? known are "),
        (("julia:20",), "error: 'julia:20': a joint model needs R/F, two whole numbers such as julia:4/16"),
        (
            ("costco:4/16",),
            "error: 'costco:4/16': costco alone has one width, such as costco:20; with R/F it is julia-",
        ),
        (("mean", "cp:2", "mean"), "error: model 'mean' is named twice"),
        (("cp:2,batch_size=-1",), "error: 'cp:2,batch_size=-1': recipe: batch_size is -1, it must not be negative"),
        (("mean", "--set", "roudns=3"), "error: a recipe has no field 'roudns'; did you mean 'rounds'? known are "),
        (
            ("mean", "--recipe", "papr"),
            "error: there is no recipe 'papr'; did you mean 'paper'? known are default, paper",
        ),
        (("mean", "--test", "0"), "error: a comparison needs test entries; give a --test share above 0"),
        (("mean", "--valid", "1.5"), "error: the valid share is 1.5; it must be at least 0 and less than 1"),
        (("mean", *MODES), "says itself what its modes and values are; leave out --modes, --mode and --value"),
    ],
)
def test_wrong_usage_is_said_before_the_source_is_read(cli, tmp_path, arguments, said):
    code, stdout, stderr = cli("compare", tmp_path / "nowhere.npz", *arguments, "--out", tmp_path / "out")
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert len(stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tucker:2x2",), "error: model 'tucker:2x2': tucker:2x2 has 2 ranks, the tensor 3 modes; give one rank, or"),
        (("costco,layout=offical",), "error: model 'costco,layout=offical': costco: layout 'offical'; did you mean"),
        (("interp", "--order", "day=none"), "error: interp interpolates along an ordered mode, and there is none; see"),
        (("mean", "--split", "time:week"), "there is no mode 'week'; the modes are user, movie, day"),
        (("mean", "--device", "abacus"), "error: device 'abacus' cannot be used here"),
    ],
)
def test_what_the_tensor_does_not_allow_is_said_before_training(cli, archive, tmp_path, arguments, said):
    code, stdout, stderr = cli("compare", archive, "cp:1", *arguments, "--out", tmp_path / "out", *ONE)
    assert code == 2
    assert stdout == ""
    assert said in stderr
    assert " of 3  " not in stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [(), ("mean", "--seeds", "0"), ("mean", "--split-seeds", "0"), ("mean", "--jobs", "0")]
)
def test_counts_of_nothing_are_wrong_usage(cli, archive, tmp_path, arguments):
    code, stdout, _ = cli("compare", archive, *arguments, "--out", tmp_path / "out")
    assert (code, stdout) == (2, "")
    assert not (tmp_path / "out").exists()


def test_no_out_is_wrong_usage(cli, archive):
    code, _, stderr = cli("compare", archive, "mean")
    assert code == 2
    assert "--out" in stderr


def test_a_source_that_is_not_there_or_not_readable_is_a_failure(cli, tmp_path):
    nowhere, broken = tmp_path / "nowhere.npz", tmp_path / "broken.npz"
    broken.write_bytes(b"no archive")
    code, stdout, stderr = cli("compare", nowhere, "mean", "--out", tmp_path / "out", *ONE)
    assert (code, stdout, stderr) == (1, "", f"error: there is no file {nowhere}\n")
    code, stdout, stderr = cli("compare", broken, "mean", "--out", tmp_path / "out", *ONE)
    assert (code, stdout) == (1, "")
    assert stderr.startswith(f"error: {broken} cannot be read as a NumPy archive")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_a_failure(cli, archive, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    code, stdout, stderr = cli("compare", archive, "mean", "--out", out, "--quiet", *ONE)
    assert (code, stdout) == (1, "")
    assert stderr == f"error: {out} exists already; give another --out, or remove it\n"
    assert list(out.iterdir()) == []


def refused_fit(cli, table, tmp_path, *arguments):
    """What is said where the model is wrong and the table is not there, or is none."""
    code, stdout, stderr = cli("fit", table, *MODES, *arguments, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert stdout == ""
    return code, stderr


@pytest.fixture(params=["absent", "unreadable"])
def no_table(request, tmp_path):
    path = tmp_path / "table.csv"
    if request.param == "unreadable":
        path.write_bytes(b"\x00\xff\xfe no table")
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nonlinear", "cotsco"), "there is no nonlinear part 'cotsco'; did you mean 'costco'? known are "),
        (
            ("--nonlinear", "costco,layuot=paper"),
            "nonlinear part 'costco' has no option 'layuot'; did you mean 'layout'? ",
        ),
        (("--linear", "tuker:3"), "there is no multilinear block 'tuker'; did you mean 'tucker:K'? known are "),
        (
            ("--linear", "tucker:3x"),
            "'tucker:3x': write tucker:K, or tucker:K1xK2x… with a rank per mode",
        ),
        (("--linear", "", "--rank", "2/0"), "rank 2/0 leaves nothing to fit; give at least one component, such as "),
    ],
    ids=["part", "option", "block", "rank", "nothing"],
)
def test_fit_refuses_a_misspelt_model_before_it_reads_the_table(cli, no_table, tmp_path, arguments, said):
    code, stderr = refused_fit(cli, no_table, tmp_path, *arguments)
    assert stderr.startswith(f"error: {said}")
    assert code == 2


def test_fit_refuses_the_value_of_an_option_before_it_reads_the_table(cli, no_table, tmp_path):
    code, stderr = refused_fit(cli, no_table, tmp_path, "--nonlinear", "costco,layout=offical")
    assert stderr == "error: costco: layout 'offical'; did you mean 'official'? known are official, paper\n"
    assert code == 2


def test_fit_counts_the_ranks_of_tucker_before_it_reads_the_table(cli, no_table, tmp_path):
    """--modes says how many modes there will be."""
    code, stderr = refused_fit(cli, no_table, tmp_path, "--linear", "tucker:3x3")
    assert stderr == "error: tucker:3x3 has 2 ranks, the tensor 3 modes; give one rank, or one per mode\n"
    assert code == 2


@pytest.mark.parametrize("rank", ["²/3", "-1/3", "4", "4/x", ""])
def test_a_rank_that_is_not_two_whole_numbers_is_wrong_usage(cli, no_table, tmp_path, rank):
    code, stderr = refused_fit(cli, no_table, tmp_path, "--rank", rank)
    assert stderr == f"error: rank '{rank}' is not R/F, two whole numbers such as 4/16, or auto\n"
    assert code == 2


def weights_of(run):
    stored = load_file(run / "model.safetensors")
    return {name.removeprefix("model."): value.astype(np.float64) for name, value in stored.items()}


def tucker_by_hand(weights, cells):
    a, b, c = (weights[f"multilinear.blocks.tucker.factors.{n}"][cells[:, n]] for n in range(3))
    return np.einsum("klm,ek,el,em->e", weights["multilinear.blocks.tucker.core"], a, b, c)


def avocado_by_hand(weights, cells):
    starts = (0, 12, 12 + 9)  # tables one below the other
    rows = np.concatenate(
        [weights["nonlinear.factors.stacked"][start + cells[:, n]] for n, start in enumerate(starts)], axis=1
    )
    for name in ("mlp.0", "mlp.2"):
        layer = f"nonlinear.part.{name}"
        rows = np.maximum(rows @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"], 0)
    return (rows @ weights["nonlinear.part.head.weight"].T + weights["nonlinear.part.head.bias"])[:, 0]


@pytest.mark.parametrize(
    ("arguments", "by_hand", "parameters"),
    [
        (
            ("--linear", "tucker:3", "--rank", "0/0"),
            tucker_by_hand,
            3 * (12 + 9 + 5) + 3**3,
        ),
        (
            ("--linear", "tucker:2", "--rank", "0/3", "--nonlinear", "avocado"),
            lambda w, cells: tucker_by_hand(w, cells) + avocado_by_hand(w, cells),
            2 * (12 + 9 + 5) + 2**3 + 3 * (12 + 9 + 5) + (9 * 27 + 27) + (27 * 3 + 3) + (3 + 1),
        ),
    ],
)
def test_tucker_is_fitted_and_predicts(cli, table, tmp_path, arguments, by_hand, parameters):
    """Predictions against the sums written out, from the weights on disk."""
    run = tmp_path / "run"
    code, stdout, stderr = cli("fit", table, *MODES, *arguments, "--recipe", "paper", "--out", run, "--json", *QUICK)
    assert code == 0, stderr
    metrics = json.loads(stdout)
    assert metrics["parameters"] == parameters
    queries = tmp_path / "queries.csv"
    queries.write_text("user,movie,day\n00003,B,2021-01-02\n00011,I,2021-01-05\n00000,A,2021-01-01\n", encoding="utf-8")
    code, _, stderr = cli("predict", run, queries, "--out", tmp_path / "answers.csv")
    assert code == 0, stderr
    labels = json.loads((run / "labels.json").read_text(encoding="utf-8"))["modes"]
    asked = (("00003", "B", "2021-01-02"), ("00011", "I", "2021-01-05"), ("00000", "A", "2021-01-01"))
    cells = np.array([[mode["labels"].index(label) for mode, label in zip(labels, row, strict=True)] for row in asked])
    answers = pl.read_csv(tmp_path / "answers.csv")
    assert answers["unseen"].to_list() == [False] * 3
    assert answers["prediction"].to_numpy() == pytest.approx(by_hand(weights_of(run), cells), rel=1e-4)
    code, stdout, stderr = cli("evaluate", run, table, "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["rfe"] < 1


def test_a_tucker_block_that_does_not_fit_an_archive_leaves_no_folder(cli, archive, tmp_path):
    code, stdout, stderr = cli("fit", archive, "--linear", "tucker:3x3", "--out", tmp_path / "run", *QUICK)
    assert (code, stdout) == (2, "")
    assert "error: tucker:3x3 has 2 ranks, the tensor 3 modes; give one rank, or one per mode" in stderr
    assert not (tmp_path / "run").exists()


def test_a_comparison_of_whole_numbers_without_labels(cli, tmp_path):
    rng = np.random.default_rng(0)
    tensor = SparseTensor.from_dense(rng.poisson(5.0, (10, 9)).astype(float))
    write_tensor(tensor, tmp_path / "counts.tns")
    code, stdout, stderr = cli(
        "compare", tmp_path / "counts.tns", "mean", "cp:1", "--out", tmp_path / "out", "--seeds", "1", *ONE, *QUICK
    )
    assert code == 0, stderr
    assert {"mean", "cp:1"} <= set(first_words(stdout))


def test_validation_entries_are_drawn_as_folds_say(cli, table, tmp_path):
    models = ("cp:1", "--seeds", "1", "--jobs", "1", "--modes", "user,movie,day", "--value", "value")
    valid = {}
    for folds in ("random", "slices:user"):
        out = tmp_path / folds.partition(":")[0]
        code, _, err = cli("compare", table, *models, "--folds", folds, "--out", out, *QUICK)
        assert code == 0, err
        (cell,) = (out / "cells").glob("*.json")
        valid[folds] = json.loads(cell.read_text(encoding="utf-8"))["valid"]
    assert valid["random"]["cold"]["n"] == 0
    assert valid["slices:user"]["warm"]["n"] == 0
    code, _, err = cli("compare", table, *models, "--folds", "gaps", "--out", tmp_path / "none")
    assert code == 2
    assert "folds 'gaps' are not known" in err
