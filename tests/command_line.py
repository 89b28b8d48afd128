"""The command line in this process, and a small table with a run folder, for tests of commands and runs."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jointensor import SparseTensor, write_tensor
from jointensor.cli import main
from jointensor.data.modes import Mode

QUICK = ("--set", "warm_epochs=1", "--set", "rounds=1", "--set", "refine_epochs=2", "--set", "batch_size=64")


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command line in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["jointensor", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def ratings():
    """user × movie × day with labels that need care: leading zeros, text, dates."""
    rng = np.random.default_rng(0)
    modes = (
        Mode("user", 12, tuple(f"{n:05d}" for n in range(12))),
        Mode("movie", 9, tuple("ABCDEFGHI")),
        Mode("day", 5, tuple(f"2021-01-0{d}" for d in range(1, 6)), "ordered"),
    )
    cells = rng.permutation(12 * 9 * 5)[:300]
    indices = np.stack(np.unravel_index(cells, (12, 9, 5)), axis=1)
    a, b, c = (rng.random(size) + 0.5 for size in (12, 9, 5))
    values = a[indices[:, 0]] * b[indices[:, 1]] * c[indices[:, 2]]
    return SparseTensor(indices, values, modes)


@pytest.fixture
def table(ratings, tmp_path):
    path = tmp_path / "ratings.csv"
    write_tensor(ratings, path)
    return path


@pytest.fixture(scope="session")
def finished(ratings, tmp_path_factory):
    """A run folder that nobody changes."""
    folder = tmp_path_factory.mktemp("finished")
    write_tensor(ratings, folder / "ratings.csv")
    words = ("fit", folder / "ratings.csv", "--modes", "user,movie,day", "--value", "value", "--rank", "2/3", *QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["jointensor", *map(str, words), "--out", str(folder / "run"), "--quiet"])
        with contextlib.suppress(SystemExit):
            main()
    return folder / "run"


@pytest.fixture
def fitted(finished, table, tmp_path):
    """A copy of it, its table beside it, and what metrics.json holds."""
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    return out, json.loads((out / "metrics.json").read_text(encoding="utf-8"))
