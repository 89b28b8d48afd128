"""What is printed: no control characters of the data's, and no traceback where the stream is not UTF-8."""

import io
import json
import os
import subprocess
import sys
import unicodedata

import numpy as np
import polars as pl
import pytest

from jointensor.cli.terminal import HANDLER, degrade_output, json_text, visible
from tests.command_line import QUICK

CLEAR, TITLE, TURN, CSI = "\x1b[2J", "\x1b]0;owned\x07", "\u202e", "\x9b31m"
COLUMN = f"us{TITLE}er"


def controls(text):
    """Characters that a terminal would act on, line breaks aside."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp") or c in "\u061c\u200e\u200f" or
            "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069"} - {"\n"}  # fmt: skip


def test_every_control_character_becomes_an_escape_and_nothing_else_changes():
    for code in range(0x3000):
        char = chr(code)
        if controls(char) or char == "\n":
            assert visible(char).isascii(), hex(code)
            assert visible(char).startswith("\\"), hex(code)
        else:
            assert visible(char) == char
    assert visible("naïve 日本 🎉 \\x1b") == "naïve 日本 🎉 \\x1b"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", None])
def test_json_is_the_same_data_without_controls_in_any_encoding(encoding):
    data = {CLEAR: [TURN, CSI, "naïve 日本 🎉", "\udc80", "a\nb\u2028"]}
    text = json_text(data, encoding)
    assert json.loads(text) == data
    assert not controls(text)
    if encoding in ("ascii", "latin-1"):
        text.encode(encoding)


def test_streams_replace_what_their_encoding_lacks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # cannot be set, and need not
    degrade_output()
    sys.stdout.write("0.1 ± 0.2, 3 × 4, –, …, é, 日, \udc80")
    sys.stdout.flush()
    assert raw.getvalue() == rb"0.1 +- 0.2, 3 x 4, -, ..., \xe9, \u65e5, \udc80"
    assert sys.stdout.errors == HANDLER


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A table whose labels and names of columns are escape sequences."""
    path = tmp_path_factory.mktemp("hostile") / "table.csv"
    rng = np.random.default_rng(0)
    labels = [f"{one}{n}" for n in range(4) for one in (CLEAR, TURN, CSI, "naïve")]
    cells = rng.permutation(16 * 16)[:150]
    frame = {COLUMN: [labels[k // 16] for k in cells], "movie": [labels[k % 16] for k in cells], "v": rng.random(150)}
    pl.DataFrame(frame).write_csv(path)
    return path


def test_escape_sequences_of_a_table_do_not_reach_the_terminal(cli, hostile, tmp_path):
    run, queries = tmp_path / "run", tmp_path / f"q{CLEAR}.csv"
    pl.read_csv(hostile).head(20).with_columns(movie=pl.lit(f"new{CLEAR}")).write_csv(queries)
    table = ("--mode", f"{COLUMN}={COLUMN}", "--mode", "movie=movie", "--value", "v")
    model = ("--linear", "mean+bias+cp:2", "--rank", "2/0", "--engine", "reference", *QUICK)
    said = [
        cli("fit", hostile, *table, *model, "--out", run),
        cli("components", run, "--no-picture"),
        cli("components", run, "--no-picture", "--json"),
        cli("predict", run, queries, "--out", tmp_path / "answers.csv"),
        cli("predict", run, tmp_path / f"none{CLEAR}", "--out", tmp_path / "answers.csv"),
        cli("evaluate", run, queries),
        cli("complete", run, "--where", f"movie = '{CLEAR}'", "--out", tmp_path / "filled.csv"),
        cli("fit", hostile, "--modes", f"{CLEAR},movie", "--value", "v", "--out", tmp_path / "no"),
        cli("fit", hostile, "--modes", f"{COLUMN},movie", "--value", f"v{CSI}", "--out", tmp_path / "no"),
        cli("compare", hostile, *table, f"mean{CLEAR}", "--out", tmp_path / "no"),
    ]
    assert [code for code, _, _ in said] == [0, 0, 0, 0, 1, 0, 1, 1, 1, 2], said
    for _, out, err in said:
        assert not controls(out + err)
    assert r"\x1b[2J" in said[1][1]
    top = json.loads(said[2][1])[0]["top"]
    assert set(top) == {COLUMN, "movie"}  # what is read by programs is what the table has
    assert json.loads((run / "labels.json").read_text(encoding="utf-8"))["modes"][0]["name"] == COLUMN
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "jointensor", "components", run, "--no-picture"]
    for more in ((), ("--json",)):
        done = subprocess.run([*command, *more], capture_output=True, check=False, env=ascii_only)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
    assert json.loads(done.stdout) == json.loads(said[2][1])


@pytest.mark.parametrize(
    "arguments", [("--help",), ("compare", "--help"), ("data", "list"), ("data", "list", "--json")]
)
def test_a_stream_that_is_not_utf8_gets_an_answer(arguments):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "jointensor", *arguments], capture_output=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout.isascii() or arguments[-1] == "--help"
