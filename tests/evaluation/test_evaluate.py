"""Figures of a predictor: all entries, those with seen labels, and the others."""

import numpy as np
import pytest
import torch

from jointensor import JointModel, Recipe, SparseTensor, evaluate, fit, split
from jointensor.errors import DataError
from jointensor.evaluation.evaluate import evaluate_entries
from jointensor.predictors.base import CHUNK


@pytest.fixture(scope="module")
def fitted():
    """A model for a 6 × 5 × 4 tensor whose last label of every mode has no training entries."""
    rng = np.random.default_rng(0)
    dense = np.full((6, 5, 4), np.nan)
    dense[:5, :4, :3] = 2 + rng.standard_normal((5, 4, 3))
    parts = split(SparseTensor.from_dense(dense), test=0.0)
    return fit(JointModel((6, 5, 4), (2, 2)), parts, Recipe(warm_epochs=1, rounds=1, refine_epochs=2, restarts=0))


def by_hand(predicted, observed):
    error = predicted.astype(np.float64) - observed
    return {
        "rmse": pytest.approx(np.sqrt(np.mean(error**2))),
        "mae": pytest.approx(np.mean(np.abs(error))),
        "rfe": pytest.approx(np.linalg.norm(error) / np.linalg.norm(observed)),
        "n": len(observed),
    }


def test_figures_are_numpys_over_all_warm_and_cold_entries(fitted):
    rng = np.random.default_rng(1)
    tensor = SparseTensor.from_dense(rng.standard_normal((6, 5, 4)))
    cold = (tensor.indices == [5, 4, 3]).any(axis=1)
    predicted = np.where(
        cold,
        fitted.predictor.fallback.predict(tensor.indices),
        fitted.model(torch.as_tensor(tensor.indices.copy())).detach().numpy(),
    )
    figures = evaluate(fitted, tensor)
    assert figures == by_hand(predicted, tensor.values) | {
        "warm": by_hand(predicted[~cold], tensor.values[~cold]),
        "cold": by_hand(predicted[cold], tensor.values[cold]),
    }
    assert (figures["warm"]["n"], figures["cold"]["n"]) == (60, 60)
    assert evaluate(fitted.predictor, tensor) == figures


def test_without_cold_entries_their_figures_are_none(fitted):
    tensor = SparseTensor([[0, 0, 0], [1, 2, 1]], [1.0, 2.0], (6, 5, 4))
    assert evaluate(fitted, tensor)["cold"] == {"rmse": None, "mae": None, "rfe": None, "n": 0}
    assert evaluate(fitted, tensor)["warm"]["n"] == 2


def test_unknown_labels_are_cold(fitted):
    figures = evaluate_entries(fitted.predictor, np.array([[-1, 0, 0], [0, 0, 0]]), [1.0, 2.0])
    assert (figures["n"], figures["warm"]["n"], figures["cold"]["n"]) == (2, 1, 1)
    assert figures["cold"]["mae"] == pytest.approx(abs(fitted.predict(np.array([[-1, 0, 0]]))[0] - 1.0), rel=1e-6)


def test_figures_are_streamed_over_chunks(fitted):
    cells = np.argwhere(np.ones((6, 5, 4)))
    values = np.random.default_rng(2).standard_normal(len(cells))
    repeats = CHUNK // len(cells) + 2
    once = evaluate_entries(fitted.predictor, cells, values)
    often = evaluate_entries(fitted.predictor, np.tile(cells, (repeats, 1)), np.tile(values, repeats))
    assert often["n"] == repeats * once["n"] > CHUNK
    for name in ("rmse", "mae", "rfe"):
        assert often[name] == pytest.approx(once[name], rel=1e-5)
        assert often["cold"][name] == pytest.approx(once["cold"][name], rel=1e-5)


def test_a_tensor_of_another_shape_is_refused(fitted):
    with pytest.raises(DataError, match=r"the model was fitted to shape \(6, 5, 4\), the tensor has \(6, 5, 3\)"):
        evaluate(fitted, SparseTensor([[0, 0, 0]], [1.0], (6, 5, 3)))
