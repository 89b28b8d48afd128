"""Pages as they are written: what they say, that they are whole, and that they need nothing else."""

import csv
import html
import json
import re
import shlex
import shutil
import sys
import xml.etree.ElementTree as ET
from importlib.resources import files

import numpy as np
import pytest
from typer.testing import CliRunner

from jointensor import split
from jointensor.cli import main
from jointensor.cli.app import app
from jointensor.report.facts import history_facts
from jointensor.report.pages import PHASES, render_run
from jointensor.report.plots import short
from jointensor.report.settings import SETTINGS
from jointensor.runs.dataset import read_source
from jointensor.runs.folder import load_run
from jointensor.runs.report import report
from jointensor.training.history import Epoch

EVIL = '<b>x</b> & "y" '
QUICK = ["--quiet", "--rank", "2/2", "--recipe", "paper", "--set", "rounds=1", "--set", "refine_epochs=5"]
ASKED = {"plain": [], "refit": ["--refit"], "memory": ["--linear", "cp:2+tables"]}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Run folders of one table, each fitted when it is first asked for."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["<i>who", "what", "day", "value"])
        for i, j, k in np.argwhere(rng.random((12, 6, 9)) < 0.7):
            rows.writerow([f"{EVIL}{i}", f"thing {j}", f"2024-01-{k + 1:02d}", (i + 1) * (j + 1) + rng.normal()])

    def run(name):
        if not (folder / name).exists():
            words = f"fit {folder}/table.csv --modes <i>who,what,day --value value --out {folder}/{name}"
            done = CliRunner().invoke(app, [*words.split(), *QUICK, *ASKED[name]])
            assert done.exit_code == 0, done.output
        return folder / name

    return run


@pytest.fixture
def copy(fitted, tmp_path):
    return shutil.copytree(fitted("plain"), tmp_path / "run")


def read(path, name):
    return json.loads((path / f"{name}.json").read_text(encoding="utf-8"))


def render(path, **changes):
    """The page of a run with some of what it is made from changed."""
    given = {name: read(path, name) for name in ("report", "metrics", "config", "environment")}
    return render_run(*(given[name] | changes.get(name, {}) for name in given))


def drawings(page, named=""):
    """Drawings of such a name, of a page that fetches and runs nothing; all are XML and keep their text inside."""
    for word in ("http", "<script", "src=", "url(", "@import", "<link", "<b>", "<i>"):
        assert word not in page.lower()
    assert not re.search(r"\b(nan|inf|None)\b", page)
    found = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    for svg in found:
        wide = float(svg.get("viewBox").split()[2])
        assert all(0 <= float(text.get("x")) <= wide for text in svg.iter("text")), svg.get("aria-label")
    return [svg for svg in found if svg.get("aria-label").startswith(named)]


def test_a_page_says_what_was_measured(fitted):
    page, metrics = (fitted("plain") / "report.html").read_text(encoding="utf-8"), read(fitted("plain"), "metrics")
    assert len(drawings(page)) > 8
    assert html.escape(f"{EVIL}3") in page
    mean = metrics["baselines"]["mean"]["test"]["rmse"]
    for one in (metrics, *metrics["baselines"].values()):
        assert f"<td>{one['test']['rmse']:.4g}</td>" in page
        assert f"<td>{100 * (1 - one['test']['rmse'] / mean):+.1f} %</td>".replace("-", "−") in page


@pytest.mark.parametrize("name", ["plain", "refit"])
def test_points_have_the_error_that_the_table_says(fitted, name):
    points, test = read(fitted(name), "report")["quality"]["points"], read(fitted(name), "metrics")["test"]
    assert len(points) == test["n"]
    assert np.sqrt(np.mean(np.diff(points, axis=1) ** 2)) == pytest.approx(test["rmse"], rel=1e-4)


@pytest.mark.parametrize("name", ["plain", "memory"])
def test_intervals_are_not_judged_on_the_entries_that_they_were_learnt_from(fitted, name):
    run = load_run(fitted(name))
    test = split(read_source(run.config["source"], run.config["table"], run.config["orders"]).tensor, seed=0).test
    own, answers = [], run.predictor.predict(test.indices)
    for level in SETTINGS.levels:
        ends = run.predictor.calibration.interval(test.indices, answers, level, run.predictor.unseen(test.indices))
        own.append([level, pytest.approx(np.mean((ends[:, 0] <= test.values) & (test.values <= ends[:, 1])))])
    assert read(fitted(name), "report")["quality"]["calibration"] != own


def test_without_test_entries_the_page_shows_those_that_were_left_out(fitted):
    metrics = read(fitted("plain"), "metrics")
    none = {name: one | {"test": None} for name, one in metrics["baselines"].items()}
    page = render(fitted("plain"), metrics={"test": None, "baselines": none})
    assert f"On {metrics['valid']['n']} entries that were left out in training; there are no test entries." in page
    assert f"<td>{metrics['valid']['rmse']:.4g}</td>" in page
    page = render(fitted("plain"), metrics={"test": None, "valid": None, "baselines": {}}, report={"quality": None})
    assert drawings(page)
    assert "test entries" not in page
    assert "MAE" not in page


@pytest.mark.parametrize(
    ("phase", "last"),
    [*((phase, 100) for phase in PHASES), ("refine", 2000), ("something new", 100)],
)  # fmt: skip
def test_every_epoch_is_a_dot_and_the_axis_goes_to_the_last(fitted, phase, last):
    history = history_facts([Epoch(0, phase, 0, k, 1 / k, 2 / k, 0.1, False, 9) for k in range(1, last + 1)])
    (curve,) = drawings(render(fitted("plain"), report={"history": history}), "RMSE by epoch")
    assert len(list(curve.iter("circle"))) == len(history[0]["epochs"])
    assert f"{last:,}" in [text.text for text in curve.iter("text")]


@pytest.mark.parametrize("first", [0, -2])
def test_labels_stay_in_a_drawing_of_test_entries_at_the_end_of_a_mode(fitted, first):
    quality = read(fitted("plain"), "report")["quality"]
    quality["modes"][2]["curve"] = quality["modes"][2]["curve"][first:]
    assert drawings(render(fitted("plain"), report={"quality": quality}), "error along day")


@pytest.mark.parametrize("word", ["a b.csv", "date('day', t)", ""])
def test_the_command_can_be_repeated(fitted, word):
    page = render(fitted("plain"), environment={"command": ["/bin/jointensor", "fit", word]})
    assert shlex.split(html.unescape(re.search("<pre>(.*)</pre>", page)[1])) == ["jointensor", "fit", word]


def test_the_page_is_written_again_without_the_source_and_even_without_facts(copy, fitted):
    page, table = (copy / "report.html").read_text(encoding="utf-8"), fitted("plain").parent / "table.csv"
    (copy / "report.html").unlink()
    table.rename(table.with_suffix(".gone"))
    done = CliRunner().invoke(app, ["report", str(copy)])
    table.with_suffix(".gone").rename(table)
    assert done.exit_code == 0, done.output
    assert (copy / "report.html").read_text(encoding="utf-8") == page
    (copy / "report.json").unlink()
    again = report(copy).read_text(encoding="utf-8")
    assert drawings(again) == []
    assert f"<td>{read(copy, 'metrics')['test']['rmse']:.4g}</td>" in again


@pytest.mark.parametrize("missing", ["", "*", "metrics.json", "config.json", "environment.json"])
def test_what_cannot_be_reported_is_one_line(copy, monkeypatch, capsys, missing):
    for file in copy.glob(missing or "nothing"):
        file.rmdir() if file.is_dir() else file.unlink()
    monkeypatch.setattr(sys, "argv", ["jointensor", "report", str(copy if missing else copy / "nowhere")])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out) == (1, "")
    assert re.fullmatch(rf"error: .*{re.escape(str(copy))}.*\n", captured.err)


def test_a_comparison_names_the_best_the_far_and_the_failed(copy):
    figures = {"good": 1.0, f"{EVIL}best": 0.5, "far": 50.0, "failed": None}
    (copy / "cells").mkdir()
    (copy / "config.json").write_text(
        json.dumps({"source": "/here/<i>.csv", "models": list(figures)}), encoding="utf-8"
    )
    for model, rmse in figures.items():
        test = None if rmse is None else {"rmse": rmse, "mae": rmse, "rfe": rmse, "n": 9}
        cell = {"model": model, "test": test, "mean_rmse": 2.0, "parameters": 3, "seconds": 1.0, "success": True}
        (copy / "cells" / f"{rmse}.json").write_text(json.dumps(cell), encoding="utf-8")
    page = report(copy).read_text(encoding="utf-8")
    ends = [text.text for text in drawings(page)[0].iter("text") if text.get("class") == "end"]
    assert ends == [f"{EVIL}best", "good"]
    assert re.search(r"not drawn: far<.*every fit failed: failed\.", page, re.DOTALL)
    assert html.unescape(re.search('<tr class="best"><td[^>]*>(.*?)</td>', page)[1]) == f"{EVIL}best"


def luminance(colour):
    parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return np.dot(linear, (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_marks_stand_out_in_light_and_dark(theme):
    text = files("jointensor.report").joinpath("base.html.j2").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", re.findall(r":root \{(.*?)\}", text, re.DOTALL)[theme]))
    for name in ("ink", "soft", "one", "two"):
        for behind in ("page", "card"):
            low, high = sorted((luminance(colours[name]), luminance(colours[behind])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, behind)


def test_a_sentence_says_what_the_table_means(fitted):
    metrics = read(fitted("plain"), "metrics")
    page = render(fitted("plain"), metrics={"test": metrics["test"] | {"rmse": 1e-3}})
    assert f"off by {short(metrics['test']['mae'])} on average" in page
    assert "is better here" not in page
    better = {"tables": {"test": metrics["test"] | {"rmse": metrics["test"]["rmse"] / 2}, "valid": None}}
    page = render(fitted("plain"), metrics={"baselines": metrics["baselines"] | better})
    assert f"The simple model “tables” is better here: RMSE {metrics['test']['rmse'] / 2:.4g}" in page
    for word in ("RMSE", "RFE", "skill", "mean", "bias", "tables", "interp"):
        assert f"<dt>{word}</dt>" in page


def test_many_components_take_a_click(fitted):
    one = read(fitted("plain"), "report")["components"][0]
    page = render(fitted("plain"), report={"components": [one] * (SETTINGS.components_shown + 3)})
    assert page.count("<h3>Component") == SETTINGS.components_shown + 3
    assert re.search(
        rf"Component {SETTINGS.components_shown},.*3 smaller components.*Component {SETTINGS.components_shown + 1},",
        page,
        re.DOTALL,
    )
    assert page.count("<details>") == page.count("</details>")
    assert "smaller components" not in render(fitted("plain"), report={"components": [one] * SETTINGS.components_shown})


def test_a_learning_curve_shows_its_end_beside_a_bad_beginning(fitted):
    def curve(*figures, **config):
        history = history_facts([Epoch(0, "refine", 0, k, f, f, 0.1, False, 9) for k, f in enumerate(figures, 1)])
        (found,) = drawings(render(fitted("plain"), report={"history": history}, config=config), "")[-1:]
        return [text.text for text in found.iter("text")]

    assert "RMSE, logarithmic" in curve(100.0, 2.0, 1.0)
    assert "RMSE" in curve(3.0, 2.0, 1.0)
    assert "huber loss" in curve(3.0, 2.0, 1.0, recipe_changes={"loss": "huber"})


def test_a_colour_has_one_name(fitted):
    history = history_facts([Epoch(0, phase, 0, k, 1.0, 1.0, 0.1, False, 9) for k, phase in enumerate(PHASES, 1)])
    page = render(fitted("plain"), report={"history": history})
    colours = re.findall(r'<span class="(p\d)">●</span>', page)
    assert sorted(colours) == sorted(set(PHASES.values()))


def test_few_labels_are_named_and_many_of_uneven_size_are_drawn_logarithmically(fitted):
    data = read(fitted("plain"), "report")["data"]
    (bars,) = drawings(render(fitted("plain")), "entries per label of what")
    assert {text.text for text in bars.iter("text")} >= {f"thing {j}" for j in range(6)}
    data["modes"][0] |= {"most": 9999, "median": 1.0, "curve": [[1, 9999], [2, 1], [3, 0]], "size": 3000, "half": 7}
    page = render(fitted("plain"), report={"data": data})
    (curve,) = drawings(page, "entries per label of &lt;i") or drawings(page, "entries per label of <i")
    assert {"entries, logarithmic", "1,000"} <= {text.text for text in curve.iter("text")}
    assert "7 hold half of all entries" in page


@pytest.mark.parametrize(("density", "said"), [(0.5, "50&nbsp;% of all cells"), (3.35e-6, "one cell in 299,000")])
def test_a_density_can_be_read(fitted, density, said):
    data = read(fitted("plain"), "report")["data"] | {"density": density}
    assert said in render(fitted("plain"), report={"data": data})


@pytest.mark.parametrize(("value", "warned"), [(1.5, False), (0.5, True)])
def test_a_prediction_outside_of_its_interval_is_explained(fitted, value, warned):
    filled = {"modes": ["who"], "rows": [{"labels": ["a"], "value": value, "interval": [1.0, 2.0]}]}
    assert ("outside of its own" in render(fitted("plain"), report={"filled": filled})) == warned


def test_attempts_say_how_they_went(fitted):
    attempt = read(fitted("plain"), "metrics")["attempts"][0]
    page = render(
        fitted("plain"), metrics={"attempts": [attempt | {"outcome": "diverged", "valid_rfe": None}, attempt]}
    )
    assert f'<td class="text">diverged</td><td>{attempt["epochs"]}</td>' in page
    assert f"<td>{short(attempt['valid_rfe'])}</td>" in page


def test_columns_of_a_comparison_that_nobody_fills_are_left_out(copy):
    (copy / "cells").mkdir()
    (copy / "config.json").write_text(json.dumps({"source": "x.csv", "models": ["mean"]}), encoding="utf-8")
    test = {"rmse": 1.0, "mae": 1.0, "rfe": 1.0, "n": 9}
    cell = {"model": "mean", "test": test, "mean_rmse": 2.0, "parameters": 3, "seconds": 1.0, "success": True}
    (copy / "cells" / "0.json").write_text(json.dumps(cell), encoding="utf-8")
    page = report(copy).read_text(encoding="utf-8")
    assert "dead f" not in page
    assert '<td data-is="RMSE">1</td>' in page
    assert 'class="dot hollow"' in page  # one fit has no spread


@pytest.mark.parametrize(
    ("outcome", "budget", "said"),
    [
        ("converged", None, "Converged after"),
        ("budget", 9.0, "Ended by its budget after"),
        ("budget", None, "Not yet converged when its recipe ended, after"),
        ("diverged", None, "Diverged after"),
    ],
)
def test_the_end_of_a_fit_is_told(fitted, outcome, budget, said):
    assert f"<p>{said}" in render(fitted("plain"), metrics={"outcome": outcome}, config={"budget": budget})
