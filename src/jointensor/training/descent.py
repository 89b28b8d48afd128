"""Gradient descent of some modules until validation stops improving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from jointensor.data.store import Half
from jointensor.solvers.sgd import FrozenHalf, Sgd
from jointensor.solvers.stopping import Either
from jointensor.training.checkpoint import stored
from jointensor.training.state import Snapshot
from jointensor.training.trainer import Trainer


class HalfModel(NamedTuple):
    """One half with what its training needs: Θ_L with μ_L, or Θ_N with μ_N."""

    module: nn.Module
    lr: float


def joint_halves(trainer: Trainer) -> list[HalfModel]:
    """Both halves, with the learning rate of refinement."""
    lr = trainer.recipe.lr_refine
    return [half._replace(lr=lr or half.lr) for half in halves_of(trainer).values()]


def halves_of(trainer: Trainer) -> dict[str, HalfModel]:
    """The halves of the model by name."""
    model, recipe = trainer.model, trainer.recipe
    halves = {"linear": (model.multilinear, recipe.lr_linear), "nonlinear": (model.nonlinear, recipe.lr_nonlinear)}
    return {name: HalfModel(module, lr) for name, (module, lr) in halves.items() if module is not None}


@stored
@dataclass
class Descent:
    """Variables of :func:`descend`."""

    begun: bool = False
    epoch: int = 0
    """Epochs so far; of the present cycle, where there are cycles."""
    rule: Either | None = None
    past: int = 0
    """Epochs of earlier cycles."""
    length: int = 0
    """Epochs of the present cycle."""
    before: float = math.inf
    """Best figure before it."""
    figure: float = math.inf
    """Best figure so far."""
    best: Snapshot | None = None
    ended: bool = False
    """Whether a rule ended it."""


def descend(
    trainer: Trainer,
    at: Descent,
    half: Half,
    frozen: FrozenHalf,
    modules: Sequence[HalfModel],
    phase: str,
    *,
    cycles: int = 0,
) -> None:
    """Train modules by gradient descent until validation stops improving.

    Parameters
    ----------
    at
        Where it is; with a figure and a state to begin from, where there is one.
    half, frozen
        What the modules are a part of, and the rest of the score.
    modules
        With their learning rates.
    phase
        For the history.
    cycles
        Most cycles of the learning rate, where the recipe has cycles; 0: as many as its epochs allow.
    """
    recipe = trainer.recipe
    if recipe.cycle:
        _descend_in_cycles(trainer, at, half, frozen, modules, phase, cycles)
        return
    if not at.begun and at.best is not None:
        trainer.put(at.best)
    at.begun, at.rule = True, at.rule or trainer.stopping_rule()
    sgd = trainer.sgd(phase, *modules)
    while at.epoch < recipe.refine_epochs and not at.ended:
        figure = trainer.epoch(half, frozen, sgd, phase)
        _keep_best(trainer, at, figure, sgd)
        at.epoch += 1
        at.ended = at.rule.report(figure)


def _descend_in_cycles(
    trainer: Trainer,
    at: Descent,
    half: Half,
    frozen: FrozenHalf,
    modules: Sequence[HalfModel],
    phase: str,
    cycles: int,
) -> None:
    """Let the learning rate fall to zero within some epochs; again in twice as many, while that gains much."""
    recipe = trainer.recipe
    most = min(recipe.refine_epochs, (2**cycles - 1) * recipe.cycle) if cycles else recipe.refine_epochs
    while at.past < most and not at.ended:
        if not at.begun:
            if at.best is not None:
                trainer.put(at.best)
            at.begun, at.length, at.before = True, at.length or recipe.cycle, at.figure
        # a rate that falls to zero averages by itself
        sgd = trainer.sgd(phase, *modules, average=False, falls_within=at.length)
        while at.epoch < min(at.length, most - at.past):
            _keep_best(trainer, at, trainer.epoch(half, frozen, sgd, phase), sgd)
            at.epoch += 1
        gained = at.figure < (1 - recipe.cycle_gain) * at.before
        at.past, at.length, at.epoch, at.begun = at.past + at.length, 2 * at.length, 0, False
        at.ended = bool(len(trainer.valid)) and not gained


def _keep_best(trainer: Trainer, at: Descent, figure: float, sgd: Sgd) -> None:
    """Without validation entries the last state is the best known."""
    if figure < at.figure or not len(trainer.valid):
        at.figure, at.best = figure, trainer.validated_snapshot(sgd)
