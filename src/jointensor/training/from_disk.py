"""What a fit from disk (``--memory``) refuses: one table of options, each with its reason and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
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

    def whole_block(self) -> str:
        """The first block whose rows need all entries at once; empty where there is none."""
        positions: dict[str, int] = {}  # which modes they are does not matter here, only that they differ
        pieces = parse_blocks(self.linear, lambda name: positions.setdefault(name, len(positions)))
        return next((piece.kind.name for piece in pieces if not piece.kind.streamable), "")


@dataclass(frozen=True)
class Refusal:
    """An option that needs all entries in memory."""

    option: Callable[[Request], str]
    """The option as it was given; empty where it was not."""
    reason: str
    instead: str


REFUSALS = {
    "search": Refusal(
        lambda r: "--rank auto" if r.searches else "",
        "candidates such as trees, tables and Gibbs samplers need all entries at once, and a search on a sample would "
        "choose for the sample",
        "give --rank R/F, for instance one that a search on some of the entries chose",
    ),
    "split": Refusal(
        lambda r: "" if r.split.partition(":")[0] in ("standard", "first") else f"--split {r.split}",
        "whole slices of the tensor are drawn from the labels of all entries",
        "give --split standard or first:N",
    ),
    "block": Refusal(
        lambda r: (name := r.whole_block()) and f"block '{name}'",
        "its solution is not made of sums over entries in any order",
        "leave it out",
    ),
    "gibbs": Refusal(
        lambda r: "linear_solver=gibbs" if r.recipe.linear_solver == "gibbs" else "",
        "a chain is hundreds of passes over the entries, with noise for each of them",
        "leave it out",
    ),
    "huber": Refusal(
        lambda r: "loss=huber" if r.recipe.loss == "huber" and r.recipe.solves and r.linear else "",
        "the exact solver weighs every entry by its last residual",
        "add --set linear_solver=adam",
    ),
}
"""All refusals; also listed in ``docs/howto/large.md``."""


def check_from_disk(request: Request) -> None:
    """Refuse a fit from disk that needs all entries in memory.

    Raises
    ------
    ConfigError
        Which says why, and what to do instead.
    """
    for refusal in REFUSALS.values():
        option = refusal.option(request)
        if option:
            raise ConfigError(
                f"{option} needs all entries in memory: {refusal.reason}; {refusal.instead}, or fit without --memory"
            )
