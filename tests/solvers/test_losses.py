"""Losses against NumPy and SciPy, and their gradients against finite differences."""

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError
from jointensor.models.joint import LINKS, JointModel
from jointensor.solvers.losses import LOSSES, absolute, huber, kullback_leibler, make_loss, squared
from jointensor.training.fit import fit
from jointensor.training.recipe import Recipe

NUMBERS = st.floats(-1e3, 1e3)
POSITIVE = st.floats(1e-3, 1e3)


def of(loss, predicted, observed, **options):
    return loss(*(torch.tensor([x], dtype=torch.float64) for x in (predicted, observed)), **options).item()


@given(NUMBERS, NUMBERS)
@settings(max_examples=50)
def test_squared_and_absolute_are_numpys(predicted, observed):
    assert of(squared, predicted, observed) == np.square(predicted - observed)
    assert of(absolute, predicted, observed) == np.abs(predicted - observed)


@given(NUMBERS, NUMBERS, st.floats(0.1, 10))
@settings(max_examples=50)
def test_huber_is_scipys(predicted, observed, delta):
    expected = scipy.special.huber(delta, predicted - observed)
    assert of(huber, predicted, observed, delta=delta) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(POSITIVE, st.one_of(st.just(0.0), POSITIVE))
@settings(max_examples=50)
def test_kullback_leibler_is_scipys(predicted, observed):
    expected = scipy.special.kl_div(observed, predicted)
    assert of(kullback_leibler, predicted, observed) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(POSITIVE)
@settings(max_examples=50)
def test_kullback_leibler_is_zero_at_equality_and_only_there(value):
    assert of(kullback_leibler, value, value) == 0
    assert of(kullback_leibler, 1.01 * value, value) > 0
    assert of(kullback_leibler, 0.99 * value, value) > 0


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_with_finite_differences(name):
    loss = make_loss(name, huber_delta=0.7)
    predicted = torch.tensor([0.3, 1.7, 2.5, 4.0], dtype=torch.float64, requires_grad=True)
    observed = torch.tensor([0.0, 2.0, 5.0, 0.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss.elementwise(x, observed), (predicted,))


def test_kullback_leibler_has_a_gradient_of_one_where_nothing_was_observed():
    predicted = torch.tensor([0.5, 2.0], requires_grad=True)
    kullback_leibler(predicted, torch.tensor([0.0, 0.0])).sum().backward()
    assert predicted.grad.tolist() == [1.0, 1.0]


def test_kullback_leibler_stays_finite_where_the_prediction_underflows():
    loss = kullback_leibler(torch.tensor([0.0, 1e-45, 1e-30]), torch.tensor([5.0, 5.0, 1e10]))
    assert torch.isfinite(loss).all()


def test_the_link_of_kullback_leibler_is_positive_for_every_score():
    loss = make_loss("kl")
    assert loss.nonnegative
    scores = torch.tensor([-50.0, -1.0, 0.0, 1.0, 50.0])
    values = LINKS[loss.link](scores)
    assert (values > 0).all()
    np.testing.assert_allclose(values, np.logaddexp(0.0, scores.double().numpy()), rtol=1e-5)
    assert all(make_loss(name).link == "identity" for name in ("squared", "absolute", "huber"))


def test_a_model_trained_with_kullback_leibler_predicts_positive_numbers_from_counts_with_zeros():
    rng = np.random.default_rng(0)
    tensor = SparseTensor.from_dense(rng.poisson(np.outer(rng.uniform(0.2, 3, 12), rng.uniform(0.2, 3, 10))))
    assert (tensor.values == 0).any()
    parts = Split(tensor.take(np.arange(100)), tensor.take(np.arange(100, 120)), tensor.take(np.arange(0)))
    result = fit(JointModel((12, 10), (1, 2)), parts, Recipe(loss="kl", rounds=3, refine_epochs=5, restarts=0))
    assert result.outcome in ("converged", "budget")
    assert result.model.link == "softplus"
    assert (result.predict(tensor.indices) > 0).all()


@pytest.mark.parametrize("where", ["train", "valid"])
def test_kullback_leibler_refuses_negative_values(where):
    low, high = (SparseTensor([[0, 0], [1, 1]], [1.0, x], (2, 2)) for x in (-3.5, 2.0))
    parts = Split(low if where == "train" else high, low if where == "valid" else high, high)
    with pytest.raises(DataError, match=r"the kl loss needs values of at least 0; there is a value of -3\.5"):
        fit(JointModel((2, 2), (1, 1)), parts, Recipe(loss="kl"))


def test_the_squared_loss_is_reported_as_rmse_and_the_others_as_they_are():
    assert make_loss("squared").figure(9.0) == 3.0
    assert [make_loss(name).figure(9.0) for name in ("absolute", "huber", "kl")] == [9.0, 9.0, 9.0]


def test_the_huber_width_is_that_of_the_recipe():
    tensors = torch.tensor([4.0]), torch.tensor([0.0])
    assert make_loss("huber", huber_delta=2.0).elementwise(*tensors).item() == 2.0 * (4.0 - 1.0)
    assert make_loss("huber").elementwise(*tensors).item() == 3.5


def test_an_unknown_loss_is_refused_with_the_nearest_word():
    with pytest.raises(ConfigError, match="there is no loss 'squard'; did you mean 'squared'"):
        make_loss("squard")
