"""``benchmarks/sizes.py`` on a tiny package whose figures are counted by hand."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sizes.py"

FILES = {
    "__init__.py": '"""A package."""\n\nfrom toy.training.loop import train\n\n__all__ = ["train"]\n',
    "cli/__init__.py": "",
    "cli/app.py": """
from toy import train as run_training
from toy.limits import MAX_ROWS


def fit(rows: int = 7) -> None:
    helper(rows)
    from toy.training.direct import shortcut
    shortcut()


def helper(rows):
    run_training(min(rows, MAX_ROWS))
""",
    "limits.py": "MAX_ROWS = 100\nZERO = 0\nNAMES = ('a', 'b')\n",
    "training/__init__.py": "",
    "training/direct.py": """
from toy.kernels.rows import solve_rows


def shortcut():
    solve_rows()
""",
    "training/loop.py": """
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from toy.kernels.rows import RowSolver, solve_rows
from toy.training.settings import Settings


class Solver(Protocol):
    def epoch(self) -> float: ...


class Als:
    def __init__(self, solver: RowSolver) -> None:
        self.solver = solver

    def epoch(self) -> float:
        return Turn(self, run_turn).body()

    def _solve(self) -> float:
        return self.solver(3.5)


@dataclass
class Turn:
    als: Als
    turn: Callable[[Als], float]

    def body(self) -> float:
        return self.turn(self.als)


def run_turn(als: Als) -> float:
    return als._solve()


class Streamed(Als):
    SHARDS = 16

    def _solve(self) -> float:
        return super()._solve()


class Unrelated:
    def epochs(self) -> int:
        return 0


class Outer:
    def fit(self) -> None:
        train(1)


def train(rows):
    ping(Als(solve_rows), rows)


def ping(solver: Solver, rows) -> None:
    if rows:
        pong(solver, rows - 1)
    solver.epoch()


def pong(solver: Solver, rows) -> None:
    ping(solver, rows)
""",
    "training/settings.py": "class Settings:\n    rate = 0.005\n    rounds = 2\n",
    "kernels/__init__.py": "",
    "kernels/rows.py": """
from typing import Protocol


class RowSolver(Protocol):
    def __call__(self, ridge: float) -> float: ...


def solve_rows(ridge=0.1):
    return inner(ridge)


def inner(ridge):
    return ridge
""",
}


@pytest.fixture
def toy(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "toy"


@pytest.fixture
def figures(toy):
    spec = importlib.util.spec_from_file_location("sizes", SCRIPT)
    sizes = importlib.util.module_from_spec(spec)
    sys.modules["sizes"] = sizes
    spec.loader.exec_module(sizes)
    yield sizes.measure(toy, "cli.app.fit", "solve_rows", "RowSolver")
    del sys.modules["sizes"]


def test_files_and_lines(figures):
    assert figures["files"] == len(FILES)
    assert figures["lines"] == sum(len(text.splitlines()) for text in FILES.values())
    assert figures["packages"]["training"]["files"] == 4
    assert figures["packages"]["(top)"] == {"files": 2, "lines": 8}


def test_docstrings_comments_and_blank_lines_are_no_code(figures):
    count = sys.modules["sizes"].code_lines
    assert count('"""Head\nof two lines."""\n\nA = 1\n"""Of A."""\n# why\nB = """x\ny"""  # two lines\n') == 3
    assert figures["code_lines"] <= figures["lines"]


def test_the_longest_chain_follows_re_exports_protocols_overrides_and_fields_and_takes_a_circle_once(figures):
    assert figures["call_chain"]["longest_chain"] == [
        "toy.cli.app.fit",
        "toy.cli.app.helper",
        "toy.training.loop.train",
        "toy.training.loop.ping",
        "toy.training.loop.Als.epoch",
        "toy.training.loop.Turn.body",
        "toy.training.loop.run_turn",
        "toy.training.loop.Streamed._solve",
        "toy.training.loop.Als._solve",
        "row solve",
    ]


def test_the_shortest_chain_is_the_direct_one(figures):
    assert figures["call_chain"]["shortest"] == 3  # fit, shortcut, row solve


def test_classes_that_train_include_subclasses_but_no_protocols(figures):
    passing = ["toy.training.loop.Als", "toy.training.loop.Streamed"]
    assert figures["classes_that_pass_over_entries"] == passing
    assert figures["classes_that_train"] == sorted([*passing, "toy.training.loop.Outer"])


def test_modules_with_one_importer(figures):
    assert figures["single_importers"] == [
        "toy.limits",
        "toy.training.direct",
        "toy.training.loop",
        "toy.training.settings",
    ]


def test_numbers_count_by_where_they_stand(figures):
    # MAX_ROWS; rows=7 and ridge=0.1; SHARDS; 3.5; rate. 0, 1 and 2 do not count.
    assert figures["constants"] == {"module": 1, "defaults": 2, "classes": 1, "bodies": 1, "settings": 1}
    assert figures["constants_outside_settings"] == 4


def test_the_command_writes_figures_and_shows_them_beside_an_earlier_record(toy, tmp_path):
    record = tmp_path / "before.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), str(toy), "--json", str(record), "--note", "first"],
        check=True,
        capture_output=True,
    )
    assert json.loads(record.read_text(encoding="utf-8"))["measured"] == "first"
    (toy / "limits.py").write_text("MAX_ROWS = 100\nMAX_COLUMNS = 50\n", encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, str(SCRIPT), str(toy), "--beside", str(record)],
        check=True, capture_output=True, text=True, encoding="utf-8", env={"PYTHONIOENCODING": "utf-8"},
    ).stdout  # fmt: skip
    (line,) = [line for line in shown.splitlines() if "constants outside" in line]
    assert line.split()[-2:] == ["4", "5"]
