"""What a fit from disk (``--memory``) refuses: one table of options, each with its reason and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from jointensor.errors import ConfigError
from jointensor.models.blocks import parse_blocks
from jointensor.training.recipe import Recipe


@dataclass(frozen=True)
class Request:
    """Options of a fit from disk. A fit that is called from Python has the first ones only."""

    linear: str
    """Blocks of g, residual models included; modes by name or by position."""
    recipe: Recipe
    split: str = "standard"
    searches: bool = False


REFUSALS = {
    "search": ("most of its candidates need all entries at once", "give --rank R/F"),
    "split": (
        "whole slices of the tensor are drawn from the labels of all entries", "give --split standard or first:N",
    ),
    "block": ("its solution is not made of sums over entries in any order", "leave it out"),
    "gibbs": ("a chain is hundreds of passes over the entries, with noise for each of them", "leave it out"),
    "huber": ("the exact solver weighs every entry by its last residual", "add --set linear_solver=adam"),
}  # fmt: skip
"""The reason of every refusal, and what to do instead; also listed in ``docs/howto/large.md``."""


def refused_options(request: Request) -> dict[str, str]:
    """What is refused, by the keys of :data:`REFUSALS`: the options as they were given."""
    recipe = request.recipe
    positions: dict[str, int] = {}  # which modes they are does not matter here, only that they differ
    pieces = parse_blocks(request.linear, lambda name: positions.setdefault(name, len(positions)))
    whole = [piece.kind.name for piece in pieces if not piece.kind.streamable]
    split = request.split.partition(":")[0]
    given = {
        "search": ("--rank auto", request.searches),
        "split": (f"--split {request.split}", split not in ("standard", "first")),
        "block": (f"block '{whole[0]}'" if whole else "", whole),
        "gibbs": ("linear_solver=gibbs", recipe.linear_solver == "gibbs"),
        "huber": ("loss=huber", recipe.solves and request.linear and recipe.loss == "huber"),
    }
    return {name: option for name, (option, refused) in given.items() if refused}


def check_from_disk(request: Request) -> None:
    """Refuse a fit from disk that needs all entries in memory.

    Raises
    ------
    ConfigError
        Which says why, and what to do instead.
    """
    for name, option in refused_options(request).items():
        reason, instead = REFUSALS[name]
        raise ConfigError(f"{option} needs all entries in memory: {reason}; {instead}, or fit without --memory")
