"""Just-in-time compilation before fits are timed: a search with a budget in seconds plans by what fits took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.data.tensor import SparseTensor
from jointensor.search.families import FitOptions, family_of
from jointensor.search.portfolio import Candidate

LABELS, ENTRIES, VALID = 8, 64, 16
"""Labels of every mode, entries, and how many of these validate: enough for every candidate to run all of its code."""


def warm_up(candidate: Candidate, tensor: SparseTensor, options: FitOptions) -> None:
    """Run a short fit of a candidate to a few entries over modes of the same orders, and predict."""
    modes = [Mode(mode.name, LABELS, order=mode.order) for mode in tensor.modes]
    rng = np.random.default_rng(0)
    cells = draw_cells([LABELS] * len(modes), ENTRIES, rng)
    few = SparseTensor(cells, rng.standard_normal(ENTRIES), modes)
    train, valid = few.take(np.arange(VALID, ENTRIES)), few.take(np.arange(VALID))
    family_of(candidate).fit(candidate, train, valid, replace(options, short=True)).predict(valid.indices)
