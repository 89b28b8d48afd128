"""The benchmark of serving at a small size: that both sides say the same, and what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "serving.py"


@pytest.mark.slow
def test_both_sides_are_measured_for_every_number_of_queries(tmp_path):
    command = [
        sys.executable,
        str(SUITE),
        "--queries",
        "2000",
        "5000",
        "--passes",
        "1",
        "--out",
        str(tmp_path / "s.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["rows"]
    assert [row["queries"] for row in rows] == [2000, 5000]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["rival"]["seconds"] / row["ours"]["seconds"])
        assert row["ours"]["queries_per_second"] == pytest.approx(row["queries"] / row["ours"]["seconds"])
        assert min(row["ours"]["peak_mib"], row["rival"]["peak_mib"]) > 100
        assert f"{row['queries']:,} queries   ratio {row['ratio']:.2f}" in done.stdout
