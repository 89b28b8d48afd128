"""The benchmark suite at small sizes: its structure, not its speed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "cpu.py"
RIVALS = {"sliced Adam", "batched loader", "plain DataLoader", "tensorly", "pyttb", "pygenten"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, str(SUITE), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"MPLBACKEND": "Agg"})
    assert done.returncode == 0, done.stderr
    return out, json.loads((out / "cpu.json").read_text(encoding="utf-8")), done.stdout


def test_every_rival_has_numbers_or_a_reason(ran):
    _, results, table = ran
    assert set(results["throughput"]) == RIVALS
    assert set(results["ratings"]) == {"jointensor", "myfm", "scikit-surprise"}
    assert set(results["memory"]) == RIVALS | {"exact sweep"}
    wanted = {
        "throughput": "ratio",
        "target": "seconds",
        "ratings": "best_rmse",
        "memory": "peak_mib",
        "scaling": "exponent",
    }
    for kind, number in wanted.items():
        for name, found in results[kind].items():
            assert number in found or found["reason"], (kind, name)
            assert name in table


def test_what_needs_no_rival_is_measured(ran):
    _, results, _ = ran
    for kind, name in (("throughput", "sliced Adam"), ("target", "exact sweeps"), ("memory", "exact sweep")):
        assert "reason" not in results[kind][name]
    assert "reason" not in results["paper"]
    assert all("reason" not in found for found in results["scaling"].values())


def test_ratios_are_what_the_times_say(ran):
    _, results, _ = ran
    compared = [one for one in (*results["throughput"].values(), results["paper"]) if "ratio" in one]
    assert compared
    for found in compared:
        rates = [one["entries"] / np.array(one["seconds"]) for one in (found["ours"], found["rival"])]
        assert found["ratio"] == pytest.approx(float(np.median(rates[0] / rates[1])))
        assert found["quartiles"][0] <= found["ratio"] <= found["quartiles"][1]
        for one in (found["ours"], found["rival"]):
            assert one["entries_per_second"] == pytest.approx(one["entries"] / float(np.median(one["seconds"])))


def test_threads_are_kept_to(ran):
    _, results, _ = ran
    assert results["threads"] == 1
    for found in results["throughput"].values():
        if "ratio" in found:
            assert found["torch_threads"] == 1
            assert found["ours"]["cores"] < 1.3


def test_files_are_whole(ran):
    out, results, _ = ran
    assert sorted(path.name for path in out.iterdir()) == ["cpu.json", "cpu.png"]
    assert (out / "cpu.png").read_bytes().startswith(b"\x89PNG")
    assert results["versions"]["torch"]
    assert results["machine"]["cores"] == len(os.sched_getaffinity(0))
