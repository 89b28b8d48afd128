"""Figure 2 of the paper: planted multilinear components are found beside a planted network."""

import numpy as np
import pytest

from jointensor.reproduce.planted import julia_network, planted, run_one
from jointensor.training.recipe import make_recipe


@pytest.fixture(scope="module")
def small():
    recipe = make_recipe("paper", batch_size=1024, lr_linear=0.01, lr_nonlinear=0.01, refine_epochs=10)
    return planted(40, (2, 4), 0.3, 0), recipe


def test_planted_tensors_are_what_the_paper_describes(small):
    (parts, truth), _ = small
    entries = [len(part) for part in (parts.train, parts.valid, parts.test)]
    assert sum(entries) == round(0.2 * 40**3)
    assert entries == [9216, 1024, 2560]
    assert truth.nonlinear.std() == pytest.approx(0.3 * truth.multilinear.std())
    assert np.mean(truth.nonlinear == 0) == pytest.approx(0.1, abs=0.01)  # cut off by the output ReLU
    assert truth.nonlinear.min() == 0
    rows = np.random.default_rng(0).standard_normal((50, 3, 4))
    assert np.array_equal(julia_network(3, 4, 0)(rows), julia_network(3, 4, 0)(rows))
    assert not np.array_equal(julia_network(3, 4, 0)(rows), julia_network(3, 4, 1)(rows))


@pytest.mark.parametrize("seed", [0, 1])
def test_both_components_of_a_small_tensor_are_found(small, seed):
    (parts, truth), recipe = small
    result = run_one(parts, truth, recipe, (2, 4), ratio=0.3, seed=seed)
    assert len(result["congruence"]) == 2
    assert min(result["congruence"]) >= 0.99
    assert result["skill"] > 0.6
    assert result["outcome"] in ("converged", "budget")


def test_cp_alone_is_recovered_to_the_last_digits():
    parts, truth = planted(30, (2, 1), 1e-6, 1)
    recipe = make_recipe("paper", batch_size=512, lr_linear=0.01, refine_epochs=60, patience=0, tolerance=0.0)
    result = run_one(parts, truth, recipe, (2, 0), ratio=0.0, seed=0)
    assert min(result["congruence"]) >= 0.9999
    assert result["skill"] > 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "ratio"), [(seed, (0.3, 1.0)[seed % 2]) for seed in range(10)])
def test_the_papers_tensor_is_identified_from_every_seed(seed, ratio):
    parts, truth = planted(100, (3, 10), ratio, seed)
    result = run_one(parts, truth, make_recipe("paper"), (3, 10), ratio=ratio, seed=seed)
    assert len(result["congruence"]) == 3
    assert min(result["congruence"]) >= 0.99
