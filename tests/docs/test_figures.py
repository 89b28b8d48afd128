"""The figures of README and docs/results.md are those of the records in benchmarks/results."""

import json
import re
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from statistics import mean

import pytest

from jointensor.bench.records import records_in
from jointensor.reproduce.experiments import reproduce_all
from jointensor.reproduce.study import Setting
from tests.docs.pages import DOCS, ROOT

RESULTS = ROOT / "benchmarks" / "results"
RECORDS = RESULTS / "auto"
PAPER = RESULTS / "paper"
UNBACKED = "**Figures of version 0.1, which no record in this repository backs.**"
"""What a page says that is not written from records."""
NAMES = {
    "auto": "auto", "LightGBM": "lightgbm", "NeurTN": "neurtn-10", "interpolation": "interp", "myFM": "myfm",
    "JULIA 16/4": "julia-16-4", "JULIA 4/16": "julia-4-16", "additive biases": "bias", "mean": "mean",
}  # fmt: skip


PROVENANCE = {"command", "date", "commit", "clean", "versions", "machine"}
WITHOUT = {
    "auto": 1130, "auto_cpu": 8, "derived": 268, "cpu.json": 1, "distributed.json": 1, "gpu.json": 1, "ingest.json": 1,
    "large.json": 1, "serving.json": 1, "sizes.json": 1, "sweeps_cuda.json": 1, "update.json": 1,
}  # fmt: skip
"""Records of version 0.1, by folder or file: they do not say all of where they come from. None may be added."""


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


@pytest.fixture
def tables(monkeypatch):
    """The script that writes the tables of README and docs/results.md."""
    pytest.importorskip("lightgbm", reason="boosted.py imports it")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # as for a script that is run
    spec = spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_tables_between_marks_are_those_of_the_records(tables, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert tables.filled(text) == text, "python benchmarks/tables.py"
    assert len(tables.PLACE.findall(text)) == text.count("<!-- records: ") == text.count("<!-- end of records -->") > 0


def test_every_table_has_a_place(tables):
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in tables.PAGES]
    assert sorted(name for text in pages for _, name, _ in tables.PLACE.findall(text)) == sorted(tables.TABLES)


def test_a_table_that_was_edited_by_hand_is_noticed(tables):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = text.replace(" of 5 |", " of 6 |", 1)
    assert tables.filled(changed) != changed


def test_records_of_gaps_and_fits_say_what_they_are_of():
    records = records_in(RESULTS / "gaps", "*/*.json")
    assert len({one["task"] for one in records}) == 9
    assert all("data" in one for one in records)
    assert all({"options", "split", "test"} <= set(one) for one in records_in(RESULTS / "fits"))


def has_provenance(record):
    """Whether a record, or every fit in it, says where it comes from."""
    made = record.get("provenance", [record])
    return bool(made) and all(set(one) >= PROVENANCE and one["commit"] is not None for one in made)


def test_every_record_says_where_it_comes_from():
    lacking = Counter()
    for path in RESULTS.rglob("*.json"):
        if not has_provenance(json.loads(path.read_text(encoding="utf-8"))):
            lacking[path.relative_to(RESULTS).parts[0]] += 1
    assert {name: count for name, count in lacking.items() if count > WITHOUT.get(name, 0)} == {}


@pytest.mark.parametrize("gone", [*sorted(PROVENANCE), "a commit"])
def test_a_record_without_a_piece_of_provenance_is_noticed(gone):
    whole = dict.fromkeys(PROVENANCE, "known")
    assert has_provenance(whole)
    assert has_provenance({"provenance": [whole, whole]})
    part = whole | {"commit": None} if gone == "a commit" else {key: whole[key] for key in PROVENANCE - {gone}}
    assert not has_provenance(part)
    assert not has_provenance({"provenance": [whole, part]})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Pages and pictures of the experiments that have records."""
    pages = tmp_path_factory.mktemp("pages")
    for _ in reproduce_all(Setting(PAPER, pages=pages, finished=True)):
        pass
    return {path.name: path.read_text(encoding="utf-8") for path in pages.iterdir()}


def test_pages_of_the_paper_are_what_their_records_give(written):
    assert {"claims.md", "table1.md", "figure2.md", "figure2-small.md", "students.md"} <= set(written)
    for name, text in written.items():
        assert (DOCS / "results" / name).read_text(encoding="utf-8") == text, f"{name}: make pages"


def test_pages_of_the_paper_without_records_say_so(written):
    for path in (DOCS / "results").iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md" and path.name not in {*written, "answers.md"}:
            assert UNBACKED in text, f"{path.name} is not written from records: say so"
        if path.suffix == ".svg" and path.name not in written:
            pages = [page for page in (DOCS / "results").glob("*.md") if path.name in page.read_text(encoding="utf-8")]
            assert pages, f"{path.name} is on no page"
            assert all(page.name not in written for page in pages), f"{path.name} is not drawn from records"


ROWS = rows_of(ROOT / "README.md", "`fit` (ensemble)")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["tensor"])
def test_the_readme_prints_means_of_the_records(row):
    """Those of single models on the splits that `fit` was run on, and no single model has a lower one."""
    tensor = row["tensor"]
    paths = sorted((RESULTS / "fits").glob(f"{tensor}.[0-9].default.json"))
    paths = paths or sorted((RESULTS / "fits").glob(f"{tensor}.[0-9].default_h200.json"))
    ours = {path.name.split(".")[1]: json.loads(path.read_text(encoding="utf-8"))["test"]["rmse"] for path in paths}
    assert row["splits"] == str(len(ours))
    assert mean(ours.values()) == shown(row["`fit` (ensemble)"])

    def errors(model):
        files = {split: RECORDS / f"{tensor}.{split}.{model}.json" for split in ours}
        if not all(file.exists() for file in files.values()):
            return None
        return {split: json.loads(file.read_text(encoding="utf-8"))["rmse"] for split, file in files.items()}

    models = {path.name.split(".", 2)[2].removesuffix(".json") for path in RECORDS.glob(f"{tensor}.[0-9].*.json")}
    means = {model: mean(found.values()) for model in models - {"auto"} if (found := errors(model)) is not None}
    best = min(means, key=means.get)
    assert means[best] == shown(row["best single model"].rpartition(" ")[2])
    lower = sum(ours[split] < error for split, error in errors(best).items())
    assert row["`fit` lower on"] == f"{lower} of {len(ours)}"
    for column in ("JULIA 4/16", "additive biases", "mean"):
        assert means[NAMES[column]] == shown(row[column])


def test_the_readme_prints_the_entries_that_were_counted():
    counted = {next(iter(one["data"])): one["entries"] for one in records_in(PAPER / "table1")}
    entries = {row["tensor"]: row["entries"] for row in ROWS}
    both = {name: count for name, count in counted.items() if name.removesuffix(".npz") in entries}
    assert len(both) >= 5
    for name, count in both.items():
        assert entries[name.removesuffix(".npz")] == f"{count / 1e6:.1f} M"


def test_the_large_table_prints_means_of_the_records():
    for row in rows_of(DOCS / "results.md", "| nips_0_12.group-paper-word |"):
        model = next((known for name, known in NAMES.items() if row[""].strip("`").startswith(name)), None)
        if model is None or "triples" in row[""]:
            continue
        for tensor, text in row.items():
            if tensor and text != "–" and model != "lightgbm":
                assert mean(recorded(tensor, model)) == shown(text), (row[""], tensor)
