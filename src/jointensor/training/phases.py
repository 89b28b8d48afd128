"""The algorithm of the paper, one function per phase.

warm start (one half)  ─▶  alternate (f | g fixed, g | f fixed)  ─▶  refine (both)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from jointensor.training.exact import make_exact, solve_warm_start
from jointensor.training.rank_one import Sample, rank_one_components
from jointensor.training.solvers import Exact, Solver
from jointensor.training.start import SPREAD
from jointensor.training.state import Entries, Fixed
from jointensor.training.trainer import Trainer


class HalfModel(NamedTuple):
    """One half with what its training needs: Θ_L with μ_L, or Θ_N with μ_N."""

    module: nn.Module
    lr: float


def train(trainer: Trainer) -> None:
    """All phases of the recipe; a model with one half only, or naive training, goes straight to the last."""
    model = trainer.model
    if trainer.recipe.training == "alternating":
        exact = make_exact(trainer)
        if model.multilinear is not None and model.nonlinear is not None:
            warm_start(trainer, exact)
            alternate(trainer, exact)
        elif exact is not None:
            solve(trainer, exact)
            return
        else:
            guess_components(trainer)
    refine(trainer)


def solve(trainer: Trainer, exact: Exact) -> None:
    """A model that is multilinear only, by exact sweeps until validation stops changing."""
    g = trainer.model.multilinear
    assert g is not None  # there is an exact solver for it
    solve_warm_start(trainer, exact, Fixed())
    rule = trainer.stopping_rule()
    for round_ in range(1, trainer.recipe.rounds + 1):
        if rule.report(trainer.epoch(g, Fixed(), exact, "alternate: linear", round_)):
            trainer.converged = True
            break


def warm_start(trainer: Trainer, exact: Exact | None = None) -> None:
    """Estimate one half as if the other did not exist: Θ_L first, as the paper recommends.

    "We first ignore the nonlinear parameters and initialize Θ_L by approximately solving … with a
    fixed number of iterations." All that counts of the other half is the constant it starts at. The
    states are not candidates for the best one, since the other half is still random.
    """
    recipe = trainer.recipe
    half = _halves(trainer)[recipe.first]
    level = trainer.levels.nonlinear if recipe.first == "linear" else trainer.levels.linear
    if recipe.first == "linear" and exact is not None:
        solve_warm_start(trainer, exact, Fixed(level, level))
        return
    if recipe.first == "linear":
        guess_components(trainer)
    descent = trainer.descent(half)
    for _ in range(recipe.warm_epochs):
        trainer.epoch(half.module, Fixed(level, level), descent, "warm start", keep=False)


def guess_components(trainer: Trainer) -> None:
    """Put rank-one guesses where the CP components start; components without one keep their random start.

    Only where CP starts around zero, and components are easily lost: one that carries the mean of the
    values starts around it, and has something to hold on to.
    """
    g, levels = trainer.model.multilinear, trainer.levels
    if g is None or g.cp is None or trainer.recipe.start == "raw" or trainer.model.link != "identity":
        return
    elsewhere = levels.nonlinear + (levels.linear if "mean" in g.blocks else 0.0)
    carried = levels.linear + levels.nonlinear - elsewhere  # by CP
    if abs(carried) > SPREAD * float(trainer.train.values.std(correction=0)):
        return

    def left(entries: Entries) -> Sample:
        return Sample(entries.indices, entries.values - elsewhere)

    guessed = rank_one_components(left(trainer.train), left(trainer.valid), trainer.model.shape, g.cp.width)
    with torch.no_grad():
        for table, columns in zip(g.cp.tables, guessed, strict=False):  # no guess at all is an empty list
            guessed_rows = columns.any(dim=1)  # labels that were not in the sample keep their random start
            table[guessed_rows, : columns.shape[1]] = columns[guessed_rows]


def alternate(trainer: Trainer, exact: Exact | None = None) -> None:
    """Algorithm 1: train one half with the other fixed, then the other way round, and so on.

    After a warm start of Θ_L each round updates Θ_N by eq. (8), then Θ_L by eq. (9). The fixed half
    is a constant during a turn and is evaluated once.
    """
    recipe, halves = trainer.recipe, _halves(trainer)
    turns = ("nonlinear", "linear") if recipe.first == "linear" else ("linear", "nonlinear")
    solvers: dict[str, Solver] = {name: trainer.descent(halves[name]) for name in turns}
    if exact is not None:
        solvers["linear"] = exact
    rule = trainer.stopping_rule()
    for round_ in range(1, recipe.rounds + 1):
        for name, other in (turns, turns[::-1]):
            fixed = trainer.fix(halves[other].module)
            for _ in range(recipe.epochs_per_turn):
                figure = trainer.epoch(halves[name].module, fixed, solvers[name], f"alternate: {name}", round_)
        if rule.report(figure):
            trainer.converged = True
            break


def refine(trainer: Trainer) -> None:
    """Train all parameters together until validation stops changing: eq. (6) by Adam or SGD."""
    if trainer.best_state is not None:
        trainer.model.load_state_dict(trainer.best_state)
    lr = trainer.recipe.lr_refine
    descent = trainer.descent(*((half.module, lr or half.lr) for half in _halves(trainer).values()))
    rule = trainer.stopping_rule()
    trainer.converged = trainer.converged and not trainer.recipe.refine_epochs  # what counts is the last phase
    for _ in range(trainer.recipe.refine_epochs):
        if rule.report(trainer.epoch(trainer.model.score, Fixed(), descent, "refine")):
            trainer.converged = True
            break


def _halves(trainer: Trainer) -> dict[str, HalfModel]:
    model, recipe = trainer.model, trainer.recipe
    halves = {"linear": (model.multilinear, recipe.lr_linear), "nonlinear": (model.nonlinear, recipe.lr_nonlinear)}
    return {name: HalfModel(module, lr) for name, (module, lr) in halves.items() if module is not None}
