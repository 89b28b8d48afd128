"""``benchmarks/planted_ranks.py``: tensors with a known rank, and the rank that ``select`` chooses."""

import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "planted_ranks.py"


@pytest.mark.slow
def test_the_experiment_on_ranks_plants_what_it_says():
    ranks = runpy.run_path(str(SCRIPT))
    row = ranks["run_one"](2, 0, network=False, size=30, device="cpu")
    assert row["planted"] == row["identified"] == 2
    assert len(row["rmse"]) == len(ranks["CANDIDATES"])
    assert np.argmin(np.diff(row["rmse"])) == 0  # the second component takes away most
