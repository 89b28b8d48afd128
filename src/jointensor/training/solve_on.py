"""Exact solutions of Θ_L with more entries: a few sweeps from where they are, with the ridge that was chosen."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from jointensor.data.store import Entries
from jointensor.data.tensor import SparseTensor
from jointensor.kernels import pick_engine
from jointensor.models.joint import CP_FACTORS, JointModel
from jointensor.predictors.joint import JointPredictor, Solved
from jointensor.predictors.tables import refit_tables
from jointensor.solvers.als import Als
from jointensor.solvers.systems import SystemsInMemory
from jointensor.training.average import mean_of_solutions, solutions_of
from jointensor.training.fit import pick_device
from jointensor.training.recipe import Recipe
from jointensor.training.state import Snapshot

MAX_NUMBERS = 1 << 26
"""Numbers in the factor matrices of the mean, at most (256 MiB): with very many labels fewer solutions are taken."""

SWEEPS_ON = 2
"""Sweeps of every solution: it is near its optimum already."""


def solve_on(
    fits: Sequence[JointPredictor],
    tensor: SparseTensor,
    recipe: Recipe,
    *,
    device: str = "auto",
    engine: str = "auto",
    stopping: Callable[[], bool] = lambda: False,
) -> JointPredictor:
    """The mean of the solutions of some fits, each solved on with the entries of a tensor.

    The first solutions of all fits come before the second ones; how many are taken is a question of memory.

    Parameters
    ----------
    fits
        Whose solutions are solved on, each with its own ridge.
    tensor
        All entries to learn from, those that the solutions have seen included.
    recipe
        By which they were solved.
    device, engine
        As of :func:`~jointensor.training.fit.fit`.
    stopping
        Asked between solutions; those that are finished then are enough.

    Raises
    ------
    RuntimeError
        If there is nothing to solve on, or no solution is finite.
    """
    place = pick_device(device)
    kernels, train = pick_engine(engine, place.type), Entries.of(tensor, place).by_last_mode()
    model = copy.deepcopy(fits[0].model).to(place)
    if model.multilinear is None or model.multilinear.cp is None:
        raise RuntimeError("a model without components cannot be solved on")
    model.multilinear.place(lambda n: tensor.modes[n].coordinates())
    als = Als(model.multilinear, SystemsInMemory(model.multilinear, train.indices, kernels),
              spread=train.moments()[1] or 1.0)  # fmt: skip
    als.pull, als.smoothness = recipe.pull, recipe.smoothness
    found: list[Snapshot] = []
    numbers = 0
    for how, solution in _in_turn(fits):
        numbers += solution[CP_FACTORS].numel()
        if found and (stopping() or numbers > MAX_NUMBERS):
            break
        als.ridge = how.ridge
        als.set_links(how.links)
        _sweep_from(model, als, solution, train)
        if math.isfinite(als.systems.mean_squared_error()):
            found.append({name: value.detach().clone() for name, value in model.state_dict().items()})
    if not found:
        raise RuntimeError("the exact solutions are not finite with more entries")
    model.take(mean_of_solutions(found, len(model.shape)))
    return replace(fits[0], model=model.eval(), fallback=refit_tables(fits[0].fallback, tensor), solved=None)


def _in_turn(fits: Sequence[JointPredictor]) -> list[tuple[Solved, Snapshot]]:
    """Solutions and how they were found: the first solution of every fit, then the second ones."""
    queues = []
    for one in fits:
        if one.solved is None:
            raise RuntimeError("a model that was not solved cannot be solved on")
        queues.append([(one.solved, solution) for solution in solutions_of(one.model, one.solved.solutions)])
    most = max(len(queue) for queue in queues)
    return [queue[k] for k in range(most) for queue in queues if k < len(queue)]


@torch.no_grad()
def _sweep_from(model: JointModel, als: Als, solution: Snapshot, train: Entries) -> None:
    """Sweep from a solution, whose R may be another one than that of the model."""
    model.take(solution)
    als.refresh()
    with als.threads(len(train)):
        for _ in range(SWEEPS_ON):
            als.sweep(train.values)
