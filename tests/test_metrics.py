"""RMSE, MAE and RFE against NumPy, whole and in pieces."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jointensor.errors import DataError
from jointensor.metrics import Metrics, mae, measure, rfe, rmse

NUMBERS = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40)


def columns(pairs):
    predicted, observed = np.array(pairs).T
    return predicted, observed


@given(PAIRS)
def test_figures_are_numpys(pairs):
    predicted, observed = columns(pairs)
    assert rmse(predicted, observed) == pytest.approx(np.sqrt(np.mean((predicted - observed) ** 2)))
    assert mae(predicted, observed) == pytest.approx(np.mean(np.abs(predicted - observed)))
    if observed.any():
        expected = np.linalg.norm(predicted - observed) / np.linalg.norm(observed)
        assert rfe(predicted, observed) == pytest.approx(expected)


@given(PAIRS, st.lists(st.integers(0, 40), max_size=6), st.randoms(use_true_random=False))
def test_streaming_is_one_shot_for_any_batching_and_order(pairs, cuts, random):
    whole = measure(*columns(pairs))
    shuffled = random.sample(pairs, len(pairs))
    cuts = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    seen = Metrics()
    for start, end in pairwise(cuts):
        batch = np.array(shuffled[start:end]).reshape(-1, 2)
        seen.update(batch[:, 0], batch[:, 1])
    assert seen.n == whole.n == len(pairs)
    assert seen.rmse == pytest.approx(whole.rmse)
    assert seen.mae == pytest.approx(whole.mae)
    assert seen.rfe == pytest.approx(whole.rfe)


def test_rfe_is_not_centred():
    observed = np.array([10.0, 11.0, 12.0])
    assert rfe(np.zeros(3), observed) == 1.0
    assert rfe(2 * observed, observed) == pytest.approx(1.0)
    assert rfe(np.full(3, 11.0), observed) == pytest.approx(np.sqrt(2 / 365))  # far below 1 though nothing is explained


def test_rfe_of_a_tensor_is_the_ratio_of_masked_frobenius_norms():
    rng = np.random.default_rng(0)
    truth, found = rng.standard_normal((2, 4, 5, 6))
    missing = rng.random((4, 5, 6)) < 0.3
    expected = np.linalg.norm((missing * (found - truth)).ravel()) / np.linalg.norm((missing * truth).ravel())
    assert rfe(found[missing], truth[missing]) == pytest.approx(expected)


def test_zero_targets():
    assert rfe([0.0, 0.0], [0.0, 0.0]) == 0.0
    assert rfe([0.0, 1.0], [0.0, 0.0]) == math.inf
    assert measure([0.0, 1.0], [0.0, 0.0]).to_dict() == {"rmse": math.sqrt(0.5), "mae": 0.5, "rfe": None, "n": 2}


def test_no_entries_have_no_figures():
    nothing = Metrics()
    assert all(math.isnan(figure) for figure in (nothing.rmse, nothing.mae, nothing.rfe))
    assert nothing.to_dict() == {"rmse": None, "mae": None, "rfe": None, "n": 0}


def test_figures_that_are_not_finite_are_written_as_none():
    assert measure([math.nan], [1.0]).to_dict() == {"rmse": None, "mae": None, "rfe": None, "n": 1}


def test_sums_are_kept_in_double_precision():
    observed = np.full(3_000_000, 0.1, dtype=np.float32)
    predicted = np.full(3_000_000, 0.3, dtype=np.float32)
    exact = float(np.float32(0.3)) - float(np.float32(0.1))
    assert rmse(predicted, observed) == pytest.approx(exact, rel=1e-9)
    assert mae(predicted, observed) == pytest.approx(exact, rel=1e-9)
    assert rmse(np.float32([3e30]), np.float32([1e30])) == pytest.approx(2e30, rel=1e-6)


def test_torch_tensors_are_measured_too():
    assert rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == pytest.approx(math.sqrt(2))


def test_numbers_that_do_not_pair_up_are_refused():
    with pytest.raises(DataError, match=r"\(3,\) predictions for \(2,\) observations"):
        rmse([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(DataError, match=r"\(2, 1\) predictions for \(2,\) observations"):
        rmse([[1.0], [2.0]], [1.0, 2.0])
