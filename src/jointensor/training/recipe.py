"""Every number of training, in one place.

Where the paper leaves a choice open the field says "open", and the default is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jointensor.errors import ConfigError
from jointensor.registry import nearest
from jointensor.training.losses import make_loss


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults are the ``paper`` recipe."""

    training: Literal["alternating", "naive"] = "alternating"
    """``alternating``: warm start, Algorithm 1, refinement. ``naive``: all parameters at once."""
    linear_solver: Literal["adam", "als"] = "adam"
    """How Θ_L is trained while Θ_N is fixed: ``adam``, by the optimiser (the paper), or ``als``, solved exactly."""
    ridges: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    """``als``: shrinkage λ of the components, a share of each row's entries. The one that validates best is taken."""
    pull: float = 5.0
    """``als``: shrinkage κ of the biases, in entries."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """First-order method of every phase (the paper: Adam or SGD)."""
    lr_linear: float = 0.005
    """μ_L, learning rate of Θ_L (the paper: 0.005)."""
    lr_nonlinear: float = 0.005
    """μ_N, learning rate of Θ_N (the paper: 0.005)."""
    lr_refine: float = 0.0
    """Learning rate of the joint refinement; 0 takes those of the halves (the paper)."""
    loss: Literal["squared", "absolute", "huber", "kl"] = "squared"
    """The paper's example is squared; it names the others as possible."""
    huber_delta: float = 1.0
    """Where the Huber loss turns from quadratic to linear."""
    batch_size: int = 4096
    """Entries per step. Open."""
    start: Literal["data", "raw"] = "data"
    """``data``: initial scales from the values, the network's output at their mean, CP components of a warm
    start from rank-one guesses. ``raw``: standard normal factors and the layers' own defaults. Open."""
    first: Literal["linear", "nonlinear"] = "linear"
    """Which half is estimated first. The paper recommends ``linear``; the other order is the ablation."""
    warm_epochs: int = 10
    """Epochs of the warm start ("a fixed number of iterations"). Open."""
    rounds: int = 20
    """Most alternations (the paper: 20)."""
    epochs_per_turn: int = 1
    """Epochs of one half before the other's turn. Eq. (8)–(9) write one step. Open."""
    refine_epochs: int = 100
    """Most epochs of joint refinement. Open."""
    tolerance: float = 1e-4
    """Stop a phase when adjacent validation errors differ by less than this share (the paper: 1e-4); 0 never."""
    patience: int = 10
    """Also stop a phase after so many epochs without a new best, since the rule above never stops a
    model that keeps getting worse; 0 never. Open."""
    restarts: int = 10
    """Most new starts after a failure: validation RFE ≥ 1 (the paper), a dead or a diverged fit."""
    probation: int = 30
    """Give a start up when its validation RFE has not been below 1 after so many epochs, the warm start not counted,
    and new starts are left; 0 never. Open."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), type(field.default))
        for name in ("batch_size", "epochs_per_turn"):
            if getattr(self, name) < 1:
                raise ConfigError(f"recipe: {name} is {getattr(self, name)}, it must be at least 1")
        for name in ("lr_linear", "lr_nonlinear", "huber_delta"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"recipe: {name} is {getattr(self, name)}, it must be positive")
        for name in (
            "warm_epochs",
            "pull",
            "rounds",
            "refine_epochs",
            "tolerance",
            "patience",
            "restarts",
            "probation",
            "lr_refine",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"recipe: {name} is {getattr(self, name)}, it must not be negative")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"recipe: {name} '{getattr(self, name)}'; {nearest(str(getattr(self, name)), allowed)}"
                )
        make_loss(self.loss)
        _check_ridges(self.ridges)


def _check_ridges(ridges: tuple[Any, ...]) -> None:
    if not ridges or not all(isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in ridges):
        raise ConfigError(f"recipe: ridges is {ridges!r}, it must be one or more positive numbers")


def _check_type(name: str, value: Any, kind: type) -> None:
    """Refuse a value that is not of its field's kind; a whole number will do for a fraction."""
    fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not fits or (kind is float and not math.isfinite(value)):
        words = {int: "a whole number", float: "a number", str: "a word", tuple: "several numbers, as in (0.1, 0.3)"}
        raise ConfigError(f"recipe: {name} is {value!r}, it must be {words[kind]}")


CHOICES: dict[str, tuple[str, ...]] = {
    "training": ("alternating", "naive"),
    "linear_solver": ("adam", "als"),
    "optimizer": ("adam", "sgd"),
    "start": ("data", "raw"),
    "first": ("linear", "nonlinear"),
}

RECIPES = {"paper": Recipe()}
"""Recipes by name."""


def make_recipe(recipe: str | Recipe, **changes: Any) -> Recipe:
    """A recipe by name or as it is, with some fields changed.

    >>> make_recipe("paper", rounds=5).rounds
    5
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ConfigError(f"there is no recipe '{recipe}'; {nearest(recipe, RECIPES)}")
        recipe = RECIPES[recipe]
    known = [field.name for field in fields(Recipe)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"a recipe has no field '{name}'; {nearest(name, known)}")
    return replace(recipe, **changes)
