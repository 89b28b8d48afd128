"""Candidates, planted tensors and the parts of a search for its tests."""

import math
from types import SimpleNamespace

import numpy as np

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.search.budget import make_budget
from jointensor.search.cross_fit import CrossFitter
from jointensor.search.families import FitOptions
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import fold_entries
from jointensor.search.interruption import Interruption
from jointensor.search.portfolio import Candidate
from jointensor.search.refit import Refitting
from jointensor.search.screening import Screening

BIAS = Candidate("bias", "bias", 0, stage="core")
TABLES = Candidate("tables", "tables", 1, stage="core")
TREES = Candidate("trees", "trees", 5, stage="core")
COMPONENTS = Candidate("julia:2/0", "joint", 6, (2, 0), stage="core")
PLENTY = 1000
"""Fits that a small search never needs."""


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def rmse(predicted, truth):
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


def halves(tensor, learnt):
    order = np.random.default_rng(7).permutation(len(tensor))
    return tensor.take(order[:learnt]), tensor.take(order[learnt:])


def bench(tensor, *candidates, seconds=None, fits=PLENTY, clock=None, groups=(), stopping=lambda: False, costs=()):
    """The parts of a search as :func:`search` puts them together, and its notes."""
    notes = []
    clock = clock or FakeClock()
    data = fold_entries(tensor, groups, 0)
    budget = make_budget(seconds, None if seconds is not None else fits, clock)
    interruption = Interruption(stopping, on_note=notes.append)
    options = FitOptions(device="cpu", groups=groups)
    store = FitStore(None, "")
    fitter = CrossFitter(data, budget, options, store, interruption, on_note=notes.append, clock=clock)
    return SimpleNamespace(
        data=data,
        budget=budget,
        clock=clock,
        fitter=fitter,
        interruption=interruption,
        notes=notes,
        screening=Screening(data, budget, fitter, candidates, on_note=notes.append, costs=costs),
        refitting=Refitting(fitter, budget, interruption, on_note=notes.append),
    )


def along_days(sizes=(20, 15, 24), entries=3600, seed=0):
    """A process of its own along the days of every pair, and a little noise: what was seen, and the other cells."""
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal(sizes)
    path = steps.copy()
    for t in range(1, sizes[2]):
        path[..., t] = 0.9 * path[..., t - 1] + math.sqrt(0.19) * steps[..., t]
    dense = path + 0.2 * rng.standard_normal(sizes)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))
    modes = (Mode("user", sizes[0]), Mode("item", sizes[1]), Mode("day", sizes[2], order="ordered"))
    whole = SparseTensor(cells, dense[tuple(cells.T)], modes)
    return whole.take(np.arange(entries)), whole.take(np.arange(entries, len(cells)))


def additive(sizes=(30, 20), entries=500, seed=0):
    """Biases and noise over two modes: no residual model finds anything in it."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:entries]
    values = sum(rng.standard_normal(size)[cells[:, n]] for n, size in enumerate(sizes))
    return SparseTensor(cells, values + 0.3 * rng.standard_normal(entries), sizes)


def is_inside(predictor, entries, level):
    """Which entries lie inside their intervals."""
    ends = predictor.interval(entries.indices, level)
    return (entries.values >= ends[:, 0]) & (entries.values <= ends[:, 1])
