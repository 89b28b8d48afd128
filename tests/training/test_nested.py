"""A joint model contains its halves: by nested training it validates no worse than either of them alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from jointensor.data.split import split
from jointensor.data.synthetic import draw_cells, make_joint
from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

RECIPES = {
    "default": make_recipe("default", nested=True, restarts=0, refine_epochs=12, cycle=4, fall_back=False),
    "paper": make_recipe("paper", nested=True, restarts=0, rounds=2, refine_epochs=10, batch_size=128),
}


def steep(rows):
    """A planted f: what no CP of a low rank comes near, ``(entries, modes, F)`` → ``(entries,)``."""
    return np.tanh(3 * rows.sum(axis=(1, 2))) + np.abs(rows).max(axis=(1, 2))


def validated(parts, rank, recipe, nonlinear="julia", **options):
    """A fitted model, and its RMSE on the validation entries."""
    model = JointModel(parts.train.shape, rank, linear=recipe.linear(rank[0]), nonlinear=nonlinear)
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference", **options)
    error = rmse(found.predict(parts.valid.indices), parts.valid.values) if len(parts.valid) else float("nan")
    return found, error


@pytest.mark.parametrize("name", RECIPES)
@example(planted=(3, 0), seed=558, ratio=0.3)
@example(planted=(3, 0), seed=117, ratio=0.3)  # all of the mean in g, which has no block for it
@example(planted=(3, 0), seed=109, ratio=0.3)  # f alone, beside a g that cannot be a constant
@example(planted=(2, 2), seed=117, ratio=3.0)  # f trained further, beside the g that it was trained with
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(planted=st.sampled_from([(3, 0), (0, 3), (2, 2)]), seed=st.integers(0, 1000), ratio=st.sampled_from([0.3, 3.0]))
def test_a_joint_model_validates_no_worse_than_either_half(name, planted, seed, ratio):
    tensor, _ = make_joint((12, 10, 8), planted, observed=500, ratio=ratio, noise=0.1, network=steep, seed=seed)
    parts, recipe = split(tensor, seed=seed), RECIPES[name]
    (_, joint), (_, linear), (_, nonlinear) = (validated(parts, rank, recipe) for rank in ((3, 4), (3, 0), (0, 4)))
    assert joint <= 1.002 * min(linear, nonlinear)


@pytest.mark.parametrize("nonlinear", ["julia", "costco", "neurtn", "avocado", "neptune", "mlp"])
def test_any_network_may_be_added_to_a_multilinear_tensor_without_harm(nonlinear):
    tensor, _ = make_joint((12, 10, 8), (3, 0), observed=600, noise=0.05, seed=1)
    parts, recipe = split(tensor, seed=0), RECIPES["default"]
    _, joint = validated(parts, (3, 4), recipe, nonlinear)
    _, linear = validated(parts, (3, 0), recipe)
    assert joint <= 1.002 * linear


def test_a_network_that_does_not_help_is_a_constant():
    """Targets without noise that CP explains to the last digit: whatever f learns is wrong."""
    tensor, _ = make_joint((12, 10, 8), (2, 0), observed=800, noise=0.0, seed=0)
    found, error = validated(split(tensor, seed=0), (2, 4), RECIPES["default"])
    assert error < 0.01 * tensor.values.std()
    with torch.no_grad():
        f = found.model.nonlinear(torch.from_numpy(np.asarray(tensor.indices, dtype=np.int64)))
    assert float(f.std()) < 0.01 * tensor.values.std()


def test_the_result_is_the_best_state_that_was_validated():
    tensor, _ = make_joint((12, 10, 8), (2, 2), observed=600, ratio=0.5, noise=0.1, network=steep, seed=4)
    found, error = validated(split(tensor, seed=0), (2, 4), RECIPES["default"])
    lowest = min(row.valid_loss for row in found.history if row.phase != "warm start")
    assert error <= lowest * (1 + 1e-4)


def test_a_scaled_half_is_stored_and_grown_with_the_model():
    model = JointModel((5, 4, 3), (2, 3))
    cells = torch.tensor([[0, 0, 0], [4, 3, 2]])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        g, f = model.multilinear(cells), model.nonlinear(cells)
        model.nonlinear.set_scale(0.25, 2.0)
        assert torch.allclose(model(cells), g + 0.25 * (f - 2.0))
        copy = JointModel((5, 4, 3), (2, 3))
        copy.load_state_dict(model.state_dict())
        assert torch.equal(copy(cells), model(cells))
        assert torch.allclose(model.grown((6, 4, 3))(cells), model(cells))


def test_a_multilinear_half_without_a_mean_is_no_constant():
    """f alone stands beside g = 0 then, and carries the mean itself."""
    rng = np.random.default_rng(0)
    cells = draw_cells((12, 10, 8), 500, rng)
    tensor = SparseTensor(cells, -4.6 + 2.5 * np.sign(np.sin(cells.sum(axis=1))), (12, 10, 8))
    parts, recipe = split(tensor, seed=0), RECIPES["default"]
    model = JointModel(parts.train.shape, (1, 8), linear="cp:1")
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference")
    figures = [row.valid_loss for row in found.history if row.phase != "warm start"]
    assert rmse(found.predict(parts.valid.indices), parts.valid.values) <= min(figures) * (1 + 1e-4)


def test_components_that_are_all_noise_leave_the_fit_to_the_network():
    rng = np.random.default_rng(0)
    tensor = SparseTensor(draw_cells((12, 10, 8), 500, rng), 5 + rng.standard_normal(500), (12, 10, 8))
    parts = split(tensor, seed=0)
    model = JointModel(parts.train.shape, (1, 8), linear="mean+cp:1")
    found = fit(model, parts, RECIPES["default"], seed=0, device="cpu", engine="reference")
    assert not found.failed
    assert rmse(found.predict(parts.valid.indices), parts.valid.values) <= 1.01 * parts.valid.values.std()


def test_a_new_fit_of_a_model_begins_with_an_unscaled_network():
    tensor, _ = make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=0)
    parts, model = split(tensor, seed=0), JointModel((12, 10, 8), (2, 4), linear="mean+bias+cp:2")
    model.nonlinear.set_scale(0.0, 3.0)
    recipe = make_recipe("default", refine_epochs=4, cycle=4, restarts=0)
    found = fit(model, parts, recipe, seed=0, device="cpu", engine="reference")
    assert (float(found.model.nonlinear.scale), float(found.model.nonlinear.offset)) == (1.0, 0.0)


def test_without_validation_entries_a_note_says_that_nothing_is_chosen():
    tensor, _ = make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=0)
    found, _ = validated(split(tensor, seed=0, valid=0.0), (2, 2), RECIPES["default"])
    assert any("no validation entries" in note for note in found.notes)
