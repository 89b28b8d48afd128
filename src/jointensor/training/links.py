"""Which links of rows a tensor wants: kinds and strengths of smoothness, mode by mode, by the validation entries.

Every change is tried by a few sweeps from the best solution so far, all with the same ridge, and kept where it
validates better. The first solution has few components, so that a sweep costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from jointensor.solvers.sgd import Exact, FrozenHalf
from jointensor.training.checkpoint import stored
from jointensor.training.exact import Tried, sweep_on
from jointensor.training.state import Snapshot
from jointensor.training.trainer import Trainer

Strengths = dict[str, float]
"""Of the links of one mode, by kind; see :mod:`jointensor.solvers.linked_rows`."""

MIN_LINK_GAIN = 0.003
"""Share by which other links must lower the validation error: less is found by chance."""

STRENGTH_STEP = 5.0
"""Ratio of strengths that are tried one after the other: errors hardly depend on less."""

MAX_STRENGTH = 1e4
"""Strongest links, and the inverse of the weakest."""

BESIDE_SEASON = 0.2
"""Strength of a walk beside a season."""

Stage = Literal["kinds", "stronger", "weaker", "ridge"]

EVERY_MODE = -1
"""In place of a mode: the ridge is of all of them."""


@stored
@dataclass
class LinkTrials:
    """Variables of :func:`choose_links`."""

    start: Snapshot | None = None
    """Where the first sweeps begin."""
    best: Tried | None = None
    links: dict[int, Strengths] = field(default_factory=dict)
    """Of the best solution, by mode."""
    kinds: dict[int, list[Strengths]] = field(default_factory=dict)
    """Kinds that are tried, by mode."""
    stages: list[tuple[int, Stage]] = field(default_factory=list)
    """Modes, and what is to be tried of each; the first one is under way."""
    pending: list[dict[int, Strengths]] = field(default_factory=list)
    """Links that are to be tried next in this stage."""


def choose_links(trainer: Trainer, solver: Exact, frozen: FrozenHalf) -> None:
    """Set the links of every linked mode to those that validate best; ends at their solution."""
    als = solver.als
    if not als.smoothness or not als.links or not len(trainer.valid):
        return
    with trainer.enter(LinkTrials) as at:
        best = at.best or _begin(trainer, solver, frozen, at)
        while _next(at):
            (n, stage), links = at.stages[0], at.pending[0]
            als.set_links(links)
            als.ridge = best.ridge / (STRENGTH_STEP if stage == "ridge" else 1.0)
            found = sweep_on(trainer, solver, frozen, best.saved)
            at.pending = at.pending[1:]
            if found.figure < (1 - MIN_LINK_GAIN) * best.figure:
                at.best = best = found
                at.links = links
                at.pending = at.pending if stage == "kinds" else _scaled(links, n, stage)
                at.stages = [one for one in at.stages if stage != "stronger" or one != (n, "weaker")]
        als.set_links(at.links)
        als.restore(best.saved)
        trainer.state.links = at.links
        als.ridge = trainer.state.ridge = best.ridge


def _begin(trainer: Trainer, solver: Exact, frozen: FrozenHalf, at: LinkTrials) -> Tried:
    """The solution to begin with. Seasons are looked for in rows without links, which would blur them."""
    als = solver.als
    if at.start is None:
        at.start, at.links = als.save(), {n: dict(one.strengths) for n, one in als.links.items()}
    if not at.kinds:
        als.set_links({n: {} for n in at.links})
        sweep_on(trainer, solver, frozen, at.start)
        at.kinds = {n: _kinds(als.likely_seasons(n)) for n in at.links}
    als.set_links(at.links)
    at.best = sweep_on(trainer, solver, frozen, at.start)
    stages: tuple[Stage, ...] = ("kinds", "stronger", "weaker")
    at.stages = [(EVERY_MODE, "kinds"), *((n, stage) for n in at.links for stage in stages), (EVERY_MODE, "ridge")]
    return at.best


def _kinds(seasons: Sequence[str]) -> list[Strengths]:
    """Links to be tried in place of a walk."""
    found: list[Strengths] = [{"curve": 1.0}]
    for season in seasons:
        found += [{season: 1.0}, {season: 1.0, "walk": BESIDE_SEASON}]
    return found


def _next(at: LinkTrials) -> bool:
    """Go on to the next stage where nothing of this one is left; whether there is something to be tried."""
    while not at.pending and at.stages:
        at.stages = at.stages[1:]
        for n, stage in at.stages[:1]:
            of_kinds = [at.links | {n: one} for one in at.kinds.get(n, [])]
            at.pending = of_kinds if stage == "kinds" else _scaled(at.links, n, stage)
    return bool(at.pending)


def _scaled(links: dict[int, Strengths], mode: int, stage: Stage) -> list[dict[int, Strengths]]:
    """Links of a mode that are one step stronger, or weaker; none beyond the strongest or weakest.

    For a smaller ridge, in which strengths are measured, those of all modes.
    """
    ratio = 1 / STRENGTH_STEP if stage == "weaker" else STRENGTH_STEP
    scaled = {
        n: {kind: (ratio if mode in (n, EVERY_MODE) else 1.0) * strength for kind, strength in strengths.items()}
        for n, strengths in links.items()
    }
    every = [strength for strengths in scaled.values() for strength in strengths.values()]
    return [scaled] if all(1 / MAX_STRENGTH <= one <= MAX_STRENGTH for one in every) else []
