"""The warm start by exact sweeps: Θ_L solved for several ridges, the one that validates best kept.

With three or more modes and a ridge, zero is a local optimum of CP least squares, so the ridge grows to its
full size over the first sweeps only. How much of it a tensor wants differs by a factor of 300 between
dense counts and sparse ratings; sweeps are cheap enough to ask the validation entries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from jointensor.models.multilinear import Multilinear
from jointensor.training.als import Als
from jointensor.training.solvers import Exact
from jointensor.training.state import Fixed
from jointensor.training.trainer import Trainer

RISE = 5
"""Sweeps in which the ridge grows, by a factor of √10 each."""


def make_exact(trainer: Trainer) -> Exact | None:
    """The exact solver of Θ_L; ``None`` where the recipe or the model does not allow it, see ``trainer.notes``."""
    g, recipe = trainer.model.multilinear, trainer.recipe
    if g is None or recipe.linear_solver != "als":
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
    als = Als(g, trainer.train.indices, spread=spread, solver=trainer.engine.solve_rows)
    als.pull = recipe.pull
    als.ridge = trainer.ridge = _middle(recipe.ridges)  # until a warm start chooses
    return Exact(als, trainer.loss, recipe.huber_delta)


def solve_warm_start(trainer: Trainer, solver: Exact, fixed: Fixed) -> None:
    """Solve Θ_L with the other half fixed, for every ridge of the recipe; ends at the best.

    A small ridge can lead a random start astray where a larger one does not, so the smaller ones are also
    tried from the best solution, for as long as that helps.
    """
    g = trainer.model.multilinear
    assert g is not None  # there is an exact solver for it
    start = _state(g)
    ridges = sorted(trainer.recipe.ridges) if len(trainer.valid) else [_middle(trainer.recipe.ridges)]
    best = min((_try(trainer, solver, fixed, start, ridge, rise=True) for ridge in ridges), key=lambda one: one.figure)
    for ridge in reversed([ridge for ridge in ridges if ridge < best.ridge]):
        again = _try(trainer, solver, fixed, best.state, ridge, rise=False)
        if not again.figure < best.figure:
            break
        best = again
    g.load_state_dict(best.state)
    solver.als.ridge = trainer.ridge = best.ridge
    solver.als.refresh()


class Tried(NamedTuple):
    """Where the sweeps with one ridge ended."""

    figure: float
    ridge: float
    state: dict[str, Tensor]


def _try(trainer: Trainer, solver: Exact, fixed: Fixed, start: dict[str, Tensor], ridge: float, *, rise: bool) -> Tried:
    g = trainer.model.multilinear
    assert g is not None
    g.load_state_dict(start)
    solver.als.refresh()
    figure = math.inf
    for sweep in range(trainer.recipe.warm_epochs):
        solver.als.ridge = ridge * min(1.0, 10 ** ((sweep - RISE) / 2)) if rise else ridge
        figure = trainer.epoch(g, fixed, solver, "warm start", keep=False)
    return Tried(figure, ridge, _state(g))


def _state(g: Multilinear) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in g.state_dict().items()}


def _middle(ridges: tuple[float, ...]) -> float:
    return sorted(ridges)[len(ridges) // 2]
