"""Just-in-time compilation before fits are timed: a search with a budget in seconds plans by what fits took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.data.tensor import SparseTensor
from jointensor.search.families import FitOptions, family_of
from jointensor.search.portfolio import Candidate
from jointensor.training.fit import pick_device

LABELS, ENTRIES, VALID = 8, 64, 16
"""Labels of every mode, entries, and how many of these validate: enough for every candidate to run all of its code."""

GPU_ENTRIES, GPU_LABELS = 3072, (2, 2048)
"""The same on a GPU, whose row solver has a kernel of its own for labels with more than 1,024 entries; labels of the
first two modes."""


def warm_up(candidate: Candidate, tensor: SparseTensor, options: FitOptions) -> None:
    """Run a short fit of a candidate to a few entries over modes of the same orders, and predict."""
    sizes, entries = [LABELS] * tensor.n_modes, ENTRIES
    if pick_device(options.device).type == "cuda":
        first, most = GPU_LABELS
        sizes, entries = [first, most, *[LABELS] * (tensor.n_modes - 2)], GPU_ENTRIES
    modes = [Mode(mode.name, size, order=mode.order) for mode, size in zip(tensor.modes, sizes, strict=True)]
    rng = np.random.default_rng(0)
    few = SparseTensor(draw_cells(sizes, entries, rng), rng.standard_normal(entries), modes)
    train, valid = few.take(np.arange(VALID, entries)), few.take(np.arange(VALID))
    family = family_of(candidate)
    shapes = family.warmup_candidates(candidate)
    for one in shapes:
        short = replace(options, short=True, seconds=options.seconds / len(shapes))
        family.fit(one, train, valid, short).predict(valid.indices)
