"""The multilinear half alone, by exact sweeps; components are added for as long as that validates better."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from jointensor.models.blocks.product import product_scales
from jointensor.models.joint import cp_rank
from jointensor.solvers.data_parallel import take_first
from jointensor.solvers.sgd import Exact, FrozenHalf
from jointensor.solvers.stopping import Either
from jointensor.training.average import average_solutions
from jointensor.training.checkpoint import stored
from jointensor.training.exact import Tried, solve_turn, solve_warm_start
from jointensor.training.links import choose_links
from jointensor.training.trainer import Trainer


@dataclass(frozen=True)
class PathSettings:
    """Numbers of the path of ranks."""

    min_turns: int = 3
    """Turns at every rank before it is judged: the first one only finds a place for the new components."""
    max_turns: int = 8
    """Most turns at every rank."""
    min_turn_gain: float = 0.01
    """Share by which a turn must lower the validation error for another one to follow."""
    min_rank_gain: float = 0.003
    """Share by which a rank must lower the lowest validation error so far to be a gain."""
    ranks_without_gain: int = 2
    """Ranks in a row that end the path: new components begin at random, and one rank may begin badly."""


RANK_PATH = PathSettings()
"""The settings of every fit."""


FOLLOW_EVERY = 4
"""Turns of an exact fit from one choice of the ridge to the next: the others are one sweep instead of three."""

NO_FROZEN_HALF = FrozenHalf()
"""The other half of a model that has one half only."""


@stored
@dataclass
class Solving:
    """Variables of :func:`solve`."""

    warm: bool = False
    linked: bool = False
    grown: bool = False
    round: int = 1
    rule: Either | None = None
    solved: bool = False
    """Whether the rule has ended the turns."""


def solve(trainer: Trainer, exact: Exact | None, frozen: FrozenHalf = NO_FROZEN_HALF) -> None:
    """A multilinear half alone, by exact sweeps until validation stops changing."""
    assert exact is not None  # the phase of an exact solver
    with trainer.enter(Solving) as at:
        if not at.warm:
            solve_warm_start(trainer, exact, frozen)
            at.warm = True
        if not at.linked:
            choose_links(trainer, exact, frozen)
            at.linked = True
        if not at.grown:
            grow_rank(trainer, exact, frozen)
        at.grown, at.rule = True, at.rule or trainer.stopping_rule()
        while not at.solved and at.round <= trainer.recipe.rounds + trainer.recipe.refine_epochs:
            at.solved = at.rule.report(
                solve_turn(trainer, exact, frozen, at.round, follow=at.round % FOLLOW_EVERY == 1)
            )
            at.round += 1
        trainer.state.converged = trainer.state.converged or at.solved
        average_solutions(trainer, exact, frozen)


@stored
@dataclass
class RankPath:
    """Variables of :func:`grow_rank`."""

    turns: int = 0
    """In all."""
    turn: int = 0
    """At the present rank."""
    figure: float = math.inf
    """After the last turn at the present rank."""
    without_gain: int = 0
    """Ranks in a row, so far."""
    rank: int = 0
    """That validated best so far."""
    best: Tried | None = None
    """Its solution."""


def grow_rank(trainer: Trainer, solver: Exact, frozen: FrozenHalf) -> None:
    """Double R from the present solution until that stops lowering the validation error; ends at the best R.

    A ridge that is right for few components holds new ones at zero, so every rank begins with a smaller one.
    """
    model = trainer.model
    if not trainer.recipe.max_rank or not len(trainer.valid) or not model.linear_factors:
        return
    with trainer.enter(RankPath) as at:
        while True:
            _solve_rank(trainer, solver, frozen, at)
            better = at.best is None or at.figure < (1 - RANK_PATH.min_rank_gain) * at.best.figure
            rank = cp_rank(model)
            if at.best is None or at.figure < at.best.figure:
                at.rank, at.best = rank, Tried(at.figure, solver.als.ridge, solver.als.save())
            at.without_gain = 0 if better else at.without_gain + 1
            if at.without_gain == RANK_PATH.ranks_without_gain or 2 * rank > trainer.recipe.max_rank:
                break
            add_components(trainer, solver, 2 * rank)
            solver.als.ridge = trainer.state.ridge = solver.als.ridge / max(trainer.recipe.follow, 1.0)
            at.turn, at.figure = 0, math.inf
        model.resize_cp(at.rank)
        solver.als.restore(at.best.saved)
        solver.als.ridge = trainer.state.ridge = at.best.ridge


def _solve_rank(trainer: Trainer, solver: Exact, frozen: FrozenHalf, at: RankPath) -> None:
    """Turns at the present rank until they gain little."""
    while at.turn < RANK_PATH.max_turns:
        before = at.figure
        at.figure = solve_turn(trainer, solver, frozen, at.turns + 1, follow=at.turn == RANK_PATH.min_turns - 1)
        at.turn, at.turns = at.turn + 1, at.turns + 1
        if at.turn >= RANK_PATH.min_turns and at.figure > (1 - RANK_PATH.min_turn_gain) * before:
            return


@torch.no_grad()
def add_components(trainer: Trainer, solver: Exact, rank: int) -> None:
    """Random components beside those that there are; their values have the spread of the residuals."""
    als, before = solver.als, cp_rank(trainer.model)
    spread = math.sqrt(als.systems.mean_squared_error())
    _, deviation = product_scales(0.0, spread, rank - before, len(trainer.model.shape))
    trainer.model.resize_cp(rank)
    with trainer.generators.as_global():
        for table in trainer.model.linear_factors:
            torch.nn.init.normal_(table[:, before:], 0.0, deviation)
    take_first(trainer.model, trainer.processes)
    als.refresh()
