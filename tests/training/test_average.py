"""The mean of several exact solutions is one CP with all their components."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.training.average import mean_of_solutions
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    rank=st.integers(1, 3),
    count=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_it_predicts_the_mean_of_their_predictions(shape, rank, count, seed):
    generator = torch.Generator().manual_seed(seed)
    models = [JointModel(shape, (rank, 0), linear=f"mean+bias+cp:{rank}") for _ in range(count)]
    for parameter in (parameter for model in models for parameter in model.parameters()):
        torch.nn.init.normal_(parameter, generator=generator)
    cells = torch.stack([torch.randint(size, (20,), generator=generator) for size in shape], dim=1)
    together = JointModel(shape, (rank, 0), linear=f"mean+bias+cp:{rank}")
    together.take(mean_of_solutions([model.state_dict() for model in models], len(shape)))
    assert together.rank == (count * rank, 0)
    with torch.no_grad():
        expected = torch.stack([model(cells) for model in models]).mean(dim=0)
        assert torch.allclose(together(cells), expected, atol=1e-4)


def noisy_dense():
    """More components than the fit has, most cells observed, and noise: solutions differ."""
    return split(make_joint((20, 18, 16), (12, 0), observed=4000, noise=0.3, seed=2)[0], seed=0)


def fitted(parts, **changes):
    recipe = make_recipe("default", fall_back=False, restarts=0, **changes)
    model = JointModel(parts.train.shape, (8, 0), linear=recipe.linear(8))
    return fit(model, parts, recipe, seed=0, device="cpu", engine="reference")


def test_a_mean_is_kept_where_it_validates_better():
    parts = noisy_dense()
    one, mean = (fitted(parts, solutions=count) for count in (1, 4))
    errors = [rmse(found.predict(parts.test.indices), parts.test.values) for found in (one, mean)]
    assert mean.model.rank[0] in (16, 24, 32)
    assert mean.model.linear == f"mean+bias+cp:{mean.model.rank[0]}"
    assert errors[1] < errors[0]


def test_one_solution_is_kept_where_others_do_not_help():
    """Every start finds the planted component: the mean of several is the same model again."""
    parts = split(make_joint((20, 18, 16), (1, 0), observed=4000, noise=0.0, seed=2)[0], seed=0)
    recipe = make_recipe("default", fall_back=False, restarts=0, solutions=4)
    model = JointModel(parts.train.shape, (1, 0), linear=recipe.linear(1))
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference")
    assert found.model.rank[0] <= 2
    assert rmse(found.predict(parts.test.indices), parts.test.values) < 0.01 * parts.test.values.std()


def test_other_products_are_not_averaged():
    parts = noisy_dense()
    recipe = make_recipe("default", fall_back=False, restarts=0, solutions=2)
    model = JointModel(parts.train.shape, (0, 0), linear="mean+bias+fm:2+cp:2")
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference")
    assert found.model.linear == "mean+bias+fm:2+cp:2"
    assert any("solutions is not used" in note for note in found.notes)


@pytest.mark.parametrize("halves", ["linear", "nonlinear"])
def test_the_other_half_is_fitted_beside_a_mean(halves):
    """Of a network that is fitted first, g is solved anew from one of the solutions."""
    planted = {"linear": (6, 0), "nonlinear": (0, 3)}[halves]
    tensor, _ = make_joint((14, 12, 10), planted, observed=900, ratio=3.0, noise=0.2, network=_wavy, seed=1)
    parts = split(tensor, seed=0)
    recipe = make_recipe("default", nested=True, solutions=3, restarts=0, refine_epochs=12, cycle=4, fall_back=False)
    model = JointModel(parts.train.shape, (4, 4), linear=recipe.linear(4))
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference")
    alone = JointModel(parts.train.shape, (4, 0), linear=recipe.linear(4))
    half = fit(alone, parts, recipe, seed=0, device="cpu", engine="reference")
    joint, linear = (rmse(one.predict(parts.valid.indices), parts.valid.values) for one in (found, half))
    assert joint <= 1.002 * linear


def _wavy(rows):
    return np.sin(4 * rows.sum(axis=(1, 2)))
