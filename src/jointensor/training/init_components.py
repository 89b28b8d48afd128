"""Where CP components start: rank-one guesses from the data, where they say anything of unseen entries."""

from __future__ import annotations

import torch
from torch import Tensor

from jointensor.distributed.process_group import ProcessGroup
from jointensor.models.factors import Factors
from jointensor.solvers.entries import Entries
from jointensor.training.init import SPREAD
from jointensor.training.init_rank_one import GENERAL, MOST, Sample, at_most, rank_one_components
from jointensor.training.trainer import Trainer


def guess_components(trainer: Trainer, general: float = GENERAL) -> bool:
    """Put rank-one guesses where the CP components start; components without one keep their random start.

    Only where CP starts around zero, and components are easily lost: one that carries the mean of the
    values starts around it, and has something to hold on to. ``general``: see
    :func:`rank_one_components`. Returns whether there is any guess.
    """
    g, levels = trainer.model.multilinear, trainer.levels
    if g is None or g.cp is None or trainer.recipe.start == "raw" or trainer.model.link != "identity":
        return False
    elsewhere = levels.nonlinear + (levels.linear if "mean" in g.blocks else 0.0)
    carried = levels.linear + levels.nonlinear - elsewhere  # by CP
    if abs(carried) > SPREAD * trainer.processes.moments(trainer.train.values)[1]:
        return False

    def left(entries: Entries) -> Sample:
        return Sample(entries.indices, entries.values - elsewhere)

    samples = left(trainer.train), left(trainer.valid)
    if not trainer.processes.shared:
        return _put(g.cp, rank_one_components(*samples, trainer.model.shape, g.cp.width, general))
    return _guess_together(trainer.processes, g.cp, samples, trainer.model.shape, general)


def _guess_together(
    processes: ProcessGroup, cp: Factors, samples: tuple[Sample, Sample], shape: tuple[int, ...], general: float
) -> bool:
    """The first process guesses from a sample of the entries of all; the others take its components."""
    guessed = False
    with processes.own_random(processes.seed()):
        some = at_most(samples[0], -(-MOST // processes.size))
    indices, values = (torch.cat(processes.gather_rows(one)) for one in (some.indices, some.left))
    if processes.first:
        guessed = _put(cp, rank_one_components(Sample(indices, values), samples[1], shape, cp.width, general))
    processes.broadcast_(cp.stacked)
    processes.same_random()
    return guessed


def _put(cp: Factors, guessed: list[Tensor]) -> bool:
    with torch.no_grad():
        for table, columns in zip(cp.tables, guessed, strict=False):  # no guess at all is an empty list
            guessed_rows = columns.any(dim=1)  # labels that were not in the sample keep their random start
            table[guessed_rows, : columns.shape[1]] = columns[guessed_rows]
    return bool(guessed)
