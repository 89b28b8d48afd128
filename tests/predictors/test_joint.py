"""A predictor answers from the model where labels were seen, and from the biases where they were not."""

import warnings

import numpy as np
import pytest
import torch

from jointensor.data.tensor import SparseTensor
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_bias
from jointensor.predictors.base import CHUNK
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.serving import Serving


@pytest.fixture
def predictor():
    """A model of random weights for a 6 × 5 × 4 tensor in which labels 5, 4 and 3 have no entries."""
    rng = np.random.default_rng(0)
    dense = np.full((6, 5, 4), np.nan)
    dense[:5, :4, :3] = rng.standard_normal((5, 4, 3))
    tensor = SparseTensor.from_dense(dense)
    model = JointModel((6, 5, 4), (2, 2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return JointPredictor(model, fit_bias(tensor, tensor.take(np.arange(0))))


def of_model(predictor, indices):
    with torch.no_grad():
        return predictor.model(torch.as_tensor(indices)).numpy()


def test_entries_with_seen_labels_are_answered_by_the_model(predictor):
    indices = np.argwhere(np.ones((5, 4, 3)))
    assert not predictor.unseen(indices).any()
    found = predictor.predict(indices)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, of_model(predictor, indices), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", [(5, 0, 0), (0, 4, 1), (1, 1, 3), (-1, 0, 0), (2, -1, 2), (5, 4, -1)])
def test_one_unseen_label_is_enough_to_be_answered_by_the_biases(predictor, cell):
    indices = np.array([cell, (0, 0, 0)])
    assert predictor.unseen(indices).tolist() == [True, False]
    found = predictor.predict(indices)
    expected = predictor.fallback.mean
    for n, table in enumerate(predictor.fallback.tables):
        expected += table.effects[cell[n]] if 0 <= cell[n] < (5, 4, 3)[n] else 0.0
    assert found[0] == pytest.approx(expected, rel=1e-6)
    assert found[1] == pytest.approx(of_model(predictor, indices[1:])[0], rel=1e-6)


def test_answers_do_not_depend_on_company_or_order(predictor):
    rng = np.random.default_rng(1)
    indices = np.stack([rng.integers(-1, size, 200) for size in (6, 5, 4)], axis=1)
    together = predictor.predict(indices)
    np.testing.assert_allclose(np.concatenate([predictor.predict(i[None]) for i in indices]), together, rtol=1e-5)
    order = rng.permutation(200)
    np.testing.assert_allclose(predictor.predict(indices[order]), together[order], rtol=1e-5)


def test_answers_are_the_same_beyond_one_chunk(predictor):
    cells = np.argwhere(np.ones((6, 5, 4))).astype(np.int32)
    repeats = CHUNK // len(cells) + 2
    found = predictor.predict(np.tile(cells, (repeats, 1)))
    assert len(found) > CHUNK
    np.testing.assert_allclose(found, np.tile(predictor.predict(cells), repeats), rtol=1e-5, atol=1e-6)


def test_nothing_asked_nothing_answered(predictor):
    assert predictor.predict(np.zeros((0, 3), dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize("serve", [lambda predictor: predictor, Serving])
def test_indices_that_cannot_be_written_to_are_predicted_without_a_warning(predictor, serve):
    indices = np.asfortranarray(np.argwhere(np.ones((5, 4, 3))).astype(np.int32))
    indices.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = serve(predictor).predict(indices)
    np.testing.assert_allclose(found, of_model(predictor, indices.copy()), rtol=1e-6, atol=1e-6)
