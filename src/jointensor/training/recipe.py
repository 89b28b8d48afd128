"""Every number of training, in one place.

Where the paper leaves a choice open the field says "open", and the default is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jointensor.errors import ConfigError
from jointensor.registry import nearest
from jointensor.solvers.losses import make_loss


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults are the ``paper`` recipe."""

    blocks: str = "cp"
    """Blocks of g where they are not spelled out; ``cp`` gets the rank R. The paper: CP alone."""
    training: Literal["alternating", "naive"] = "alternating"
    """``alternating``: warm start, Algorithm 1, refinement. ``naive``: all parameters at once."""
    linear_solver: Literal["adam", "als", "gibbs"] = "adam"
    """How Θ_L is trained while Θ_N is fixed: ``adam``, by the optimiser (the paper); ``als``, solved exactly;
    ``gibbs``, solved on the way and drawn from its posterior at the end."""
    burn_in: int = 40
    """``gibbs``: sweeps before draws are kept."""
    draws: int = 60
    """``gibbs``: draws that are stored, at least 50 for a spread that can be relied on."""
    thin: int = 2
    """``gibbs``: sweeps from one stored draw to the next."""
    ridges: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    """``als``: shrinkage λ of the components, a share of each row's entries. The one that validates best is taken."""
    sweeps: int = 10
    """``als``: sweeps of the warm start with every ridge."""
    follow: float = 0.0
    """``als``: each turn of Θ_L also tries λ times and divided by this, and keeps what validates best; 0 keeps λ."""
    pull: float = 5.0
    """``als``: shrinkage κ of the biases, in entries."""
    smoothness: float = 10.0
    """``als``: how strongly rows of a mode with ``smooth`` or ``cyclic`` are drawn to the mean of their neighbours, in
    ridges of a row with the mean number of entries."""
    max_rank: int = 0
    """``als``: R doubles up to this number for as long as that validates better; 0 keeps R as it is."""
    solutions: int = 1
    """``als``: g alone is the mean of up to so many solutions from different starts, a CP with all their components, as
    far as that validates better; 1 is one solution."""
    nested: bool = False
    """Train either half alone first, then the other one on the residuals of the better one, and both together; the
    joint model then validates no worse than either half alone. Needs validation entries."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """First-order method of every phase (the paper: Adam or SGD)."""
    lr_linear: float = 0.005
    """μ_L, learning rate of Θ_L (the paper: 0.005)."""
    lr_nonlinear: float = 0.005
    """μ_N, learning rate of Θ_N (the paper: 0.005)."""
    lr_refine: float = 0.0
    """Learning rate of the joint refinement; 0 takes those of the halves (the paper)."""
    decay: float = 0.0
    """Weight decay of all that is descended: every step shrinks it by this share of the learning rate (AdamW)."""
    average: float = 0.0
    """Refinement keeps the running mean of the parameters over so many epochs; 0 keeps them as they are."""
    precision: Literal["float32", "short"] = "float32"
    """Products inside the network while it is trained: ``short`` rounds them to TF32 or bfloat16 where the machine is
    faster so. Everything else, and every prediction, is in 32 bits."""
    loss: Literal["squared", "absolute", "huber", "kl"] = "squared"
    """The paper's example is squared; it names the others as possible."""
    huber_delta: float = 1.0
    """Where the Huber loss turns from quadratic to linear."""
    batch_size: int = 4096
    """Entries per step; 0 takes about 256 steps per epoch, of 1,024 to 131,072 entries. Open."""
    start: Literal["data", "raw"] = "data"
    """``data``: initial scales from the values, the network's output at their mean, CP components of a warm
    start from rank-one guesses. ``raw``: standard normal factors and the layers' own defaults. Open."""
    guesses: Literal["linear", "always", "never"] = "linear"
    """When CP components start at rank-one guesses: ``linear``, where Θ_L is trained alone; ``always``, before any
    training, of both halves at once as well; ``never``. Open."""
    first: Literal["linear", "nonlinear", "auto"] = "linear"
    """Which half is estimated first. The paper recommends ``linear``; the other order is the ablation. ``auto``:
    the one that alone predicts the validation entries better."""
    warm_epochs: int = 10
    """Epochs of the warm start ("a fixed number of iterations"). Open."""
    turns: int = 0
    """Most turns of either half in all; 0: two per round."""
    rounds: int = 20
    """Most alternations (the paper: 20)."""
    epochs_per_turn: int = 1
    """Epochs of one half before the other's turn. Eq. (8)–(9) write one step. Open."""
    refine_epochs: int = 100
    """Most epochs of joint refinement. Open."""
    cycle: int = 0
    """Refine in cycles: the learning rate falls to zero within so many epochs, then again within twice as many, and so
    on; 0 refines at a constant rate."""
    cycle_gain: float = 0.04
    """Share by which a cycle must lower the validation error for a longer one to follow."""
    tolerance: float = 1e-4
    """Stop a phase when adjacent validation errors differ by less than this share (the paper: 1e-4); 0 never."""
    patience: int = 10
    """Also stop a phase after so many epochs without a new best, since the rule above never stops a
    model that keeps getting worse; 0 never. Open."""
    min_gain: float = 0.0
    """Share by which an epoch must lower the best for patience to count it as better. Open."""
    restarts: int = 10
    """Most new starts after a failure: validation RFE ≥ 1 (the paper), a dead or a diverged fit."""
    fall_back: bool = False
    """Whether the additive-bias predictor is returned where it validates better than the model."""
    failure_epochs: int = 30
    """Restart when the validation RFE of a start has not been below 1 after so many epochs, the warm start not counted;
    0 never. Open."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), type(field.default))
        for name in AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"recipe: {name} is {getattr(self, name)}, it must be at least 1")
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"recipe: {name} is {getattr(self, name)}, it must be positive")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(f"recipe: {name} is {getattr(self, name)}, it must not be negative")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"recipe: {name} '{getattr(self, name)}'; {nearest(str(getattr(self, name)), allowed)}"
                )
        make_loss(self.loss)
        _check_ridges(self.ridges)
        _check_follow(self.follow)

    @property
    def solves(self) -> bool:
        """Whether Θ_L is solved, not descended."""
        return self.linear_solver in ("als", "gibbs")

    def linear(self, rank: int) -> str:
        """The multilinear half that R stands for; none at all for R = 0.

        >>> Recipe(blocks="mean+bias+cp").linear(4)
        'mean+bias+cp:4'
        """
        names = self.blocks.split("+") if rank else []
        return "+".join(f"cp:{rank}" if name == "cp" else name for name in names)


def _check_follow(follow: float) -> None:
    if follow and follow <= 1:
        raise ConfigError(f"recipe: follow is {follow}, it must be more than 1, or 0")


def _check_ridges(ridges: tuple[Any, ...]) -> None:
    if not ridges or not all(isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in ridges):
        raise ConfigError(f"recipe: ridges is {ridges!r}, it must be one or more positive numbers")


def _check_type(name: str, value: Any, kind: type) -> None:
    """Refuse a value that is not of its field's kind; a whole number will do for a fraction."""
    fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not fits or (kind is float and not math.isfinite(value)):
        words = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "a word",
            tuple: "several numbers, as in (0.1, 0.3)",
        }
        raise ConfigError(f"recipe: {name} is {value!r}, it must be {words[kind]}")


AT_LEAST_ONE = ("epochs_per_turn", "draws", "thin", "solutions")
POSITIVE = ("lr_linear", "lr_nonlinear", "huber_delta")
NOT_NEGATIVE = (
    "batch_size", "burn_in", "warm_epochs", "turns", "sweeps", "pull", "rounds", "refine_epochs", "tolerance",
    "patience", "restarts", "failure_epochs", "lr_refine", "decay", "average", "follow", "min_gain", "cycle",
    "cycle_gain", "max_rank", "smoothness",
)  # fmt: skip
"""Fields that have a least value."""

CHOICES: dict[str, tuple[str, ...]] = {
    "training": ("alternating", "naive"),
    "guesses": ("linear", "always", "never"),
    "blocks": ("cp", "mean+cp", "bias+cp", "mean+bias+cp"),
    "linear_solver": ("adam", "als", "gibbs"),
    "optimizer": ("adam", "sgd"),
    "precision": ("float32", "short"),
    "start": ("data", "raw"),
    "first": ("linear", "nonlinear", "auto"),
}

RECIPES = {
    "default": Recipe(
        blocks="mean+bias+cp",
        linear_solver="als",
        ridges=(0.001, 0.01, 0.1, 0.3),
        sweeps=8,
        follow=3.0,
        lr_nonlinear=0.01,
        lr_refine=0.01,
        decay=0.1,
        average=1.0,
        precision="short",
        batch_size=0,
        first="auto",
        warm_epochs=2,
        rounds=1,
        refine_epochs=120,
        cycle=8,
        tolerance=0.0,
        patience=5,
        min_gain=5e-4,
        fall_back=True,
    ),
    "paper": Recipe(),
}
"""Recipes by name: ``default``, one setting for all tensors, and ``paper``, as the paper trains."""


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
