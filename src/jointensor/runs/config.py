"""The options of a run, and its callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jointensor.errors import ConfigError
from jointensor.training.history import OnEpoch

DEFAULT_RANK = (4, 16)
"""``(R, F)`` of a single joint model where none is given."""

SINGLE_MODEL_OPTIONS: dict[str, Any] = {
    "linear": None, "nonlinear": "julia", "recipe": "default", "recipe_changes": {}, "refit": False, "memory": None,
}  # fmt: skip
"""Options that describe a single joint model, or need one; and their defaults."""

AUTO = "auto"
"""The rank that is chosen by validation, with everything else."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run; ``config.json`` holds it."""

    source: str
    table: dict[str, Any] | None = None
    """How a table becomes a tensor, as :meth:`TableSpec.to_dict` gives it."""
    orders: dict[str, str] = field(default_factory=dict)
    rank: tuple[int, int] | str | None = None
    """``(R, F)``, or ``auto``; ``None`` for the default fit, see :attr:`mixes`."""
    linear: str | None = None
    nonlinear: str = "julia"
    recipe: str = "default"
    recipe_changes: dict[str, Any] = field(default_factory=dict)
    split: str = "standard"
    split_seed: int = 0
    folds: str = "like-gaps"
    """How validation entries and folds of a search are drawn."""
    queries: str | None = None
    """File with cells that will be asked for: validation entries and folds look like them."""
    test: float = 0.2
    test_file: str | None = None
    valid: float = 0.1
    seed: int = 0
    refit: bool = False
    engine: str = "auto"
    device: str = "auto"
    budget: float | None = None
    """Seconds for everything; ``None``: no limit, or the default of a search."""
    budget_fits: int | None = None
    """Fits of a search, instead of seconds."""
    checkpoint_every: float = 300.0
    """Seconds from one checkpoint to the next."""
    memory: int | None = None
    """Bytes that the process may take; ``None``: as many as it needs."""
    stream: bool = False
    """Whether entries stay on disk even where ``memory`` holds them."""

    def __post_init__(self) -> None:
        chosen = [name for name in ("nested", "max_rank") if self.recipe_changes.get(name)]
        chosen += ["solutions"] if self.recipe_changes.get("solutions", 1) != 1 else []
        if self.refit and chosen:
            raise ConfigError(
                f"--set {chosen[0]} needs validation entries, and --refit has none: leave out one of the two"
            )

    @property
    def rank_pair(self) -> tuple[int, int]:
        """``(R, F)`` of a run that does not search."""
        if isinstance(self.rank, str):
            raise ConfigError(f"rank '{self.rank}' is not R/F: a search chooses it")
        return DEFAULT_RANK if self.rank is None else self.rank

    @property
    def mixes(self) -> bool:
        """Whether this is the default fit, a mixture of a few models: no option describes a single one."""
        return self.rank is None and all(getattr(self, name) == usual for name, usual in SINGLE_MODEL_OPTIONS.items())

    def left(self, begin: float) -> float:
        """Seconds of the budget that are left of a run that began then."""
        return math.inf if self.budget is None else max(self.budget - (time.monotonic() - begin), 0.0)

    def split_record(self) -> dict[str, Any]:
        """What ``metrics.json`` says of the split."""
        return {
            "rule": self.split,
            "test_file": self.test_file,
            "seed": self.split_seed,
            "test": self.test,
            "valid": self.valid,
            "folds": self.folds if self.queries is None else "like-queries",
            "queries": self.queries,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunConfig:
        """The inverse of ``asdict``."""
        try:
            changes = {
                key: tuple(value) if isinstance(value, list) else value for key, value in data["recipe_changes"].items()
            }
            rank = tuple(data["rank"]) if isinstance(data["rank"], list) else data["rank"]
            return cls(**{**data, "rank": rank, "recipe_changes": changes})
        except (KeyError, TypeError) as error:
            raise ConfigError(f"config.json is not of this version: {error}") from None


@dataclass(frozen=True)
class Listener:
    """Callbacks of a run; each may be left out."""

    on_note: Callable[[str], None] = lambda _: None
    on_epoch: OnEpoch | None = None
    stopping: Callable[[], bool] = lambda: False
    """Whether to stop early: training ends after its present step, and the best model so far is written."""
