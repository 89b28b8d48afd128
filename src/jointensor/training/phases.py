"""The algorithm of the paper, one function per phase.

warm start (one half)  ─▶  alternate (f | g fixed, g | f fixed)  ─▶  refine (both)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import nn

from jointensor.solvers.entries import Fixed
from jointensor.solvers.failures import DeadError, HopelessError
from jointensor.solvers.sgd import Descent, Exact
from jointensor.solvers.stopping import Patience
from jointensor.training.exact import make_exact, solve_again, solve_turn, solve_warm_start
from jointensor.training.gibbs_driver import sample
from jointensor.training.init_components import guess_components
from jointensor.training.journal import Snapshot
from jointensor.training.trainer import STEPS, Trainer

CLEARLY = 0.005
"""Share by which Θ_N alone must validate better than Θ_L alone to be estimated first."""


class HalfModel(NamedTuple):
    """One half with what its training needs: Θ_L with μ_L, or Θ_N with μ_N."""

    module: nn.Module
    lr: float


def train(trainer: Trainer) -> None:
    """All phases of the recipe; a model with one half only, or naive training, goes straight to the last."""
    model, exact = trainer.model, None
    if trainer.recipe.training == "alternating":
        exact = make_exact(trainer)
        if model.multilinear is not None and model.nonlinear is not None:
            warm_start(trainer, exact)
            alternate(trainer, exact)
        elif exact is not None:
            if trainer.recipe.linear_solver != "gibbs":
                solve(trainer, exact)
                return
            draw_alone(trainer, exact)
            return
        else:
            trainer.journal.decide(lambda: guess_components(trainer))
    refine(trainer)
    if trainer.recipe.linear_solver == "gibbs" and exact is not None:
        draw(trainer)


def solve(trainer: Trainer, exact: Exact) -> None:
    """A model that is multilinear only, by exact sweeps until validation stops changing."""
    solve_warm_start(trainer, exact, Fixed())
    rule = trainer.stopping_rule()
    for round_ in range(1, trainer.recipe.rounds + trainer.recipe.refine_epochs + 1):
        if rule.report(solve_turn(trainer, exact, Fixed(), round_)):
            trainer.converged = True
            break


def draw_alone(trainer: Trainer, exact: Exact) -> None:
    """A model that is multilinear only, drawn from its random start.

    Components may end as spikes where no entry is. Where the draws are worse than what least squares finds, they are
    drawn once more from there, and the better ones are kept.
    """
    g = trainer.model.multilinear
    assert g is not None  # there is something to draw
    if g.cp is None:
        draw(trainer)
        return
    start = trainer.state()
    solved = solve_warm_start(trainer, exact, Fixed())
    g.forget_tables()  # they have learnt by heart what is to be drawn
    other = trainer.state()
    trainer.put(start)
    draw(trainer)
    first, figure = trainer.best_state, trainer.figure_of(trainer.model.score)
    if figure <= solved or first is None:
        return
    trainer.best_state = other
    draw(trainer)
    if trainer.figure_of(trainer.model.score) > figure:
        trainer.best_state = first
        trainer.put(first)


def draw(trainer: Trainer) -> None:
    """Draw Θ_L from its posterior, the other half as it is; then that half once more for the mean of the draws.

    What it learns there is kept where it validates better.
    """
    if trainer.best_state is not None:
        trainer.put(trainer.best_state)
    f = trainer.model.nonlinear
    sample(trainer, Fixed() if f is None else trainer.fix(f))
    if f is None or trainer.model.multilinear is None:
        return
    before, state = trainer.figure_of(trainer.model.score), trainer.state()
    half, fixed = _halves(trainer)["nonlinear"], trainer.fix(trainer.model.multilinear)
    descent = trainer.descent(half._replace(lr=trainer.recipe.lr_refine or half.lr))
    descent.falls_within = 1
    figure = trainer.epoch(half.module, fixed, descent, "draw: nonlinear", keep=False)
    descent.settle()
    if len(trainer.valid) and figure < before:
        state = trainer.state()
    trainer.put(state)
    trainer.best_state = state


def warm_start(trainer: Trainer, exact: Exact | None = None) -> None:
    """Estimate one half as if the other did not exist: Θ_L first, as the paper recommends.

    "We first ignore the nonlinear parameters and initialize Θ_L by approximately solving … with a
    fixed number of iterations." All that counts of the other half is the constant it starts at. The
    states are not candidates for the best one, since the other half is still random.
    """
    if trainer.recipe.first == "auto":
        trainer.first = _better_first(trainer, exact)
    else:
        trainer.first = trainer.recipe.first
        _estimate(trainer, exact, trainer.first)
        if trainer.first == "nonlinear" and not trainer.recipe.rounds and trainer.model.multilinear is not None:
            trainer.model.multilinear.become(trainer.levels.linear)  # no turn of it will follow


def _better_first(trainer: Trainer, exact: Exact | None) -> str:
    """Estimate each half alone and keep the one that validates better; Θ_L, unless Θ_N is clearly better."""
    start = trainer.state()
    linear = _estimate(trainer, exact, "linear")
    solved = trainer.state()
    trainer.put(start)
    better = _best_epoch(trainer) < (1 - CLEARLY) * linear
    if better:
        found = {name: value for name, value in trainer.state().items() if name.startswith("nonlinear.")}
        solved = Snapshot({**solved, **found})
    trainer.put(solved)
    if exact is not None:
        exact.als.refresh()
    return "nonlinear" if better else "linear"


def _estimate(trainer: Trainer, exact: Exact | None, name: str) -> float:
    """Train one half alone, the other a constant; returns the figure it ends with."""
    half = _halves(trainer)[name]
    level = trainer.levels.nonlinear if name == "linear" else trainer.levels.linear
    fixed, figure = Fixed(level, level), math.inf
    if name == "linear" and exact is not None:
        return solve_warm_start(trainer, exact, fixed)
    if name == "linear":
        trainer.journal.decide(lambda: guess_components(trainer))
    descent = trainer.descent(half)
    for _ in range(trainer.recipe.warm_epochs):
        figure = trainer.epoch(half.module, fixed, descent, "warm start", keep=False)
    descent.settle()
    return figure


def _best_epoch(trainer: Trainer) -> float:
    """Train Θ_N alone for as long as that lowers the validation error; ends at its lowest.

    Θ_L is set to the constant it stands for, so that what is found is a model like any other and may be kept.
    """
    model, level = trainer.model, trainer.levels.linear
    assert model.multilinear is not None  # there are two halves
    constant = model.multilinear.become(level)
    half, rule, figure = _halves(trainer)["nonlinear"], Patience(2), math.inf
    descent = trainer.descent(half)
    best, state = math.inf, trainer.state()
    # epochs of few steps count for less; none has less than one
    times = max(1, STEPS * min(trainer.batch_size, trainer.entries) // trainer.entries)
    for _ in range(times * trainer.recipe.warm_epochs):
        try:
            figure = trainer.epoch(half.module, Fixed(level, level), descent, "warm start: nonlinear", keep=constant)
        except (DeadError, HopelessError):  # then Θ_L carries the fit
            break
        if figure < best:
            best, state = figure, trainer.validated_state(descent)
        if rule.report(figure):
            break
    trainer.put(state)
    return best


def alternate(trainer: Trainer, exact: Exact | None = None) -> None:
    """Algorithm 1: train one half with the other fixed, then the other way round, and so on.

    After a warm start of Θ_L each round updates Θ_N by eq. (8), then Θ_L by eq. (9). The fixed half
    is a constant during a turn and is evaluated once.
    """
    recipe, halves = trainer.recipe, _halves(trainer)
    turns = ("nonlinear", "linear") if (trainer.first or recipe.first) == "linear" else ("linear", "nonlinear")
    descents = {name: trainer.descent(halves[name]) for name in turns if name == "nonlinear" or exact is None}
    rule = trainer.stopping_rule()
    for round_ in range(1, recipe.rounds + 1):
        for turn, (name, other) in enumerate((turns, turns[::-1]), start=2 * (round_ - 1)):
            if recipe.turns and turn >= recipe.turns:
                return
            fixed = trainer.fix(halves[other].module)
            if name == "linear" and exact is not None:
                if round_ == 1 and trainer.first == "nonlinear":  # Θ_L is estimated next to Θ_N for the first time
                    again = solve_again if recipe.first == "auto" else solve_warm_start
                    again(trainer, exact, fixed)
                for _ in range(recipe.epochs_per_turn):
                    figure = solve_turn(trainer, exact, fixed, round_)
                continue
            for _ in range(recipe.epochs_per_turn):
                figure = trainer.epoch(halves[name].module, fixed, descents[name], f"alternate: {name}", round_)
            descents[name].settle()
        if rule.report(figure):
            trainer.converged = True
            break


def refine(trainer: Trainer) -> None:
    """Train all parameters together until validation stops changing: eq. (6) by Adam or SGD."""
    recipe, rule = trainer.recipe, trainer.stopping_rule()
    trainer.converged = trainer.converged and not recipe.refine_epochs  # what counts is the last phase
    if recipe.cycle:
        _refine_in_cycles(trainer)
        return
    descent = _joint_descent(trainer)
    for _ in range(recipe.refine_epochs):
        if rule.report(trainer.epoch(trainer.model.score, Fixed(), descent, "refine")):
            trainer.converged = True
            break


def _refine_in_cycles(trainer: Trainer) -> None:
    """Let the learning rate fall to zero within some epochs; again in twice as many, while that gains much."""
    recipe, left, length = trainer.recipe, trainer.recipe.refine_epochs, trainer.recipe.cycle
    while left > 0:
        before, descent = trainer.best_figure, _joint_descent(trainer)
        descent.average, descent.falls_within = None, length  # a rate that falls to zero averages by itself
        for _ in range(min(length, left)):
            trainer.epoch(trainer.model.score, Fixed(), descent, "refine")
        left, length = left - length, 2 * length
        if len(trainer.valid) and not trainer.best_figure < (1 - recipe.cycle_gain) * before:
            trainer.converged = True
            break


def _joint_descent(trainer: Trainer) -> Descent:
    """Both halves from the best state so far."""
    if trainer.best_state is not None:
        trainer.put(trainer.best_state)
    lr = trainer.recipe.lr_refine
    return trainer.descent(*(half._replace(lr=lr or half.lr) for half in _halves(trainer).values()))


def _halves(trainer: Trainer) -> dict[str, HalfModel]:
    model, recipe = trainer.model, trainer.recipe
    halves = {"linear": (model.multilinear, recipe.lr_linear), "nonlinear": (model.nonlinear, recipe.lr_nonlinear)}
    return {name: HalfModel(module, lr) for name, (module, lr) in halves.items() if module is not None}
