"""Some hundred mutated files for every reader, and all that were ever found. ``make fuzz`` reads far more."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.fuzz.readers import READERS
from tests.fuzz.run import REPOSITORY, fuzz, kept_cases

SHORT = {
    "tns": 800, "csv": 400, "npz": 1000, "safetensors": 800, "run": 80, "sql": 400, "archives": 100,
    "parquet": 200, "arrow": 200, "jsonl": 200, "stream": 150,
}  # fmt: skip


def test_every_reader_has_a_short_run():
    assert set(SHORT) == set(READERS)


@pytest.mark.parametrize("reader", SHORT)
def test_mutated_files_are_read_or_refused(reader):
    tally = fuzz(reader, SHORT[reader])
    assert tally.findings == []
    assert tally.read == SHORT[reader] == tally.outcomes.total()
    assert 0 < tally.accepted < tally.read, "mutations must neither break every file nor none"


@pytest.mark.parametrize("reader", [reader for reader in READERS if kept_cases(reader)])
def test_cases_that_were_found_stay_fixed(reader):
    tally = fuzz(reader, 0, kept=True)
    found = [(kept_cases(reader)[one["input"]].name, one["what"]) for one in tally.findings]
    assert found == []
    assert tally.read == len(kept_cases(reader)) > 0


def test_the_same_inputs_are_made_everywhere():
    code = (
        "import hashlib; from tests.fuzz.readers import READERS; from tests.fuzz.run import made\n"
        "for name in ('tns', 'csv', 'npz', 'sql'):\n"
        "    print(hashlib.sha256(repr(list(made(READERS[name](), 0, 30, 0))).encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=REPOSITORY, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] != b""


BAD = """
import os, pickle, sys, tempfile
from pathlib import Path
from jointensor.errors import DataError
from tests.fuzz.readers import Reader
from tests.fuzz.run import work

class Bad(Reader):
    name, modules = "bad", ()
    def case(self, rng):
        return {}
    def warm_up(self, folder):
        pass
    def read(self, folder):
        what = next(iter(folder.iterdir())).name
        if what == "good":
            raise DataError("it is refused")
        if what == "silent":
            raise DataError("")
        if what == "key":
            raise KeyError("x")
        if what == "exit":
            sys.exit(3)
        if what == "memory":
            bytearray(1 << 31)
        if what == "reads":
            open("/etc/hostname")
        if what == "writes":
            (folder.parent / "beside").write_text("x", encoding="utf-8")
        if what == "here":
            Path("dropped").write_text("x", encoding="utf-8")
        if what == "unpickles":
            pickle.loads(b"cos\\ngetpid\\n.")

names = ("good", "silent", "key", "exit", "memory", "reads", "writes", "unpickles", "good", "here")
(Path(sys.argv[1]) / "place").write_bytes(bytes(8))
work(Bad(), ((n, {name: b""}) for n, name in enumerate(names)), Path(sys.argv[1]))
"""


def test_what_readers_must_not_do_is_found(tmp_path):
    subprocess.run([sys.executable, "-c", BAD, str(tmp_path)], cwd=REPOSITORY, check=True)
    found = [json.loads(line) for line in (tmp_path / "answer").read_text(encoding="utf-8").splitlines()]
    told = {one["input"]: one["what"] for one in found[:-1]}
    assert sorted(told) == [1, 2, 3, 4, 5, 6, 7, 9]
    for number, words in {
        1: "without a message", 2: "KeyError", 3: "SystemExit", 4: "MemoryError", 5: "opened /etc/hostname",
        6: "beside",
        7: "pickle.find_class", 9: "dropped",
    }.items():  # fmt: skip
        assert words in told[number]


HANGS = """
import sys, time
from tests.fuzz import readers, run
class Hangs(readers.Tns):
    def warm_up(self, folder):
        pass
    def read(self, folder):
        if folder.joinpath("t.tns").exists() and b"#" in folder.joinpath("t.tns").read_bytes():
            while True:
                time.sleep(1)
readers.READERS["tns"] = run.READERS["tns"] = Hangs
run.SECONDS = 0.3
run._worker(sys.argv[1:])
"""


def test_an_input_that_never_ends_ends_the_process(tmp_path):
    (tmp_path / "place").write_bytes(bytes(8))
    done = subprocess.run(
        [sys.executable, "-c", HANGS, "tns", "0", "40", "0", str(tmp_path)], cwd=REPOSITORY, timeout=600
    )
    assert done.returncode == -signal.SIGALRM
    assert 0 < int.from_bytes((tmp_path / "place").read_bytes(), "little") < 40


def test_an_input_that_computes_for_ever_ends_the_process(tmp_path):
    (tmp_path / "place").write_bytes(bytes(8))
    code = HANGS.replace("time.sleep(1)", "pass").replace("run.SECONDS = 0.3", "run.CPU_SECONDS = 0.3")
    done = subprocess.run(
        [sys.executable, "-c", code, "tns", "0", "40", "0", str(tmp_path)], cwd=REPOSITORY, timeout=600
    )
    assert done.returncode == -signal.SIGPROF
