"""Initialisation of CP components by rank-one fits, where these predict held-out entries."""

from __future__ import annotations

import torch
from torch import Tensor

from jointensor.data.store import Entries
from jointensor.models.factors import Factors
from jointensor.random_state import Generators, seed_of
from jointensor.solvers.data_parallel import share_random_state
from jointensor.training.init import SPREAD, Levels
from jointensor.training.init_rank_one import MAX_ENTRIES, MIN_GENERALISATION, at_most, rank_one_components
from jointensor.training.trainer import Trainer


def init_components(trainer: Trainer, general: float = MIN_GENERALISATION, levels: Levels | None = None) -> bool:
    """Set the CP components to rank-one fits; components without one keep their random values.

    Only where CP starts around zero, and components are easily lost: one that carries the mean of the
    values starts around it, and has something to hold on to. ``general``: see
    :func:`rank_one_components`. ``levels``: where the halves start, if not as the state says. Returns whether any
    component was set.
    """
    g, levels = trainer.model.multilinear, levels or trainer.state.levels
    recipe = trainer.recipe
    if g is None or g.cp is None or trainer.model.link != "identity":
        return False
    if recipe.start == "raw" or recipe.guesses == "never":
        return False
    elsewhere = levels.nonlinear + (levels.linear if "mean" in g.blocks else 0.0)
    carried = levels.linear + levels.nonlinear - elsewhere  # by CP
    if abs(carried) > SPREAD * trainer.train.moments()[1]:
        return False

    def residuals(entries: Entries) -> Entries:
        return Entries(entries.indices, entries.values - elsewhere)

    samples = residuals(trainer.train.sample()), residuals(trainer.valid)
    if trainer.processes.shared:
        return trainer.processes.decide(lambda: _init_together(trainer, g.cp, samples, general))  # type: ignore[arg-type]
    return _put(g.cp, rank_one_components(*samples, trainer.model.shape, g.cp.width, trainer.generators, general))


def _init_together(trainer: Trainer, cp: Factors, samples: tuple[Entries, Entries], general: float) -> bool:
    """The first process fits a sample of the entries of all; the others take its components."""
    processes, generators, found = trainer.processes, trainer.generators, False
    own = Generators(generators.device, processes.rank, seed_of(generators.state()))
    some = at_most(samples[0], -(-MAX_ENTRIES // processes.size), own)
    indices, values = (torch.cat(processes.gather_rows(one)) for one in (some.indices, some.values))
    if processes.first:
        train = Entries(indices, values)
        found = _put(cp, rank_one_components(train, samples[1], trainer.model.shape, cp.width, generators, general))
    processes.broadcast_(cp.stacked)
    share_random_state(generators, processes)
    return found


def _put(cp: Factors, found: list[Tensor]) -> bool:
    with torch.no_grad():
        for table, columns in zip(cp.tables, found, strict=False):  # an empty list where nothing was found
            rows = columns.any(dim=1)  # labels that were not in the sample keep their random values
            table[rows, : columns.shape[1]] = columns[rows]
    return bool(found)
