"""Models by the names the paper uses: ``NAME[:K | :R/F][,key=value]``.

mean  bias  tables  interp            baselines
cp:20  tucker:20  tucker:20x5x20      multilinear models
costco:20  avocado:20  neurtn:10 …    a nonlinear part alone, K wide
julia:4/16                            JULIA, R multilinear and F nonlinear components
julia-costco:4/16 …                   JULIA with another nonlinear part

Options are those of the nonlinear part, fields of the training recipe, or ``linear=BLOCKS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from jointensor.errors import ConfigError
from jointensor.models.blocks import parse_blocks
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear.base import Nonlinear, find_nonlinear, nonlinear_parts
from jointensor.predictors import BASELINES
from jointensor.registry import nearest, option_names, parse_spec
from jointensor.training.recipe import RECIPES, Recipe, make_recipe

LINEAR_SHARE = 5
"""One component in five is multilinear where R/F is not given: the paper's 4/16 and 2/8."""


@dataclass(frozen=True)
class ModelSpec:
    """One model of a comparison."""

    text: str
    """As it was typed."""
    baseline: str | None = None
    """The baseline, if it is one; the other fields are not used then."""
    rank: tuple[int, int] = (0, 0)
    linear: str | None = None
    nonlinear: str = "julia"
    recipe_changes: dict[str, Any] = field(default_factory=dict)

    def make(self, shape: Sequence[int], recipe: Recipe = RECIPES["paper"]) -> JointModel:
        """The model for a tensor of this shape and a recipe; errors name the model as it was typed."""
        linear = recipe.linear(self.rank[0]) if self.linear is None else self.linear
        try:
            return JointModel(shape, self.rank, linear=linear, nonlinear=self.nonlinear)
        except ConfigError as error:
            raise ConfigError(f"model '{self.text}': {error}") from error

    def recipe(self, recipe: str | Recipe, **changes: Any) -> Recipe:
        """The recipe with the changes that all models share, then those of this model; it never falls back."""
        return make_recipe(recipe, **(changes | self.recipe_changes | {"fall_back": False}))


def parse_model(text: str) -> ModelSpec:
    """The model that a text names.

    >>> parse_model("julia-costco:4/16,layout=official")
    ModelSpec(text='julia-costco:4/16,layout=official', baseline=None, rank=(4, 16), linear=None,
              nonlinear='costco,layout=official', recipe_changes={})
    """
    head, options = parse_spec(text)
    name, sign, size = head.partition(":")
    known = [*BASELINES, "cp", "tucker", *nonlinear_parts.names()]
    known += [f"julia-{part}" for part in nonlinear_parts.names() if part != "julia"]
    if name not in known:
        raise ConfigError(f"there is no model '{name}'; {nearest(name, known)}")
    if sign and not size:
        raise ConfigError(f"'{text}': a size is missing after '{name}:'; write {name} for the usual one")
    if name in BASELINES:
        if size or options:
            raise ConfigError(f"'{text}': {name} is a baseline and takes neither size nor options; write {name}")
        return ModelSpec(text, baseline=name)
    if name in ("cp", "tucker"):
        return _multilinear(text, name, size, options)
    return _with_network(text, name, size, options)


def parse_models(texts: Sequence[str]) -> list[ModelSpec]:
    """All models of a comparison; one that is named twice is an error."""
    if not texts:
        raise ConfigError("name at least one model, such as: mean bias cp:20 julia:4/16")
    for text in texts:
        if texts.count(text) > 1:
            raise ConfigError(f"model '{text}' is named twice")
    return [parse_model(text) for text in texts]


def _multilinear(text: str, name: str, size: str, options: dict[str, Any]) -> ModelSpec:
    linear = f"{name}:{size or 20}"
    try:
        parse_blocks(linear)
    except ConfigError:
        hint = "tucker:20 or tucker:20x5x20" if name == "tucker" else "cp:20"
        raise ConfigError(f"'{text}': write the rank as a whole number of at least 1, such as {hint}") from None
    _check_options(text, options, [])
    if name == "cp":
        return ModelSpec(text, rank=(int(size or 20), 0), recipe_changes=options)
    return ModelSpec(text, linear=linear, recipe_changes=options)


def _with_network(text: str, name: str, size: str, options: dict[str, Any]) -> ModelSpec:
    part = name.removeprefix("julia-")
    kind, _ = find_nonlinear(part)
    own = option_names(kind)
    joint = name == "julia" or part != name
    linear = options.pop("linear", None)
    if linear is not None:
        _check_blocks(text, linear)
    _check_options(text, options, [*own, "linear"])
    network = ",".join([part, *(f"{k}={v}" for k, v in options.items() if k in own)])
    return ModelSpec(
        text,
        rank=_joint_rank(text, size, kind) if joint else (0, _width(text, part, size, kind)),
        linear=linear,
        nonlinear=network,
        recipe_changes={k: v for k, v in options.items() if k not in own},
    )


def _check_blocks(text: str, linear: Any) -> None:
    try:
        parse_blocks(str(linear))
    except ConfigError as error:
        raise ConfigError(f"'{text}': {error}") from error


def _joint_rank(text: str, size: str, kind: type) -> tuple[int, int]:
    if not size:
        total = getattr(kind, "total_rank", Nonlinear.total_rank)
        return total // LINEAR_SHARE, total - total // LINEAR_SHARE
    pieces = size.split("/")
    if len(pieces) != 2 or not all(piece.isdecimal() for piece in pieces):
        raise ConfigError(f"'{text}': a joint model needs R/F, two whole numbers such as julia:4/16")
    return int(pieces[0]), int(pieces[1])


def _width(text: str, part: str, size: str, kind: type) -> int:
    if "/" in size:
        raise ConfigError(
            f"'{text}': {part} alone has one width, such as {part}:20; with R/F it is julia-{part}:{size}"
        )
    if size and not (size.isdecimal() and int(size) > 0):
        raise ConfigError(f"'{text}': write the width as a whole number of at least 1, such as {part}:20")
    return int(size) if size else int(getattr(kind, "total_rank", Nonlinear.total_rank))


def _check_options(text: str, options: dict[str, Any], own: Sequence[str]) -> None:
    """Refuse options that neither the nonlinear part nor a recipe has, and values a recipe does not take."""
    of_recipe = [one.name for one in fields(Recipe)]
    for key in options:
        if key not in own and key not in of_recipe:
            raise ConfigError(f"'{text}': there is no option '{key}'; {nearest(key, [*own, *of_recipe])}")
    try:
        make_recipe("paper", **{k: v for k, v in options.items() if k not in own})
    except ConfigError as error:
        raise ConfigError(f"'{text}': {error}") from error
