"""Where CP components start: rank-one guesses from the data, where they say anything of unseen entries."""

from __future__ import annotations

import torch

from jointensor.training.rank_one import GENERAL, Sample, rank_one_components
from jointensor.training.start import SPREAD
from jointensor.training.state import Entries
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
    if abs(carried) > SPREAD * float(trainer.train.values.std(correction=0)):
        return False

    def left(entries: Entries) -> Sample:
        return Sample(entries.indices, entries.values - elsewhere)

    guessed = rank_one_components(left(trainer.train), left(trainer.valid), trainer.model.shape, g.cp.width, general)
    with torch.no_grad():
        for table, columns in zip(g.cp.tables, guessed, strict=False):  # no guess at all is an empty list
            guessed_rows = columns.any(dim=1)  # labels that were not in the sample keep their random start
            table[guessed_rows, : columns.shape[1]] = columns[guessed_rows]
    return bool(guessed)
