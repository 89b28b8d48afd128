"""The figures of README and docs/results.md are those of the records in benchmarks/results."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from statistics import mean

import pytest

from jointensor.bench.records import records_in
from jointensor.bench.table import as_markdown
from tests.docs.pages import DOCS, ROOT

RECORDS = ROOT / "benchmarks" / "results" / "auto"
NAMES = {
    "auto": "auto", "LightGBM": "lightgbm", "NeurTN": "neurtn-10", "interpolation": "interp", "myFM": "myfm",
    "JULIA 16/4": "julia-16-4", "JULIA 4/16": "julia-4-16", "additive biases": "bias", "mean": "mean",
}  # fmt: skip


def recorded(tensor, model):
    """RMSE by split, of the lower of the two LightGBM where both were run."""
    found = {}
    for name in (model, f"{model}-3"):
        files = sorted(RECORDS.glob(f"{tensor}.[0-9].{name}.json"))
        if files:
            found[name] = [json.loads(file.read_text(encoding="utf-8"))["rmse"] for file in files]
    return min(found.values(), key=mean)


def rows_of(path, heading):
    """Cells of the table whose first line has a heading in it, by the columns' names."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|") and heading in line)
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("*") for cell in line.strip("|").split("|")])
    return [dict(zip(table[0], row, strict=True)) for row in table[2:]]


def shown(text):
    """A figure of a table, and by how much it may differ: half of its last digit, and a little for ties."""
    number = re.search(r"\d+\.\d+", text)[0]
    return pytest.approx(float(number), abs=0.51 * 10 ** -len(number.partition(".")[2]))


def test_the_table_of_the_default_fit_is_made_from_its_records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # as for a script that is run
    spec = spec_from_file_location("fits", ROOT / "benchmarks" / "fits.py")
    fits = module_from_spec(spec)
    spec.loader.exec_module(fits)
    folder = ROOT / "benchmarks" / "results" / "fits"
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    for name in ("default", "default_h200", "auto_300"):
        assert fits.table(folder, name) in page, f"python benchmarks/fits.py --table --name {name}"
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert {"commit", "clean", "versions", "machine", "options", "split", "test"} <= set(record), path.name


@pytest.mark.parametrize("name", ["anytime", "boosted"])
def test_tables_of_scripts_are_made_from_their_records(monkeypatch, name):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pytest.importorskip("lightgbm", reason="boosted.py imports it")
    spec = spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    table = script.table(ROOT / "benchmarks" / "results" / name)
    assert table in (DOCS / "results.md").read_text(encoding="utf-8"), f"python benchmarks/{name}.py --table"


def test_the_table_of_gaps_is_made_from_its_records():
    records = records_in(ROOT / "benchmarks" / "results" / "gaps", "*/*.json")
    assert len({one["task"] for one in records}) == 9
    assert all({"commit", "clean", "versions", "machine", "data"} <= set(one) for one in records)
    table = as_markdown(records, "fit").replace("### ", "#### ")
    assert table in (DOCS / "results.md").read_text(encoding="utf-8")


ROWS = rows_of(ROOT / "README.md", "`auto` (ensemble)")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["tensor"])
def test_the_readme_prints_means_of_the_records(row):
    tensor = row["tensor"].partition(",")[0] + (".group-paper-word" if "pairs" in row["tensor"] else "")
    auto = recorded(tensor, "auto")
    assert len(auto) == 5
    assert mean(auto) == shown(row["`auto` (ensemble)"])
    best, _, _ = row["best single model"].rpartition(" ")
    rival = recorded(tensor, NAMES[best])
    assert mean(rival) == shown(row["best single model"].removeprefix(best))
    lower = sum(a < b for a, b in zip(auto, rival, strict=True))
    assert row["`auto` lower on"] == f"{lower} of 5"
    for column in ("JULIA 4/16", "additive biases", "mean"):
        assert mean(recorded(tensor, NAMES[column])) == shown(row[column])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["tensor"])
def test_no_single_model_that_was_run_is_better_than_the_one_in_the_readme(row):
    tensor = row["tensor"].partition(",")[0] + (".group-paper-word" if "pairs" in row["tensor"] else "")
    best = mean(recorded(tensor, NAMES[row["best single model"].rpartition(" ")[0]]))
    models = {path.name.removeprefix(f"{tensor}.").split(".", 1)[1] for path in RECORDS.glob(f"{tensor}.[0-9].*.json")}
    for model in models - {"auto.json", "costco-20-by-paper.json"}:
        found = recorded(tensor, model.removesuffix(".json"))
        assert len(found) < 5 or mean(found) >= best, model


def test_the_large_table_prints_means_of_the_records():
    for row in rows_of(DOCS / "results.md", "| nips_0_12.group-paper-word |"):
        model = next((known for name, known in NAMES.items() if row[""].strip("`").startswith(name)), None)
        if model is None or "triples" in row[""]:
            continue
        for tensor, text in row.items():
            if tensor and text != "–" and model != "lightgbm":
                assert mean(recorded(tensor, model)) == shown(text), (row[""], tensor)
