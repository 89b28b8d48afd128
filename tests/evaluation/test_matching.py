"""Matching against brute force over permutations and against TensorLy's congruence."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.errors import DataError
from jointensor.evaluation.matching import match_factors


def random_factors(rng, shape, rank):
    return [rng.standard_normal((size, rank)) for size in shape]


def congruence(found, truth, a, b):
    """Product over modes of the absolute cosines of two components."""
    product = 1.0
    for x, y in zip(found, truth, strict=True):
        product *= abs(x[:, a] @ y[:, b]) / np.sqrt((x[:, a] @ x[:, a]) * (y[:, b] @ y[:, b]))
    return product


def brute_force(found, truth):
    rank = truth[0].shape[1]
    orders = permutations(range(found[0].shape[1]), rank)
    return max(orders, key=lambda order: sum(congruence(found, truth, a, b) for b, a in enumerate(order)))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 2), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_the_matching_is_the_best_of_all_orders(seed, rank, more, modes):
    rng = np.random.default_rng(seed)
    shape = (3, 4, 5, 2)[:modes]
    truth, found = random_factors(rng, shape, rank), random_factors(rng, shape, rank + more)
    match = match_factors(found, truth)
    order = brute_force(found, truth)
    assert match.order.tolist() == list(order)
    expected = [congruence(found, truth, a, b) for b, a in enumerate(order)]
    np.testing.assert_allclose(match.congruence, expected, rtol=1e-10)


@given(st.integers(0, 10**6), st.permutations(range(4)))
@settings(max_examples=30, deadline=None)
def test_order_sign_and_scale_do_not_matter(seed, order):
    rng = np.random.default_rng(seed)
    truth = random_factors(rng, (6, 5, 7), 4)
    found = [table[:, order] * rng.choice([-3.0, -0.1, 0.5, 20.0], 4) for table in truth]
    match = match_factors(found, truth)
    np.testing.assert_allclose(match.congruence, 1.0, rtol=1e-12)
    assert [order[a] for a in match.order] == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_congruence_is_tensorlys(seed):
    factors = pytest.importorskip("tensorly.metrics.factors")
    rng = np.random.default_rng(seed)
    truth = random_factors(rng, (6, 5, 7), 3)
    found = [table + 0.5 * rng.standard_normal(table.shape) for table in truth]
    mean, order = factors.congruence_coefficient(truth, found)
    match = match_factors(found, truth)
    assert match.congruence.mean() == pytest.approx(float(mean))
    assert match.order.tolist() == list(order)


def test_a_component_of_zeros_matches_nothing():
    truth = [np.eye(3)[:, :2], np.eye(4)[:, :2]]
    found = [np.array(table) for table in truth]
    found[0][:, 1] = 0.0
    assert match_factors(found, truth).congruence.tolist() == [1.0, 0.0]


def test_torch_tensors_are_matched_too():
    truth = [torch.eye(3)[:, :2], torch.eye(4)[:, :2]]
    assert match_factors([table.flip(1) for table in truth], truth).order.tolist() == [1, 0]


def test_factors_that_cannot_be_matched_are_refused():
    truth = [np.ones((3, 2)), np.ones((4, 2))]
    with pytest.raises(DataError, match="1 factor matrices found, 2 in the truth"):
        match_factors(truth[:1], truth)
    with pytest.raises(DataError, match=r"mode 1: factors of shape \(5, 2\) cannot be matched with \(4, 2\)"):
        match_factors([np.ones((3, 2)), np.ones((5, 2))], truth)
    with pytest.raises(DataError, match=r"mode 0: factors of shape \(3, 1\)"):
        match_factors([np.ones((3, 1)), np.ones((4, 1))], truth)
