"""R by validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.store import Entries
from jointensor.data.synthetic import make_joint
from jointensor.errors import ConfigError
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel, cp_rank
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe
from jointensor.training.trainer import Trainer


def planted(rank, noise=0.05):
    return split(make_joint((30, 25, 20), (rank, 0), observed=6000, noise=noise, seed=1)[0], seed=0)


def fitted(parts, first, max_rank, **changes):
    recipe = make_recipe("default", max_rank=max_rank, fall_back=False, **changes)
    model = JointModel(parts.train.shape, (first, 0), linear=recipe.linear(first))
    return fit(model, parts, recipe, seed=0, device="cpu", engine="reference")


def test_components_are_added_until_the_planted_ones_are_found():
    parts = planted(8)
    grown, fixed = (rmse(fitted(parts, 2, most).predict(parts.test.indices), parts.test.values) for most in (32, 0))
    noise = 0.05 * parts.train.values.std()
    assert grown < 1.5 * noise
    assert fixed > 5 * noise


def test_a_tensor_of_rank_one_stays_at_few_components():
    found = fitted(planted(1, noise=0.5), 1, 64)
    assert found.model.rank[0] <= 4


def test_the_rank_never_exceeds_its_limit():
    assert fitted(planted(8), 1, 5).model.rank[0] <= 5


def test_rank_and_blocks_of_a_grown_model_agree():
    found = fitted(planted(8), 2, 16).model
    rank = found.rank[0]
    assert found.linear == f"mean+bias+cp:{rank}"
    assert [factor.shape[1] for factor in found.linear_factors] == [rank] * 3
    assert JointModel.from_config(found.config()).n_parameters() == found.n_parameters()


def test_more_components_are_zero_until_they_are_trained():
    model = JointModel((5, 4, 3), (2, 0))
    cells = np.array([[0, 0, 0], [4, 3, 2]])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    before = model(torch.from_numpy(cells))
    model.resize_cp(6)
    assert torch.equal(model(torch.from_numpy(cells)), before)
    model.resize_cp(2)
    assert torch.equal(model(torch.from_numpy(cells)), before)


def test_a_model_without_cp_cannot_be_resized():
    with pytest.raises(ConfigError, match="no cp"):
        JointModel((5, 4, 3), (0, 2), linear="mean+bias").resize_cp(4)


@pytest.mark.parametrize("rank", [(4, 0), (0, 2)])
def test_blocks_that_are_spelled_out_grow_from_their_own_rank(rank):
    parts = planted(8)
    recipe = make_recipe("default", max_rank=12, fall_back=False, refine_epochs=4, cycle=4)
    model = JointModel(parts.train.shape, rank, linear="mean+cp:6")
    recipe = make_recipe(recipe, nested=bool(rank[1]))
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference").model
    assert cp_rank(found) in (6, 12)
    assert found.linear == f"mean+cp:{cp_rank(found)}"


def test_a_new_start_begins_with_the_first_rank_again():
    parts = planted(8)
    recipe = make_recipe("default", max_rank=16, fall_back=False)
    model = JointModel(parts.train.shape, (2, 0), linear=recipe.linear(2))
    place = torch.device("cpu")
    trainer = Trainer(model, Entries.of(parts.train, place), Entries.of(parts.valid, place), recipe)
    trainer.start()
    model.resize_cp(8)
    trainer.start()
    assert model.rank == (2, 0)


def test_a_solver_that_cannot_grow_says_so():
    parts = planted(2)
    found = fitted(parts, 2, 8, linear_solver="adam", refine_epochs=1, cycle=0)
    assert any("max_rank is not used" in note for note in found.notes)
    assert found.model.rank == (2, 0)


def test_components_are_found_though_the_ridge_of_one_component_is_large():
    """A ridge that is right for one component of six would hold the others at zero."""
    parts = split(make_joint((20, 18, 16), (6, 0), observed=3000, noise=0.02, seed=2)[0], seed=0)
    recipe = make_recipe("default", fall_back=False, restarts=0, max_rank=8, ridges=(0.3,))
    model = JointModel(parts.train.shape, (1, 0), linear=recipe.linear(1))
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference")
    assert found.ridge < 0.02
    assert rmse(found.predict(parts.test.indices), parts.test.values) < 0.3 * parts.test.values.std()
