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

    def exact(self) -> bool:
        """Whether rows of g are solved for."""
        return self.recipe.solves and bool(self.linear)

    def whole_blocks(self) -> str:
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


def _option(text: str, given: Callable[[Request], object]) -> Callable[[Request], str]:
    return lambda request: text if given(request) else ""


REFUSALS = {
    "search": Refusal(
        _option("--rank auto", lambda request: request.searches),
        "most of its candidates need all entries at once",
        "give --rank R/F",
    ),
    "split": Refusal(
        lambda request: "" if request.split.partition(":")[0] in ("standard", "first") else f"--split {request.split}",
        "whole slices of the tensor are drawn from the labels of all entries",
        "give --split standard or first:N",
    ),
    "block": Refusal(
        lambda request: (name := request.whole_blocks()) and f"block '{name}'",
        "its solution is not made of sums over entries in any order",
        "leave it out",
    ),
    "gibbs": Refusal(
        _option("linear_solver=gibbs", lambda request: request.recipe.linear_solver == "gibbs"),
        "a chain is hundreds of passes over the entries, with noise for each of them",
        "leave it out",
    ),
    "huber": Refusal(
        _option("loss=huber", lambda request: request.exact() and request.recipe.loss == "huber"),
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
