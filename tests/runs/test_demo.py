import json

import numpy as np
import polars as pl
import pytest

from jointensor.data.epidemic import make_epidemic


def test_the_epidemic_is_the_same_for_the_same_seed_and_splits_into_reported_and_missing():
    one, two = make_epidemic(3), make_epidemic(3)
    assert (one.observed.indices == two.observed.indices).all()
    assert (one.observed.values == two.observed.values).all()
    cells = np.concatenate([one.observed.indices, one.missing.indices])
    assert len(np.unique(cells, axis=0)) == len(cells) == np.prod(one.observed.shape)
    assert (make_epidemic(4).observed.values[:10] != one.observed.values[:10]).any()


@pytest.mark.slow
def test_the_demo_writes_what_it_says_and_its_models_beat_the_baselines(cli, tmp_path):
    out = tmp_path / "demo"
    code, stdout, stderr = cli("demo", "--out", out)
    assert code == 0, stderr
    for name in ("filled.csv", "regions.png", "components.png", "run/report.html", "run/metrics.json"):
        assert (out / name).exists()
    for word in ("JULIA 4/16", "CP 20", "network 20", "mean", "bias", "Try next"):
        assert word in stdout
    filled = pl.read_csv(out / "filled.csv")
    epidemic = make_epidemic(0)
    assert filled.height == np.prod(epidemic.observed.shape)
    assert int(filled["observed"].sum()) == len(epidemic.observed)
    figures = {
        name: json.loads((out / name / "metrics.json").read_text(encoding="utf-8"))
        for name in ("run", "run-cp", "run-network")
    }
    joint = figures["run"]["test"]["rmse"]
    assert joint < 1.1 * min(one["test"]["rmse"] for one in figures.values())
    for baseline in figures["run"]["baselines"].values():
        assert joint < 0.5 * baseline["test"]["rmse"]


def test_a_demo_folder_that_exists_is_left_alone(cli, tmp_path):
    (tmp_path / "demo").mkdir()
    code, _, stderr = cli("demo", "--out", tmp_path / "demo")
    assert code == 1
    assert "exists already" in stderr


@pytest.mark.parametrize("seed", [1])
def test_truth_has_the_structure_it_claims(seed):
    epidemic = make_epidemic(seed)
    early, late = epidemic.truth[:, 0, 20:70], epidemic.truth[:, 0, 100:160]

    def beyond_rank_one(part):
        sizes = np.linalg.svd(part, compute_uv=False) ** 2
        return 1 - sizes[0] / sizes.sum()

    assert beyond_rank_one(early) < 0.01  # one wave for all places
    assert beyond_rank_one(late) > 0.1  # regions drift apart
