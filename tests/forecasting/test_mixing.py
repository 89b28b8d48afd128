"""Weights of members against a search over all of them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.forecasting.mixing import EXCESS_PENALTY, bucket_of, bucket_starts, fit_weights, second_moments


def test_steps_ahead_are_in_groups_that_grow():
    assert bucket_starts(1).tolist() == [1]
    assert bucket_starts(20).tolist() == [1, 2, 3, 5, 9, 17]
    assert bucket_of(np.array([1, 2, 3, 4, 5, 16, 17, 400]), bucket_starts(20)).tolist() == [0, 1, 2, 2, 3, 4, 5, 5]


EVERY = np.array([w for w in product(range(21), repeat=3) if sum(w) == 20]) / 20
"""Weights of three members, ``(mixtures, 3)``."""


@settings(deadline=None)
@given(st.integers(0, 200))
def test_weights_have_the_lowest_penalised_error(seed):
    rng = np.random.default_rng(seed)
    errors = rng.standard_normal((50, 3)) * rng.uniform(0.7, 1.5, 3) + rng.standard_normal((50, 1))
    second = errors.T @ errors / 50
    sizes = np.diag(second)

    def cost(w):
        return np.einsum("...i,ij,...j", w, second, w) + EXCESS_PENALTY * w @ (sizes - sizes.min())

    found = fit_weights(second[None])[0]
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    assert found @ second @ found <= sizes.min() * (1 + 1e-9)
    assert cost(found) <= cost(EVERY).min() + 1e-6


def test_groups_without_rows_have_those_of_the_nearest():
    errors = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = second_moments(errors, np.array([0, 2]), 4)
    assert found[0].tolist() == [[1, 2], [2, 4]]
    assert found[3].tolist() == found[2].tolist() == [[9, 12], [12, 16]]
    assert found[1].tolist() == found[0].tolist()
