"""The mean of several exact solutions of Θ_L, which is a CP with all their components.

Least squares over products has many local optima, and each has errors of its own. Their mean has fewer. K solutions of
R components, each factor scaled by K^(−1/N), make one CP of K·R components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from jointensor.models.joint import CP_FACTORS, JointModel, cp_rank
from jointensor.solvers.data_parallel import take_first
from jointensor.solvers.sgd import Exact, FrozenHalf
from jointensor.training.checkpoint import stored
from jointensor.training.exact import sweep_from
from jointensor.training.init import init_linear, score_of_mean
from jointensor.training.state import Snapshot
from jointensor.training.trainer import Trainer

MIN_SOLUTION_GAIN = 0.002
"""Share by which a further solution must lower the validation error of the mean for another one to follow."""

SWEEPS_PER_SOLUTION = 2
"""Sweeps of a further solution, in those of a warm start with one ridge: R and the ridge are known by then."""


@stored
@dataclass
class Averaging:
    """Variables of :func:`average_solutions`."""

    solutions: list[Snapshot] = field(default_factory=list)
    """Whose mean is the best so far."""
    rank: int = 0
    """Components of each."""
    figure: float = math.inf
    """Of their mean, on the validation entries."""
    begun: bool = False
    """Whether the next solution has its random start."""


def average_solutions(trainer: Trainer, solver: Exact, frozen: FrozenHalf) -> None:
    """Solve Θ_L again from other random starts, and keep the mean of the solutions as far as that validates better."""
    wanted, model, g = trainer.recipe.solutions, trainer.model, trainer.model.multilinear
    if wanted < 2 or not len(trainer.valid) or g is None or not model.linear_factors:
        return
    if any(block.multiplies for name, block in g.named_blocks.items() if name != "cp"):
        trainer.note("solutions is not used: the mean of several solutions is one model for CP and biases only")
        return
    with trainer.enter(Averaging) as at:
        if not at.solutions:
            trainer.put_best()
            at.solutions, at.rank, at.figure = [trainer.snapshot()], cp_rank(model), trainer.figure_of(model.score)
            trainer.state.single = at.solutions[0]
        while len(at.solutions) < wanted:
            if not at.begun:
                _start_anew(trainer, solver, at.rank)
                at.begun = True
            sweep_from(trainer, solver, frozen, SWEEPS_PER_SOLUTION * trainer.recipe.sweeps)
            together = [*at.solutions, trainer.snapshot()]
            trainer.put(mean_of_solutions(together, len(model.shape)))
            figure = trainer.figure_of(model.score)
            enough = figure > (1 - MIN_SOLUTION_GAIN) * at.figure
            if figure < at.figure:
                at.solutions, at.figure = together, figure
                trainer.consider()
            at.begun = False
            if enough:
                break
        trainer.put(mean_of_solutions(at.solutions, len(model.shape)))
        solver.als.refresh()


def _start_anew(trainer: Trainer, solver: Exact, rank: int) -> None:
    """Random components, as many as the first solution had."""
    model, moments = trainer.model, trainer.train.moments()
    assert model.multilinear is not None  # it is being solved
    model.resize_cp(rank)
    with trainer.generators.as_global():
        init_linear(model.multilinear, score_of_mean(model, moments), moments[1], trainer.start_kind)
    take_first(model, trainer.processes)
    solver.als.refresh()


def n_solutions(model: JointModel, single: Snapshot | None) -> int:
    """Solutions whose mean a model is, given the first of them; 1 where no mean was taken."""
    return 1 if single is None else cp_rank(model) // single[CP_FACTORS].shape[1]


def solutions_of(model: JointModel, count: int) -> list[Snapshot]:
    """The solutions whose mean a model is; their biases are those of the mean."""
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    factors = state[CP_FACTORS].chunk(count, dim=1)
    return [state | {CP_FACTORS: count ** (1 / len(model.shape)) * one} for one in factors]


def mean_of_solutions(solutions: Sequence[Snapshot], n_modes: int) -> Snapshot:
    """Parameters of the model whose g is the mean of those of several models; of CP and biases, the rest as they are.

    Parameters
    ----------
    solutions
        States of models that differ in g alone.
    n_modes
        Of the tensor: a component is a product of as many factors.
    """
    first, count = solutions[0], len(solutions)
    mean = {
        name: torch.stack([one[name] for one in solutions]).mean(dim=0)
        for name in first
        if name.startswith("multilinear.blocks.") and name != CP_FACTORS
    }
    factors = torch.cat([one[CP_FACTORS] for one in solutions], dim=1)  # (sum of I_n, K · R)
    return first | mean | {CP_FACTORS: factors * count ** (-1 / n_modes)}
