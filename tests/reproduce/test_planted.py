"""Figure 2 of the paper: planted multilinear components are found beside a planted network."""

import numpy as np
import pytest

from jointensor.evaluation.matching import match_factors
from jointensor.reproduce.planted import TEACHERS, aligned, julia_network, planted, run_one
from jointensor.training.recipe import make_recipe


@pytest.fixture(scope="module")
def small():
    recipe = make_recipe("paper", batch_size=1024, lr_linear=0.01, lr_nonlinear=0.01, refine_epochs=10)
    return planted(40, (2, 4), TEACHERS["scaled"], 0.3, 0), recipe


def test_planted_tensors_are_what_the_paper_describes(small):
    (parts, truth), _ = small
    entries = [len(part) for part in (parts.train, parts.valid, parts.test)]
    assert sum(entries) == round(0.2 * 40**3)
    assert entries == [9216, 1024, 2560]
    assert truth.nonlinear.std() == pytest.approx(0.3 * truth.multilinear.std())
    assert np.mean(truth.nonlinear == 0) == pytest.approx(0.1, abs=0.01)  # cut off by the output ReLU
    assert truth.nonlinear.min() == 0
    rows = np.random.default_rng(0).standard_normal((50, 3, 4))
    assert np.array_equal(julia_network(3, 4, 0, 0.1)(rows), julia_network(3, 4, 0, 0.1)(rows))
    assert not np.array_equal(julia_network(3, 4, 0, 0.1)(rows), julia_network(3, 4, 1, 0.1)(rows))


def test_a_small_teacher_is_dead_or_nearly_constant():
    """Its rows hardly reach the network, whose output is that of its biases: cut off where they are negative."""
    kinds = set()
    for seed in range(6):
        _, truth = planted(20, (3, 10), TEACHERS["small"], None, seed)
        dead = not truth.nonlinear.any()
        assert dead or truth.nonlinear.std() < 0.1 * truth.nonlinear.mean()
        assert max(one.std() for one in truth.nonlinear_factors) < 0.12
        assert min(one.std() for one in truth.linear_factors) > 0.7
        kinds.add(dead)
    assert kinds == {True, False}


def test_components_are_drawn_in_the_order_and_with_the_sign_of_the_planted_ones():
    _, truth = planted(20, (3, 2), TEACHERS["scaled"], 0.3, 0)
    found = [-2.0 * factor[:, ::-1] for factor in truth.linear_factors]
    assert match_factors(found, truth.linear_factors).order.tolist() == [2, 1, 0]
    both = aligned(found, truth)
    np.testing.assert_allclose(both["found"], both["planted"], atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(both["planted"], axis=1), 1.0, atol=1e-3)
    assert len(both["found"]) == 3
    assert len(both["found"][0]) == 20


@pytest.mark.parametrize("seed", [0, 1])
def test_both_components_of_a_small_tensor_are_found(small, seed):
    (parts, truth), recipe = small
    result = run_one(parts, truth, recipe, (2, 4), seed=seed)
    assert len(result["congruence"]) == 2
    assert min(result["congruence"]) >= 0.99
    assert result["skill"] > 0.6
    assert result["skill"] == pytest.approx(1 - result["rmse"] / parts.test.values.std())
    assert result["rfe"] == pytest.approx(result["rmse"] / np.sqrt(np.mean(parts.test.values**2)))
    assert result["teacher_spread"] == pytest.approx(0.3)
    assert result["teacher_zeros"] == pytest.approx(0.1, abs=0.01)
    assert result["outcome"] in ("converged", "budget")


def test_cp_alone_is_recovered_to_the_last_digits():
    parts, truth = planted(30, (2, 1), TEACHERS["scaled"], 1e-6, 1)
    recipe = make_recipe("paper", batch_size=512, lr_linear=0.01, refine_epochs=60, patience=0, tolerance=0.0)
    result = run_one(parts, truth, recipe, (2, 0), seed=0)
    assert min(result["congruence"]) >= 0.9999
    assert result["skill"] > 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "ratio"), [(seed, (0.3, 1.0)[seed % 2]) for seed in range(10)])
def test_the_papers_tensor_is_identified_from_every_seed(seed, ratio):
    parts, truth = planted(100, (3, 10), TEACHERS["scaled"], ratio, seed)
    result = run_one(parts, truth, make_recipe("paper"), (3, 10), seed=seed)
    assert len(result["congruence"]) == 3
    assert min(result["congruence"]) >= 0.99
