"""The warm start by exact sweeps: Θ_L solved for several ridges, the one that validates best kept.

With three or more modes and a ridge, zero is a local optimum of CP least squares, so the ridge grows to its
full size over the first sweeps only. How much of it a tensor wants differs by a factor of 300 between
dense counts and sparse ratings; sweeps are cheap enough to ask the validation entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch

from jointensor.solvers.entries import Fixed
from jointensor.solvers.sgd import Exact
from jointensor.training.init_components import guess_components
from jointensor.training.journal import Snapshot
from jointensor.training.trainer import Trainer

RISE = 4
"""Sweeps in which the ridge grows, by a factor of √10 each."""

AGAIN = 3
"""Sweeps with every ridge from a solution for another target."""


MANY, WEAK = 500_000, 0.2
"""Entries above which rank-one guesses are made only where sweeps from a random start found little: components with a
smaller share of the values' spread. There, guesses take longer than the sweeps."""


BOLD = 0.4
"""How much of what guesses explain they must explain of validation entries: those are asked once more after sweeps."""


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
    unsolved = [name for name, block in g.named_blocks.items() if not block.solvable]
    if unsolved:
        trainer.notes.append(f"the multilinear part is descended, not solved: {unsolved[0]} has no exact step")
        return None
    exact = trainer.exact(g)
    trainer.journal.watch(exact.als)
    exact.als.pull = recipe.pull
    exact.als.ridge = trainer.ridge = _middle(recipe.ridges)  # until a warm start chooses
    return exact


def solve_warm_start(trainer: Trainer, solver: Exact, fixed: Fixed) -> float:
    """Solve Θ_L with the other half fixed, for every ridge of the recipe; ends at the best and returns its figure.

    A random start can lose components, so rank-one guesses are tried as well. A small ridge can lead a start
    astray where a larger one does not, so the smaller ones are also tried from the best solution, for as long as that
    helps.
    """
    start = trainer.save(solver.als)
    ridges = sorted(trainer.recipe.ridges) if len(trainer.valid) else [_middle(trainer.recipe.ridges)]
    sweeps = trainer.recipe.sweeps
    best = _best(_try(trainer, solver, fixed, start, ridge, sweeps, rise=True) for ridge in ridges)
    best = _guessed(trainer, solver, fixed, start, best)
    trainer.restore(solver.als, best.saved)
    lost = trainer.journal.decide(solver.als.collapsed)
    smaller = [] if lost else [ridge for ridge in ridges if ridge < best.ridge]  # zero stays zero
    for ridge in reversed(smaller):
        again = _try(trainer, solver, fixed, best.saved, ridge, sweeps, rise=False)
        if not again.figure < best.figure:
            break
        best = again
    return _take(trainer, solver, best)


def _guessed(trainer: Trainer, solver: Exact, fixed: Fixed, start: Snapshot, best: Tried) -> Tried:
    """The best so far, or what sweeps make of rank-one guesses at its ridge or at the least."""
    if "cp" not in solver.als.blocks or trainer.journal.decide(lambda: _found_enough(trainer, solver, best)):
        return best
    trainer.restore(solver.als, start)
    if not trainer.journal.decide(lambda: _guess(trainer)):
        return best
    solver.als.refresh()
    guess = trainer.save(solver.als)
    ridges = (
        {best.ridge, min(trainer.recipe.ridges)} if len(trainer.valid) else {best.ridge}
    )  # else nobody could choose
    tried = (_try(trainer, solver, fixed, guess, one, trainer.recipe.sweeps, rise=False) for one in sorted(ridges))
    return _best(chain([best], tried))


def _found_enough(trainer: Trainer, solver: Exact, best: Tried) -> bool:
    """Whether guesses would take long and sweeps from a random start have found components."""
    if trainer.entries <= MANY:
        return False
    trainer.restore(solver.als, best.saved)
    return bool(solver.als.values["cp"].std() > WEAK * solver.als.spread)


def _guess(trainer: Trainer) -> bool:
    device = trainer.train.values.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # what follows does not depend on it
        return guess_components(trainer, BOLD)


def solve_again(trainer: Trainer, solver: Exact, fixed: Fixed) -> float:
    """Solve Θ_L once more from where it is, for every ridge of the recipe: the other half is another one now."""
    if not len(trainer.valid):
        return math.inf
    start = trainer.save(solver.als)
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
    start = trainer.save(solver.als) if len(asked) > 1 else None
    return _take(trainer, solver, _best(_sweep_at(trainer, solver, fixed, start, ridge, round_) for ridge in asked))


def _sweep_at(
    trainer: Trainer, solver: Exact, fixed: Fixed, start: Snapshot | None, ridge: float, round_: int
) -> Tried:
    if start is not None:
        trainer.restore(solver.als, start)
    solver.als.ridge = ridge
    figure = trainer.epoch(solver.als.g, fixed, solver, "alternate: linear", round_)
    return Tried(figure, ridge, trainer.save(solver.als))


class Tried(NamedTuple):
    """Where the sweeps with one ridge ended."""

    figure: float
    ridge: float
    saved: Snapshot


def _try(
    trainer: Trainer, solver: Exact, fixed: Fixed, start: Snapshot, ridge: float, sweeps: int, *, rise: bool
) -> Tried:
    trainer.restore(solver.als, start)
    figure = math.inf
    for sweep in range(sweeps):
        solver.als.ridge = ridge * min(1.0, 10 ** ((sweep - RISE) / 2)) if rise else ridge
        figure = trainer.epoch(solver.als.g, fixed, solver, "warm start", keep=False)
    return Tried(figure, ridge, trainer.save(solver.als))


def _best(tried: Iterator[Tried]) -> Tried:
    """The lowest figure; what was worse is not kept in memory."""
    return min(tried, key=lambda one: one.figure)


def _take(trainer: Trainer, solver: Exact, best: Tried) -> float:
    trainer.restore(solver.als, best.saved)
    solver.als.ridge = trainer.ridge = best.ridge
    trainer.collapsed = trainer.journal.decide(solver.als.collapsed)
    return best.figure


def _middle(ridges: tuple[float, ...]) -> float:
    return sorted(ridges)[len(ridges) // 2]
