"""A few cases of ``make soak``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.soak import run
from tests.soak.run import KINDS, Tally, run_case, soak

QUICK = tuple(name for name in KINDS if name not in ("runs", "tables", "auto", "estimator"))


@pytest.mark.parametrize(("kind", "times"), [*((kind, 6) for kind in QUICK), ("runs", 2), ("tables", 1)])
def test_every_kind_of_case_passes_a_few_times(kind, times):
    tally = Tally()
    for number in range(times):
        run_case(number, 1, (kind,), tally)
    assert tally.failures == []
    assert tally.kinds.total() == times
    assert tally.refused.total() < times / 2


@pytest.mark.slow
def test_many_cases_of_all_kinds():
    tally = soak(lambda number: number < 300, seed=2)
    assert tally.failures == []
    assert {kind.split()[0] for kind in tally.kinds} >= set(KINDS) - {"auto"}
    assert tally.refused.total() < 0.2 * tally.kinds.total()


def test_a_failing_case_is_reported_with_the_command_that_repeats_it(monkeypatch):
    def wrong(rng, _):
        assert rng.random() < 0.0, "one is not two"

    monkeypatch.setitem(run.KINDS, "rows", (wrong, 1))
    tally = Tally()
    run_case(7, 3, ("rows",), tally)
    (failure,) = tally.failures
    assert "python -m tests.soak.run --case 7 --seed 3 --only rows" in failure
    assert "one is not two" in failure


def test_a_case_follows_from_seed_and_number(monkeypatch):
    drawn = []
    monkeypatch.setitem(run.KINDS, "rows", (lambda rng, _: drawn.append(rng.random()) or "rows", 1))
    for seed, number in ((0, 0), (0, 0), (0, 1), (1, 0)):
        run_case(number, seed, ("rows",), Tally())
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3
    assert np.isfinite(drawn).all()


@pytest.mark.slow
def test_the_command_ends_with_a_summary():
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.run", "--cases", "20", "--only", "splits"],
        cwd=Path(__file__).parents[2], capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "20 cases, 0 failures"
