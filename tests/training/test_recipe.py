"""The numbers of the paper, and what a recipe refuses."""

from dataclasses import FrozenInstanceError

import pytest

from jointensor.errors import ConfigError
from jointensor.training.recipe import RECIPES, Recipe, make_recipe


def test_the_paper_recipe_has_the_papers_numbers():
    recipe = make_recipe("paper")
    assert (recipe.lr_linear, recipe.lr_nonlinear) == (0.005, 0.005)
    assert (recipe.rounds, recipe.tolerance, recipe.restarts) == (20, 1e-4, 10)
    assert (recipe.training, recipe.first, recipe.optimizer, recipe.loss) == (
        "alternating",
        "linear",
        "adam",
        "squared",
    )


def test_changes_leave_the_named_recipe_alone():
    changed = make_recipe("paper", rounds=5, loss="huber")
    assert (changed.rounds, changed.loss) == (5, "huber")
    assert make_recipe("paper") == RECIPES["paper"] == Recipe()
    assert make_recipe(changed, rounds=6).loss == "huber"


def test_a_recipe_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Recipe().rounds = 3


def test_an_unknown_recipe_or_field_is_refused_with_the_nearest_word():
    with pytest.raises(ConfigError, match="there is no recipe 'papr'; did you mean 'paper'"):
        make_recipe("papr")
    with pytest.raises(ConfigError, match="a recipe has no field 'round'; did you mean 'rounds'"):
        make_recipe("paper", round=3)


@pytest.mark.parametrize("field", ["batch_size", "epochs_per_turn"])
def test_counts_that_must_be_positive(field):
    assert getattr(Recipe(**{field: 1}), field) == 1
    with pytest.raises(ConfigError, match=f"recipe: {field} is 0, it must be at least 1"):
        Recipe(**{field: 0})


@pytest.mark.parametrize("field", ["lr_linear", "lr_nonlinear", "huber_delta"])
@pytest.mark.parametrize(("value", "says"), [(0.0, "positive"), (-1.0, "positive"), (float("nan"), "a number")])
def test_rates_that_must_be_positive(field, value, says):
    with pytest.raises(ConfigError, match=f"recipe: {field} is {value}, it must be {says}"):
        Recipe(**{field: value})


@pytest.mark.parametrize("field", ["warm_epochs", "rounds", "refine_epochs", "tolerance", "patience", "restarts"])
def test_numbers_that_must_not_be_negative(field):
    assert getattr(Recipe(**{field: 0}), field) == 0
    with pytest.raises(ConfigError, match=f"recipe: {field} is -1, it must not be negative"):
        Recipe(**{field: -1})


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("training", "alternate", "alternating"),
        ("optimizer", "adams", "adam"),
        ("start", "date", "data"),
        ("first", "nonlinar", "nonlinear"),
        ("loss", "hubert", "huber"),
    ],
)
def test_words_are_refused_with_the_nearest_one(field, value, word):
    with pytest.raises(ConfigError, match=f"did you mean '{word}'"):
        Recipe(**{field: value})
