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


def test_a_turn_has_at_least_one_epoch():
    assert Recipe(epochs_per_turn=1).epochs_per_turn == 1
    with pytest.raises(ConfigError, match="recipe: epochs_per_turn is 0, it must be at least 1"):
        Recipe(epochs_per_turn=0)


@pytest.mark.parametrize("follow", [0.5, 1.0])
def test_a_factor_to_follow_by_is_more_than_one(follow):
    assert (Recipe(follow=0.0).follow, Recipe(follow=1.5).follow) == (0.0, 1.5)
    with pytest.raises(ConfigError, match=f"recipe: follow is {follow}, it must be more than 1, or 0"):
        Recipe(follow=follow)


@pytest.mark.parametrize("field", ["lr_linear", "lr_nonlinear", "huber_delta"])
@pytest.mark.parametrize(("value", "says"), [(0.0, "positive"), (-1.0, "positive"), (float("nan"), "a number")])
def test_rates_that_must_be_positive(field, value, says):
    with pytest.raises(ConfigError, match=f"recipe: {field} is {value}, it must be {says}"):
        Recipe(**{field: value})


@pytest.mark.parametrize(
    "field",
    [
        "batch_size", "warm_epochs", "rounds", "refine_epochs", "tolerance", "patience", "restarts", "sweeps", "pull",
        "failure_epochs", "lr_refine", "decay", "average", "min_gain", "cycle", "cycle_gain",
    ],
)  # fmt: skip
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
        ("first", "atuo", "auto"),
        ("precision", "shrt", "short"),
        ("linear_solver", "alss", "als"),
        ("blocks", "mean+bais+cp", r"mean\+bias\+cp"),
        ("loss", "hubert", "huber"),
    ],
)
def test_words_are_refused_with_the_nearest_one(field, value, word):
    with pytest.raises(ConfigError, match=f"did you mean '{word}'"):
        Recipe(**{field: value})
