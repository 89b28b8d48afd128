"""The warm start by exact sweeps: Θ_L solved for several ridges, the one that validates best kept.

With three or more modes and a ridge, zero is a local optimum of CP least squares, so the ridge grows to its
full size over the first sweeps only. How much of it a tensor wants differs by a factor of 300 between
dense counts and sparse ratings; sweeps are cheap enough to ask the validation entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from jointensor.training.als import Als, Saved
from jointensor.training.solvers import Exact
from jointensor.training.state import Fixed
from jointensor.training.trainer import Trainer

RISE = 4
"""Sweeps in which the ridge grows, by a factor of √10 each."""

AGAIN = 3
"""Sweeps with every ridge from a solution for another target."""


def make_exact(trainer: Trainer) -> Exact | None:
    """The exact solver of Θ_L; ``None`` where the recipe or the model does not allow it, see ``trainer.notes``."""
    g, recipe = trainer.model.multilinear, trainer.recipe
    if g is None or not recipe.solves:
        return None
    if trainer.loss.name not in ("squared", "huber"):
        trainer.notes.append(
            f"the multilinear part is descended, not solved: the {trainer.loss.name} loss has no exact step"
        )
        return None
    if g.tucker is not None:
        trainer.notes.append("the multilinear part is descended, not solved: tucker has no exact step")
        return None
    spread = float(trainer.train.values.std(correction=0)) or 1.0
    als = Als(
        g, trainer.train.indices, spread=spread, solver=trainer.engine.solve_rows, systems=trainer.engine.row_systems
    )
    als.pull = recipe.pull
    als.ridge = trainer.ridge = _middle(recipe.ridges)  # until a warm start chooses
    return Exact(als, trainer.loss, recipe.huber_delta)


def solve_warm_start(trainer: Trainer, solver: Exact, fixed: Fixed) -> float:
    """Solve Θ_L with the other half fixed, for every ridge of the recipe; ends at the best and returns its figure.

    A small ridge can lead a random start astray where a larger one does not, so the smaller ones are also
    tried from the best solution, for as long as that helps.
    """
    start = solver.als.save()
    ridges = sorted(trainer.recipe.ridges) if len(trainer.valid) else [_middle(trainer.recipe.ridges)]
    sweeps = trainer.recipe.sweeps
    best = _best(_try(trainer, solver, fixed, start, ridge, sweeps, rise=True) for ridge in ridges)
    solver.als.restore(best.saved)
    smaller = [] if solver.als.collapsed() else [ridge for ridge in ridges if ridge < best.ridge]  # zero stays zero
    for ridge in reversed(smaller):
        again = _try(trainer, solver, fixed, best.saved, ridge, sweeps, rise=False)
        if not again.figure < best.figure:
            break
        best = again
    return _take(trainer, solver, best)


def solve_again(trainer: Trainer, solver: Exact, fixed: Fixed) -> float:
    """Solve Θ_L once more from where it is, for every ridge of the recipe: the other half is another one now."""
    if not len(trainer.valid):
        return math.inf
    start = solver.als.save()
    ridges = trainer.recipe.ridges
    return _take(trainer, solver, _best(_try(trainer, solver, fixed, start, one, AGAIN, rise=False) for one in ridges))


def solve_turn(trainer: Trainer, solver: Exact, fixed: Fixed, round_: int) -> float:
    """One sweep with the other half fixed; with ``follow``, at the best of the last ridge and its neighbours.

    The ridge that is right for Θ_L alone is too small once Θ_N explains a part of the same entries, or too large
    once it explains what looked like noise.
    """
    follow, last = trainer.recipe.follow, solver.als.ridge
    asked: tuple[float, ...] = (last,)
    if follow and len(trainer.valid):
        asked += (min(last * follow, max(trainer.recipe.ridges)), last / follow)
    start = solver.als.save() if len(asked) > 1 else None
    return _take(trainer, solver, _best(_sweep_at(trainer, solver, fixed, start, ridge, round_) for ridge in asked))


def _sweep_at(trainer: Trainer, solver: Exact, fixed: Fixed, start: Saved | None, ridge: float, round_: int) -> Tried:
    if start is not None:
        solver.als.restore(start)
    solver.als.ridge = ridge
    figure = trainer.epoch(solver.als.g, fixed, solver, "alternate: linear", round_)
    return Tried(figure, ridge, solver.als.save())


class Tried(NamedTuple):
    """Where the sweeps with one ridge ended."""

    figure: float
    ridge: float
    saved: Saved


def _try(
    trainer: Trainer, solver: Exact, fixed: Fixed, start: Saved, ridge: float, sweeps: int, *, rise: bool
) -> Tried:
    solver.als.restore(start)
    figure = math.inf
    for sweep in range(sweeps):
        solver.als.ridge = ridge * min(1.0, 10 ** ((sweep - RISE) / 2)) if rise else ridge
        figure = trainer.epoch(solver.als.g, fixed, solver, "warm start", keep=False)
    return Tried(figure, ridge, solver.als.save())


def _best(tried: Iterator[Tried]) -> Tried:
    """The lowest figure; what was worse is not kept in memory."""
    return min(tried, key=lambda one: one.figure)


def _take(trainer: Trainer, solver: Exact, best: Tried) -> float:
    solver.als.restore(best.saved)
    solver.als.ridge = trainer.ridge = best.ridge
    trainer.collapsed = solver.als.collapsed()
    return best.figure


def _middle(ridges: tuple[float, ...]) -> float:
    return sorted(ridges)[len(ridges) // 2]
