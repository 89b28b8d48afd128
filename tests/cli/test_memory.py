"""``fit --memory``: entries on disk, beside the same fit in memory."""

import json
import subprocess
import sys

import numpy as np
import pytest

from jointensor.data.generate import GeneratorLimits, SyntheticSpec, generate, write_large
from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel
from jointensor.runs.memory_plan import MIN_BATCH, MemoryPlan, fits_in_memory, parse_memory, peak_memory
from tests.command_line import QUICK

MODES = ("--modes", "user,movie,day", "--value", "value")
DISK = ("--memory", "1GB", "--stream")
SOLVED = ("--set", "ridges=(0.01, 0.1)", "--set", "sweeps=3", "--set", "refine_epochs=2")


def _metrics(out):
    return json.loads((out / "metrics.json").read_text(encoding="utf-8"))


def test_a_fit_from_disk_is_the_fit_in_memory(cli, table, tmp_path):
    for name, options in (("memory", ()), ("disk", DISK)):
        code, _, err = cli("fit", table, *MODES, "--rank", "2/0", "--out", tmp_path / name, *SOLVED, *options)
        assert code == 0, err
    assert "entries stay on disk, as --stream asks" in err
    disk, memory = _metrics(tmp_path / "disk"), _metrics(tmp_path / "memory")
    for part in ("test", "valid"):
        assert disk[part]["n"] == memory[part]["n"]
        assert disk[part]["rmse"] == pytest.approx(memory[part]["rmse"], rel=1e-3)
        assert disk["baselines"]["bias"][part]["rmse"] == pytest.approx(memory["baselines"]["bias"][part]["rmse"])
    assert disk["baselines"]["tables"] == {"test": None, "valid": None}
    assert disk["entries"] == memory["entries"]
    assert disk["split"] == memory["split"] | {"drawn": "permuted", "pattern": None}  # of all entries at once
    assert disk["memory"]["allowed"] == 10**9
    assert disk["memory"]["peak"] > 10**8
    assert (tmp_path / "disk" / "report.html").exists()
    assert not list((tmp_path / "disk" / "checkpoints").iterdir())
    answers = []
    for name in ("disk", "memory"):
        code, _, err = cli(
            "predict", tmp_path / name, table, "--out", tmp_path / f"{name}.npz.csv", "--interval", "0.9"
        )
        assert code == 0, err
        lines = (tmp_path / f"{name}.npz.csv").read_text(encoding="utf-8").splitlines()
        answers.append([float(line.split(",")[lines[0].split(",").index("prediction")]) for line in lines[1:]])
    np.testing.assert_allclose(*answers, atol=2e-3)


def test_a_joint_fit_without_test_and_validation_entries(cli, table, tmp_path):
    code, _, err = cli(
        "fit",
        table,
        *MODES,
        "--rank",
        "2/2",
        "--test",
        0,
        "--valid",
        0,
        "--out",
        tmp_path / "run",
        *DISK,
        *QUICK,
        *SOLVED[:4],
    )
    assert code == 0, err
    metrics = _metrics(tmp_path / "run")
    assert metrics["test"] is None
    assert metrics["valid"] is None
    assert metrics["entries"]["train"] == 300


def test_what_needs_all_entries_is_refused_and_leaves_nothing(cli, table, tmp_path):
    for options, message in {
        ("--rank", "auto"): "--rank auto needs all entries in memory",
        ("--split", "time:day"): "needs all entries in memory",
        ("--linear", "cp:2+local:day"): "block 'local' needs all entries in memory",
        ("--linear", "cp:2+smooth:hour"): "there is no mode 'hour'",
        ("--set", "linear_solver=gibbs"): "gibbs needs all entries in memory",
    }.items():
        code, _, err = cli("fit", table, *MODES, "--out", tmp_path / "run", *DISK, *options)
        assert code in (1, 2), options
        assert message in err
        assert not (tmp_path / "run").exists()


def test_memory_is_an_amount_and_stream_goes_with_it(cli, table, tmp_path):
    for options, message in {
        ("--memory", "much"): "is not an amount of memory such as 4GB",
        ("--memory", "500MB"): "give 1GB or more",
        ("--stream",): "--stream goes with --memory",
    }.items():
        code, _, err = cli("fit", table, *MODES, "--out", tmp_path / "run", *options)
        assert code == 2
        assert message in err
    assert parse_memory("1.5 GiB") == 3 * 2**29
    assert parse_memory("2000mb") == parse_memory("2G") == 2 * 10**9


def test_what_fits_is_held_in_memory(cli, table, tmp_path):
    code, _, err = cli("fit", table, *MODES, "--rank", "2/0", "--memory", "2GB", "--out", tmp_path / "run", *SOLVED)
    assert code == 0
    assert "entries are held in memory" in err
    assert _metrics(tmp_path / "run")["baselines"]["tables"]["test"] is not None
    assert _metrics(tmp_path / "run")["memory"]["peak"] == pytest.approx(peak_memory(), rel=0.5)
    assert not fits_in_memory(50_000_000, 4, 4 * 10**9)


def test_memory_is_shared_out_and_a_model_that_leaves_none_is_refused():
    small, large = JointModel((100, 80, 60), (4, 16)), JointModel((2_000_000, 1000, 1000), (4, 16))
    rooms = [MemoryPlan.of(memory, small) for memory in (10**9, 4 * 10**9)]
    assert rooms[0].rows < rooms[1].rows
    assert rooms[0].batch >= MIN_BATCH
    with pytest.raises(ConfigError, match="too little for 2,002,000 labels and 40,"):
        MemoryPlan.of(2 * 10**9, large)


def test_more_labels_than_memory_are_refused_before_anything_is_made(cli, tmp_path):
    shape = np.array([10**7, 5, 5])
    np.savez(tmp_path / "a.npz", indices=[[0, 1, 2], [7, 1, 1]], values=[1.0, 2.0], shape=shape)
    code, _, err = cli("fit", tmp_path / "a.npz", "--out", tmp_path / "run", *DISK)
    assert code == 2
    assert "too little for 10,000,010 labels" in err


def test_an_interrupted_run_takes_its_shards_again(cli, table, tmp_path, monkeypatch):
    def stops(*_):
        raise MemoryError

    out = tmp_path / "run"
    with monkeypatch.context() as interrupted:
        interrupted.setattr("jointensor.runs.dataset.fit_bias_streamed", stops)
        with pytest.raises(MemoryError):
            cli("fit", table, *MODES, "--rank", "2/0", "--out", out, *SOLVED, *DISK)
    assert (out / "checkpoints" / "shards" / "shards.json").exists()
    code, _, err = cli("fit", "--resume", out)
    assert code == 0, err
    assert "taking the shards that were written before the interruption" in err
    assert _metrics(out)["test"]["n"] == 60


def test_large_synthetic_tensors_are_drawn_in_chunks(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("jointensor.data.generate.LIMITS", GeneratorLimits(chunk_entries=700, max_in_memory=1000))
    options = ("--shape", "40x30x20", "--entries", 5000, "--rank", "2/3", "--noise", 0.1)
    code, out, err = cli("data", "get", "synthetic", *options, "--out", tmp_path / "a.npz")
    assert code == 0, err
    assert "5,000 entries" in out
    with np.load(tmp_path / "a.npz") as arrays:
        indices, values = arrays["indices"], arrays["values"]
    assert len(np.unique(np.ravel_multi_index(indices.T, (40, 30, 20)))) == 5000
    counts = np.bincount(indices[:, 0], minlength=40)
    assert 0.5 * 125 < counts.min() <= counts.max() < 1.5 * 125
    code, _, err = cli("data", "get", "synthetic", *options, "--skew", 1, "--out", tmp_path / "b.npz")
    assert code == 2
    assert "leave out --skew" in err
    plan = SyntheticSpec((40, 30, 20), 5000, (2, 3), noise=0.1)
    tensor, _ = generate(plan)
    np.testing.assert_array_equal(indices, tensor.indices)
    np.testing.assert_array_equal(values, tensor.values)


LIMITED = """
import sys
from jointensor.cli import main
sys.argv = ["jointensor", "fit", sys.argv[1], "--rank", "4/4", "--memory", "1GB", "--out", sys.argv[2], "--set",
            "refine_epochs=1", "--set", "cycle=0", "--set", "ridges=(0.01,)", "--set", "sweeps=1"]
main()
"""


@pytest.mark.slow
def test_six_million_entries_fit_into_a_gigabyte(tmp_path):
    write_large(SyntheticSpec((20_000, 10_000, 5_000, 1_000), 6_000_000, (3, 3)), tmp_path / "a.npz")
    command = [sys.executable, "-c", LIMITED, tmp_path / "a.npz", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metrics = _metrics(tmp_path / "run")
    assert metrics["entries"]["all"] == 6_000_000
    assert any("entries stay on disk" in note for note in metrics["notes"])
    assert metrics["memory"]["peak"] < 10**9


def test_test_files_and_refits_from_disk_are_those_in_memory(cli, table, tmp_path):
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    source, held_out = tmp_path / "source.csv", tmp_path / "held-out.csv"
    source.write_text("".join(lines[:240]), encoding="utf-8")
    held_out.write_text("".join([lines[0], *lines[240:], "99999,A,2021-01-01,1.5\n"]), encoding="utf-8")
    found = []
    for name, options in (("memory", ()), ("disk", DISK)):
        out = tmp_path / name
        code, _, err = cli(
            "fit", source, *MODES, "--rank", "2/0", "--test-file", held_out, "--refit", "--out", out, *SOLVED, *options
        )
        assert code == 0, err
        code, _, err = cli("predict", out, held_out, "--out", tmp_path / f"{name}.csv")
        assert code == 0, err
        predictions = (tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        column = predictions[0].split(",").index("prediction")
        found.append((_metrics(out), [float(line.split(",")[column]) for line in predictions[1:]]))
    (memory, wanted), (disk, answers) = found
    assert disk["entries"] == memory["entries"] == {"train": 216, "valid": 23, "test": 62, "all": 239}
    for kind in ("warm", "cold"):
        assert disk["test"][kind]["n"] == memory["test"][kind]["n"] > 0
        assert disk["test"][kind]["rmse"] == pytest.approx(memory["test"][kind]["rmse"], rel=1e-3)
    assert disk["returned"] == memory["returned"] == {"model": "joint", "refit": True}
    np.testing.assert_allclose(answers, wanted, atol=2e-3)
