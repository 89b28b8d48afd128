"""The exact solver inside a fit: agreement with the reference engine, ridges by validation, losses, schedules."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.errors import ConfigError
from jointensor.evaluation.matching import match_factors
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.training.fit import fit
from jointensor.training.recipe import Recipe, make_recipe
from jointensor.training.schedule import schedule_of

EXACT = Recipe(linear_solver="als", batch_size=256, warm_epochs=10, rounds=6, refine_epochs=10, lr_refine=0.001)


def _bump(rows):
    return np.maximum((rows[:, 0] * rows[:, 1]).sum(axis=1), 0.0)


@pytest.fixture(scope="module")
def planted():
    tensor, truth = make_joint((25, 20, 15), (2, 3), _bump, observed=0.4, ratio=0.3, seed=1)
    return split(tensor, seed=0), truth


def joint(parts, rank=(2, 3), linear="mean+bias+cp:2", **options):
    return JointModel(parts.train.shape, rank, linear=linear, **options)


def test_the_components_of_a_joint_tensor_are_found(planted):
    parts, truth = planted
    result = fit(joint(parts, linear="mean+cp:2"), parts, EXACT, seed=0)
    found = [factor.numpy() for factor in result.model.linear_factors]
    assert min(match_factors(found, truth.linear_factors).congruence) > 0.95
    assert rmse(result.predict(parts.test.indices), parts.test.values) < 0.5 * parts.test.values.std()


def test_cp_alone_is_solved_without_gradients(planted):
    parts, _ = planted
    result = fit(joint(parts, (2, 0), "mean+cp:2"), parts, EXACT, seed=0)
    assert {row.phase for row in result.history} == {"warm start", "alternate: linear"}
    assert rmse(result.predict(parts.test.indices), parts.test.values) < 0.6 * parts.test.values.std()


def test_engines_give_the_same_predictions(planted):
    parts, _ = planted
    found = [fit(joint(parts), parts, EXACT, seed=0, engine=name) for name in ("reference", "numba")]
    assert [one.engine for one in found] == ["reference", "numba"]
    first, second = (one.predict(parts.test.indices) for one in found)
    np.testing.assert_allclose(first, second, atol=0.02 * float(parts.test.values.std()))


def test_a_network_by_gradients_uses_no_kernels(planted):
    parts, _ = planted
    short = Recipe(warm_epochs=1, rounds=1, refine_epochs=1)
    network, both = JointModel(parts.train.shape, (0, 2)), joint(parts)
    assert fit(network, parts, short, engine="numba").engine == "reference"
    assert fit(both, parts, short, engine="numba").engine == "numba"  # values of its components


def test_the_ridge_that_validates_best_is_taken():
    """Of noise no component should be left; of a clear CP, nearly all of it."""
    rng = np.random.default_rng(0)
    clear, _ = make_joint((25, 20, 15), (2, 1), _bump, observed=0.3, ratio=1e-6, seed=2)
    noise = replace(clear, values=rng.standard_normal(len(clear)).astype(np.float32))
    sizes = []
    for tensor in (clear, noise):
        parts = split(tensor, seed=0)
        result = fit(joint(parts, (2, 0), "mean+cp:2"), parts, replace(EXACT, warm_epochs=30), seed=0)
        with torch.no_grad():
            part = result.model.multilinear.blocks["cp"](torch.as_tensor(parts.train.indices.copy()))
        sizes.append(float(part.std()) / float(parts.train.values.std()))
    assert sizes[0] > 0.95
    assert sizes[1] < 0.3


def test_huber_is_not_moved_by_a_few_wild_values(planted):
    parts, _ = planted
    values = parts.train.values.copy()
    values[::50] += 100.0
    wild = replace(parts, train=replace(parts.train, values=values))
    errors = {}
    for loss in ("squared", "huber"):
        recipe = replace(EXACT, loss=loss, huber_delta=0.5)
        result = fit(joint(parts, (2, 0), "mean+cp:2"), wild, recipe, seed=0)
        errors[loss] = rmse(result.predict(parts.test.indices), parts.test.values)
    assert errors["huber"] < 0.5 * errors["squared"]


@pytest.mark.parametrize(
    ("loss", "linear", "reason"),
    [
        ("absolute", "mean+cp:2", "the absolute loss has no exact step"),
        ("squared", "tucker:2", "tucker has no exact step"),
    ],
)
def test_what_cannot_be_solved_is_descended_and_said(planted, loss, linear, reason):
    parts, _ = planted
    recipe = replace(EXACT, loss=loss, rounds=1, warm_epochs=1, refine_epochs=2)
    result = fit(joint(parts, linear=linear), parts, recipe, seed=0)
    assert result.notes == [f"the multilinear part is descended, not solved: {reason}"]


def test_a_half_that_is_solved_second_has_a_ridge_too(planted):
    """The network first: the ridge is chosen next to it, in the first round; without validation it is the middle."""
    parts, _ = planted
    recipe = replace(EXACT, first="nonlinear", ridges=(0.5, 0.01, 0.1), refine_epochs=1)
    result = fit(joint(parts), parts, recipe, seed=0)
    assert result.engine == "numba"
    tried = [row.valid_loss for row in result.history if row.phase == "warm start"][recipe.warm_epochs :]
    assert [row.phase for row in result.history].index("alternate: linear") == recipe.warm_epochs + len(tried)
    ends = tried[recipe.sweeps - 1 :: recipe.sweeps]
    # from small to large; rank-one guesses at the best and the least; then the smaller ones again from the best
    asked = sorted(recipe.ridges)
    asked += sorted({asked[0], asked[ends.index(min(ends[:3]))]})
    best = asked[ends.index(min(ends[: len(asked)]))]
    asked += [ridge for ridge in sorted(recipe.ridges, reverse=True) if ridge < best]
    assert 4 <= len(ends) <= len(asked)
    assert result.ridge == asked[ends.index(min(ends))]
    everything = replace(parts, valid=parts.train.take(np.arange(0)))
    assert fit(joint(parts), everything, recipe, seed=0).ridge == 0.1


def test_the_refinement_has_a_learning_rate_of_its_own(planted):
    parts, _ = planted
    result = fit(joint(parts), parts, replace(EXACT, lr_refine=1e-12, tolerance=0.0, patience=0), seed=0)
    figures = [row.valid_loss for row in result.history if row.phase == "refine"]
    assert len(figures) == EXACT.refine_epochs
    assert max(figures) - min(figures) < 1e-5


def test_without_validation_entries_the_middle_ridge_is_taken(planted):
    parts, _ = planted
    everything = replace(parts, valid=parts.train.take(np.arange(0)))
    one = fit(joint(parts), everything, replace(EXACT, ridges=(0.5, 0.01, 0.1)), seed=0)
    two = fit(joint(parts), everything, replace(EXACT, ridges=(0.1,)), seed=0)
    np.testing.assert_array_equal(one.predict(parts.test.indices), two.predict(parts.test.indices))


def test_a_schedule_keeps_the_ridge_that_was_chosen(planted):
    parts, _ = planted
    result = fit(joint(parts), parts, EXACT, seed=0)
    assert len(schedule_of(result).ridges) == 1
    assert schedule_of(result).ridges[0] in EXACT.ridges


@pytest.mark.parametrize("ridges", [(), (0.1, -1.0), (0.0,), ("a",)])
def test_ridges_that_are_none_are_refused(ridges):
    with pytest.raises(ConfigError, match=r"recipe: ridges is .*, it must be one or more positive numbers"):
        Recipe(ridges=ridges)


@pytest.mark.parametrize("rank", [(3, 0), (3, 2)])
def test_sparse_components_are_found_beside_biases(rank):
    """Sweeps from a random start find one of the three, at any ridge; from rank-one guesses all of them."""
    tensor, _ = make_joint((150, 100, 60), (3, 0), observed=25_000, noise=0.1, seed=0)
    parts = split(tensor, seed=0)
    model = JointModel(tensor.shape, rank, linear="mean+bias+cp:3")
    found = fit(model, parts, make_recipe("default", rounds=2, refine_epochs=2, fall_back=False), seed=0, device="cpu")
    noise = 0.1 / math.sqrt(1 + 0.1**2) * float(tensor.values.std())
    assert rmse(found.predict(parts.test.indices), parts.test.values) < 1.25 * noise
