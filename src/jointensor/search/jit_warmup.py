"""What candidates need compiled, compiled before their fits are timed: a search plans by what fits took."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.data.tensor import SparseTensor
from jointensor.search.portfolio import Candidate, fit_candidate

LABELS, ENTRIES, LEFT_OUT = 8, 64, 16
"""Labels of every mode, entries, and how many of these are left out, in what is rehearsed with."""


def scene_of(candidate: Candidate) -> tuple[object, ...] | None:
    """What decides which code runs: two candidates with the same need one rehearsal. None where all is compiled."""
    if candidate.kind in ("bias", "tables"):
        return None
    blocks = re.sub(r":[^+]*", "", candidate.linear)  # without sizes and modes
    return candidate.kind, blocks, candidate.nonlinear, *(size > 0 for size in candidate.rank)


def rehearse(candidate: Candidate, tensor: SparseTensor, **how: Any) -> None:
    """Fit a candidate, shortly, to a handful of entries over modes of the same kinds, and ask it."""
    modes = [Mode(mode.name, LABELS, order=mode.order) for mode in tensor.modes]
    rng = np.random.default_rng(0)
    cells = draw_cells([LABELS] * len(modes), ENTRIES, rng)
    few = SparseTensor(cells, rng.standard_normal(ENTRIES), modes)
    learnt, left_out = few.take(np.arange(LEFT_OUT, ENTRIES)), few.take(np.arange(LEFT_OUT))
    fit_candidate(candidate, learnt, left_out, short=True, **how).part.predict(left_out.indices)
