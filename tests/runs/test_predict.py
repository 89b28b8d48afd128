"""Tables that are written: formulas among labels, and sources that never end."""

import csv
import json
import os
from importlib import import_module

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from jointensor.data import formats
from jointensor.data.formats import Format, register_format
from jointensor.errors import ConfigError
from jointensor.runs.folder import load_run
from jointensor.runs.predict import complete_file, predict_file, without_formulas

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]
PLAIN = ["a=b", "-5", "+3.5", "-1e-9", "7", "", "'=x", "ä", " =1"]


def test_text_that_begins_like_a_formula_gets_an_apostrophe_and_nothing_else_changes():
    texts = [*FORMULAS, *PLAIN]
    frame = pl.DataFrame({"=name": texts, "value": [-1.5] * len(texts), "n": [-3] * len(texts)})
    expected = [*(f"'{one}" for one in FORMULAS), *PLAIN]
    safe = pl.DataFrame({"'=name": expected, "value": [-1.5] * len(texts), "n": [-3] * len(texts)})
    assert_frame_equal(without_formulas(frame), safe)
    empty = pl.DataFrame({"a": [None, "=1"], "b": pl.Series(["=2", "x"], dtype=pl.Categorical)})
    assert without_formulas(empty).rows() == [(None, "'=2"), ("'=1", "x")]


@pytest.fixture
def labelled(fitted, tmp_path):
    """A run, and queries with labels that are formulas."""
    queries = tmp_path / "queries.csv"
    pl.DataFrame({"user": ["00001", "=1+1"], "movie": ["A", "@x"], "day": ["2021-01-01", "-day"]}).write_csv(queries)
    return load_run(fitted[0]), queries


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_predict_writes_formulas_as_text_when_it_is_told_to(labelled, tmp_path):
    run, queries = labelled
    predict_file(run, queries, tmp_path / "plain.csv")
    predict_file(run, queries, tmp_path / "safe.csv", safe_csv=True)
    plain, safe = read(tmp_path / "plain.csv"), read(tmp_path / "safe.csv")
    assert plain[2][:3] == ["=1+1", "@x", "-day"]
    assert safe[2][:3] == ["'=1+1", "'@x", "'-day"]
    assert [row[3:] for row in plain] == [row[3:] for row in safe]
    assert plain[1] == safe[1]


def test_safe_csv_is_an_option_of_predict_and_complete_for_text_tables(cli, fitted, labelled, tmp_path):
    out, _ = fitted
    _, queries = labelled
    assert cli("predict", out, queries, "--out", tmp_path / "a.tsv", "--safe-csv")[0] == 0
    assert "'=1+1" in (tmp_path / "a.tsv").read_text(encoding="utf-8")
    assert cli("complete", out, "--all", "--out", tmp_path / "b.csv", "--safe-csv")[0] == 0
    for words in (("predict", out, queries), ("complete", out, "--all")):
        code, _, err = cli(*words, "--out", tmp_path / "c.parquet", "--safe-csv")
        assert code == 2
        assert "--safe-csv is for .csv, .tsv and .txt" in err


def test_names_of_formats_that_are_not_written_are_refused(labelled, tmp_path, monkeypatch):
    """Suffixes are those of the formats there are, one from outside included."""
    run, queries = labelled
    for name in ("a.xlsx", "a.tns", "a"):
        with pytest.raises(ConfigError, match=r"its name must end in one of \.csv, .*\.parquet, .*\.npz$"):
            predict_file(run, queries, tmp_path / name)
    with pytest.raises(ConfigError, match=r"\.ndjson$"):
        complete_file(run, tmp_path / "a.npz", top=1)
    bars = Format("bars", (".bars",), tensor=False, functions=import_module("jointensor.data.formats.delimited"))
    monkeypatch.setattr(formats, "FORMATS", formats.FORMATS.copy())
    monkeypatch.setattr("jointensor.runs.predict.FORMATS", formats.FORMATS)
    register_format(bars)
    predict_file(run, queries, tmp_path / "a.bars")
    assert len(read(tmp_path / "a.bars")) == 3


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_complete_does_not_wait_for_a_source_that_is_no_regular_file(fitted, tmp_path, kind):
    out, _ = fitted
    source = tmp_path / "pipe.csv" if kind == "pipe" else "/dev/zero"
    if kind == "pipe":
        os.mkfifo(source)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(config | {"source": str(source)}), encoding="utf-8")
    notes = []
    complete_file(load_run(out), tmp_path / "filled.csv", where="user = '00001'", on_note=notes.append)
    assert any("is gone or has changed" in note for note in notes)
    assert not any(row[-2] == "true" for row in read(tmp_path / "filled.csv"))
