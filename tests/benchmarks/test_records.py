"""Records of benchmarks and the tables that are made from them, by figures that are counted by hand."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

from jointensor.bench import records
from tests.docs.pages import ROOT


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks as one that is run does."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


FACTS = {
    "commit": "0123456789abcdef",
    "clean": True,
    "versions": {"jointensor": "0.2"},
    "machine": {"cpu": "Fast", "cores": 2, "gpu": None, "device": "cpu"},
}


def write(folder, name, record):
    (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


# --- provenance


def test_a_copy_without_git_is_told_its_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("JOINTENSOR_COMMIT", raising=False)
    unknown = records.commit_of(tmp_path)
    assert (unknown["commit"], unknown["clean"]) == (None, None)
    assert "JOINTENSOR_COMMIT is not set" in unknown["commit_source"]
    for told, clean in (("abc", True), ("abc-dirty", False)):
        monkeypatch.setenv("JOINTENSOR_COMMIT", told)
        assert records.commit_of(tmp_path) == {"commit": "abc", "clean": clean, "commit_source": "JOINTENSOR_COMMIT"}


def test_changes_of_sources_make_a_tree_unclean_and_records_do_not(tmp_path):

    def git(*words):
        options = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *options, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1\n", encoding="utf-8")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert records.commit_of(tmp_path)["clean"] is True
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    write(tmp_path / "benchmarks" / "results", "record", {})
    assert records.commit_of(tmp_path)["clean"] is True
    (tmp_path / "src" / "b.py").write_text("2\n", encoding="utf-8")  # not added, but it would be imported
    found = records.commit_of(tmp_path)
    assert found["clean"] is False
    assert found["commit_source"] == "git"


def test_a_record_is_made_once_unless_it_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "provenance", lambda packages: FACTS)
    made = iter([{"error": "no memory"}, {"found": 1}, {"found": 2}])
    path = tmp_path / "new" / "record.json"
    for expected in ({"error": "no memory"}, {"found": 1}, {"found": 1}):
        assert records.kept(path, lambda: next(made)) == expected | FACTS
    assert records.records_in(path.parent) == [{"found": 1} | FACTS]


def test_a_line_names_commits_and_machines():
    on_gpu = {"commit": None, "clean": None, "versions": {}, "machine": FACTS["machine"] | {"gpu": "H200"}}
    changed = FACTS | {"commit": "fedcba9876", "clean": False}
    assert records.origin([FACTS, changed, on_gpu]) == (
        "Commits: 0123456, fedcba9 with changes, unknown. Machines: 2 cores of Fast, H200 and 2 cores of Fast."
    )


# --- anytime


def test_the_table_of_budgets_says_where_more_time_is_behind(script, tmp_path):
    anytime = script("anytime")
    runs = {None: (2.0, 20), 10: (2.5, 9), 30: (2.1, 29), 100: (1.9, 90)}
    for budget, (error, seconds) in runs.items():
        baselines = {"bias": {"test": {"rmse": 2.45}}, "mean": {"test": {"rmse": 3.0}}, "interp": {"test": None}}
        record = {"tensor": "t", "beside": 0, "split": 0, "budget": budget, "seconds": seconds, "baselines": baselines}
        write(tmp_path, f"t.{budget}", record | {"test": {"rmse": error}} | FACTS)
    write(tmp_path, "failed", {"tensor": "t", "error": "no memory"} | FACTS)
    table = anytime.table(tmp_path)
    assert "| t | 0 | 1 | 2.45 | 2 | 2.5 | 2.1 | 1.9 | 1.050 | 1.020 |" in table
    behind = [line for line in table.splitlines() if line.startswith("-")]
    assert behind == [  # at 10 s the default fit has not ended; at 30 s it has, and is ahead
        "- t beside 0, split 0, 30 s: +5.00% on `fit`",
        "- t beside 0, split 0, 10 s: +2.04% on the best baseline",
    ]
    anytime.draw(tmp_path, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_processes_that_spin_end_with_the_measurement(script, monkeypatch):
    anytime, started = script("anytime"), []
    real = subprocess.Popen
    monkeypatch.setattr(anytime.subprocess, "Popen", lambda *words: started.append(real(*words)) or started[-1])

    def interrupted():
        with anytime.spinning(2):
            assert [one.poll() for one in started] == [None, None]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(one.poll() is not None for one in started)


# --- joint models


def nested_record(folder, split, fits):
    rows = {name: {"valid": valid, "test": test, "rank": [1, 1], "provenance": 0}
            for name, (valid, test) in fits.items()}  # fmt: skip
    rows["9/9 broken"] = {"error": "no memory", "provenance": 0}
    write(folder, f"t.{split}", {"tensor": "t", "split": split, "provenance": [FACTS], "fits": rows})


def test_joint_models_are_compared_with_their_own_halves(script, tmp_path):
    nested = script("nested")
    fits = {"4/0 none": (2.0, 0), "0/4 julia": (3.0, 0), "0/4 mlp": (1.0, 0), "4/4 julia": (2.003, 0),
            "4/4 mlp": (1.1, 0), "16/4 mlp": (0.5, 0), "4/0 none max_rank=8": (1.0, 0)}  # fmt: skip
    nested_record(tmp_path, 0, fits)
    found = nested.ratios({name: {"valid": valid} for name, (valid, _) in fits.items()})
    assert found == pytest.approx({"4/4 julia": 2.003 / 2, "4/4 mlp": 1.1})
    table = nested.table(tmp_path)
    assert "| t | 0 | 1 of 2 | 1.1000 | 4/4 mlp |" in table
    assert "- t split 0, 4/4 mlp: 1.1000" in table
    assert "- t split 0, 4/4 julia" not in table  # within 0.2 %


def test_the_share_that_validates_best_is_the_one_that_counts(script, tmp_path):
    claims = script("claims_nested")
    shares = {"4/16 costco": (1.0, 5.0), "10/10 costco": (0.9, 3.0), "16/4 costco": (1.1, 1.0)}
    nested_record(tmp_path, 0, shares | {"0/20 costco": (9.0, 4.0)})
    nested_record(tmp_path, 1, shares | {"0/20 costco": (9.0, 3.5), "4/16 costco": (0.1, 3.9)})
    nested_record(tmp_path, 2, {"0/20 costco": (9.0, 100.0)})  # not finished
    table = claims.table(tmp_path)
    # 3.0 and 3.9 beside 4.0 and 3.5: -1.0 and +0.4
    assert "| t | costco | default | 2 | 3.75 | 3.45 | 1/1 | -0.3 | 0.7 | 1 |" in table
    assert "default: JULIA-X below X in 1 of 1 cells." in table


def test_fits_that_are_in_a_record_are_not_made_again(script, tmp_path, monkeypatch):
    fits = script("joint_fits")
    monkeypatch.setattr(fits, "provenance", lambda: {"commit": "abc"})
    asked = []

    def run(tasks, jobs):
        asked.append([(task.split, task.model.name(task.changes)) for task in tasks])
        for task in tasks:
            yield task, {"error": "no memory"} if task.model.linear and len(asked) == 1 else {"valid": 1.0}

    monkeypatch.setattr(fits, "_run", run)
    options = {"sources": [tmp_path / "t.npz"], "splits": [0, 1], "changes": ["max_rank=8"], "device": "cpu",
               "seed": 0, "jobs": 1, "out": tmp_path / "out"}  # fmt: skip
    models = [fits.Model(4, 0), fits.Model(0, 4, "mlp"), fits.Model(4, 0)]
    for _ in range(3):
        fits.fit_all(models, type("Options", (), options))
    assert asked[0] == [(split, name) for split in (0, 1) for name in ("4/0 none max_rank=8", "0/4 mlp max_rank=8")]
    assert asked[1:] == [[(0, "4/0 none max_rank=8"), (1, "4/0 none max_rank=8")], []]
    ended, facts = fits.fits_in(tmp_path / "out")
    assert set(ended) == {("t", 0), ("t", 1)}
    assert [set(one) for one in ended.values()] == 2 * [{"4/0 none max_rank=8", "0/4 mlp max_rank=8"}]
    assert all(one["commit"] == "abc" for one in facts)


def test_a_fit_is_that_of_nested_training(script, tmp_path):
    from jointensor import write_tensor
    from jointensor.data.synthetic import make_joint

    fits = script("joint_fits")
    source = tmp_path / "t.npz"
    write_tensor(make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=1)[0], source)
    quick = ("refine_epochs=1", "rounds=1", "warm_epochs=1", "restarts=0", "max_rank=4")
    found = fits.figures(fits.Task(source, 0, fits.Model(2, 3, "mlp"), quick, "cpu", 0))
    assert found["rank"] in ([2, 3], [4, 3])
    assert min(found["valid"], found["test"]) > 0
    failed = fits.figures(fits.Task(source, 0, fits.Model(2, 3, "no such network"), quick, "cpu", 0))
    assert "no such network" in failed["error"]


# --- leaving one out


def test_weights_are_judged_on_entries_that_did_not_choose_them(script):
    """By hand: the piece whose weights the other one chooses."""
    judged = script("leave_one_out").judged
    rng = np.random.default_rng(0)
    truths = [rng.standard_normal(50).astype(np.float32) for _ in range(2)]
    exact, noise = list(truths), [rng.standard_normal(50).astype(np.float32) for _ in range(2)]
    assert judged({"exact": exact, "noise": noise}, truths) == 0.0
    # right on one piece, wrong on the other: the piece that it is right on gives it all the weight elsewhere
    turned = {"first": [truths[0], truths[1] + 3], "second": [truths[0] + 3, truths[1]]}
    assert judged(turned, truths) == pytest.approx(3.0, rel=1e-5)


def test_the_table_names_what_adds_nothing_anywhere(script, tmp_path):
    loo = script("leave_one_out")

    def row(name, without):
        return {"name": name, "family": "f", "folds": 5, "with": 1.0, "without": without, "weight": 0.5}

    for tensor, split, trees, bias in (("a", 0, 1.02, 1.0), ("a", 1, 1.04, 1.0), ("b", 0, 1.0, 1.0005)):
        rows = [row("trees", trees), row("bias", bias), row("alone", None)]
        write(tmp_path, f"{tensor}.{split}", {"tensor": tensor, "split": split, "rows": rows} | FACTS)
    table = loo.table(tmp_path)
    assert "| trees | 2 | 3 | 3 | +2.00% | 1.15% | +3.00% | a |" in table
    assert "Less than 0.1% on every tensor: bias." in table
    assert "alone" not in table
