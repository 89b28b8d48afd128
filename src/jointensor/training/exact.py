"""The warm start by exact sweeps: Θ_L solved for several ridges, the one that validates best kept.

With three or more modes and a ridge, zero is a local optimum of CP least squares, so the ridge grows to its
full size over the first sweeps only. The ridge that a tensor needs differs by a factor of 300 between
dense counts and sparse ratings; sweeps are cheap enough to let the validation entries choose it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jointensor.solvers.sgd import Exact, FrozenHalf
from jointensor.training.checkpoint import stored
from jointensor.training.init_components import init_components
from jointensor.training.state import Snapshot
from jointensor.training.trainer import Trainer

RIDGE_RISE_SWEEPS = 4
"""Sweeps in which the ridge grows, by a factor of √10 each."""

SWEEPS_AGAIN = 3
"""Sweeps with every ridge from a solution for another target."""

MAX_ENTRIES_ALWAYS_INITIALISED, MIN_COMPONENT_SPREAD = 500_000, 0.2
"""Of more entries than this, components are initialised by rank-one fits only where sweeps from a random start found
little: components with a smaller share of the values' spread. There, these fits take longer than the sweeps."""

MIN_GENERALISATION = 0.4
"""Least ratio of validation to training variance that initial components explain; sweeps and validation follow."""


@stored
@dataclass
class Tried:
    """Where the sweeps with one ridge ended."""

    figure: float
    ridge: float
    saved: Snapshot


def make_exact(trainer: Trainer) -> Exact | None:
    """The exact solver of Θ_L; ``None`` where the recipe or the model does not allow it, see the notes."""
    g, recipe = trainer.model.multilinear, trainer.recipe
    if g is None or not recipe.solves or recipe.training != "alternating":
        return None
    if trainer.loss.name not in ("squared", "huber"):
        trainer.note(f"the multilinear part is descended, not solved: the {trainer.loss.name} loss has no exact step")
        return None
    unsolved = [name for name, block in g.named_blocks.items() if not block.solvable]
    if unsolved:
        trainer.note(f"the multilinear part is descended, not solved: {unsolved[0]} has no exact step")
        return None
    exact = trainer.exact(g)
    exact.als.pull, exact.als.smoothness = recipe.pull, recipe.smoothness
    exact.als.ridge = _middle(recipe.ridges)  # until a warm start chooses
    if trainer.state.ridge is None:
        trainer.state.ridge = exact.als.ridge
    return trainer.keep("exact", exact)


@stored
@dataclass
class ExactWarmStart:
    """Variables of :func:`solve_warm_start`."""

    start: Snapshot | None = None
    best: Tried | None = None
    components: Snapshot | None = None
    """Where rank-one fits lead; empty where there are none."""
    smaller: list[float] | None = None
    """Ridges that are tried once more, from the best solution."""


def solve_warm_start(trainer: Trainer, solver: Exact, frozen: FrozenHalf) -> float:
    """Solve Θ_L with the other half frozen, for every ridge of the recipe; ends at the best and returns its figure.

    A random start can lose components, so an initialisation by rank-one fits is tried as well. A small ridge can lead
    a start astray where a larger one does not, so the smaller ones are also tried from the best solution, for as long
    as that helps.
    """
    recipe, als = trainer.recipe, solver.als
    ridges = sorted(recipe.ridges) if len(trainer.valid) else [_middle(recipe.ridges)]
    with trainer.enter(ExactWarmStart) as at:
        at.start = at.start or als.save()
        if at.best is None:
            at.best = _best_ridge(trainer, solver, frozen, ridges, at.start, sweeps=recipe.sweeps, rise=True)
        if at.components is None:
            at.components = _components(trainer, solver, at.start, at.best)
        if at.smaller is None:
            if at.components:
                # without validation entries there is nothing to choose by
                tried = sorted({at.best.ridge, min(recipe.ridges)} if len(trainer.valid) else {at.best.ridge})
                at.best = _best_ridge(trainer, solver, frozen, tried, at.components, best=at.best, sweeps=recipe.sweeps)
            als.restore(at.best.saved)
            lost = trainer.processes.decide(als.collapsed)
            at.smaller = (
                [] if lost else [ridge for ridge in reversed(ridges) if ridge < at.best.ridge]
            )  # zero stays zero
        best = _best_ridge(trainer, solver, frozen, at.smaller, None, best=at.best, sweeps=recipe.sweeps)
    return _take(trainer, solver, best)


def _components(trainer: Trainer, solver: Exact, start: Snapshot, best: Tried) -> Snapshot:
    """The state of the solver with components from rank-one fits; empty without any."""
    als = solver.als
    if "cp" not in als.blocks or trainer.processes.decide(lambda: _found_enough(trainer, solver, best)):
        return {}
    als.restore(start)
    with trainer.generators.forked():  # the epochs that follow do not depend on it
        if not init_components(trainer, MIN_GENERALISATION):
            return {}
    als.refresh()
    return als.save()


def _found_enough(trainer: Trainer, solver: Exact, best: Tried) -> bool:
    """Whether rank-one fits would take long and sweeps from a random start have found components."""
    if trainer.train.total <= MAX_ENTRIES_ALWAYS_INITIALISED:
        return False
    solver.als.restore(best.saved)
    return bool(solver.als.values["cp"].std() > MIN_COMPONENT_SPREAD * solver.als.spread)


def solve_again(trainer: Trainer, solver: Exact, frozen: FrozenHalf) -> float:
    """Solve Θ_L once more from where it is, for every ridge of the recipe: the other half is another one now."""
    if not len(trainer.valid):
        return math.inf
    start, ridges = solver.als.save(), trainer.recipe.ridges
    return _take(trainer, solver, _best_ridge(trainer, solver, frozen, ridges, start, sweeps=SWEEPS_AGAIN))


def solve_turn(trainer: Trainer, solver: Exact, frozen: FrozenHalf, round_: int, *, follow: bool = True) -> float:
    """One sweep with the other half frozen; with ``follow``, at the best of the last ridge and its neighbours.

    The ridge that is right for Θ_L alone is too small once Θ_N explains a part of the same entries, or too large
    once it explains what looked like noise.
    """
    factor, last = trainer.recipe.follow, trainer.state.ridge or solver.als.ridge
    ridges: tuple[float, ...] = (last,)
    if follow and factor and len(trainer.valid):
        ridges += (min(last * factor, max(trainer.recipe.ridges)), last / factor)
    start = solver.als.save() if len(ridges) > 1 else None
    return _take(trainer, solver, _best_ridge(trainer, solver, frozen, ridges, start, sweeps=1, round_=round_))


def sweep_from(trainer: Trainer, solver: Exact, frozen: FrozenHalf, sweeps: int) -> float:
    """Sweep from a random start with the ridge that was chosen before; returns the figure it ends with."""
    ridge = trainer.state.ridge or solver.als.ridge
    return _take(trainer, solver, _best_ridge(trainer, solver, frozen, [ridge], None, sweeps=sweeps, rise=True))


def sweep_on(trainer: Trainer, solver: Exact, frozen: FrozenHalf, start: Snapshot) -> Tried:
    """A few sweeps from a solution with the present ridge; where they end."""
    return _best_ridge(trainer, solver, frozen, [solver.als.ridge], start, sweeps=SWEEPS_AGAIN)


@stored
@dataclass
class RidgeTrials:
    """Variables of :func:`_best_ridge`."""

    begun: bool = False
    start: Snapshot | None = None
    best: Tried | None = None
    ridge: int = 0
    """Ridges that were tried."""
    sweep: int = 0
    figure: float = math.inf


def _best_ridge(
    trainer: Trainer,
    solver: Exact,
    frozen: FrozenHalf,
    ridges: Sequence[float],
    start: Snapshot | None,
    *,
    sweeps: int,
    best: Tried | None = None,
    rise: bool = False,
    round_: int = 0,
) -> Tried:
    """Sweep with every ridge and keep the lowest figure; solutions that are worse are not kept in memory.

    Parameters
    ----------
    ridges
        Tried in this order.
    start
        Where the sweeps with each of them begin. ``None``: at the best solution so far, and only for as long as each
        ridge improves it; where there is no solution yet, at the solver's own state.
    sweeps
        Of every ridge.
    best
        The best solution so far.
    rise
        Whether the ridge grows over the first sweeps.
    round_
        Of the alternation; 0 in a warm start, whose states are not candidates for the best one.
    """
    als = solver.als
    with trainer.enter(RidgeTrials) as at:
        if not at.begun:
            at.begun, at.start, at.best = True, start, best
        while at.ridge < len(ridges):
            ridge = ridges[at.ridge]
            begin = at.start if at.start is not None or at.best is None else at.best.saved
            if at.sweep == 0 and begin is not None:
                als.restore(begin)
            while at.sweep < sweeps:
                als.ridge = ridge * min(1.0, 10 ** ((at.sweep - RIDGE_RISE_SWEEPS) / 2)) if rise else ridge
                phase = "alternate: linear" if round_ else "warm start"
                at.figure = trainer.epoch(als.g, frozen, solver, phase, round_, keep=bool(round_))
                at.sweep += 1
            if at.best is None or at.figure < at.best.figure:
                at.best = Tried(at.figure, ridge, als.save())
            elif at.start is None:
                break
            at.ridge, at.sweep, at.figure = at.ridge + 1, 0, math.inf
        assert at.best is not None  # there is a ridge at least, or a best solution
        return at.best


def _take(trainer: Trainer, solver: Exact, best: Tried) -> float:
    solver.als.restore(best.saved)
    solver.als.ridge = trainer.state.ridge = best.ridge
    trainer.state.collapsed = trainer.processes.decide(solver.als.collapsed)
    return best.figure


def _middle(ridges: tuple[float, ...]) -> float:
    return sorted(ridges)[len(ridges) // 2]
