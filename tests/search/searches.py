"""Candidates and planted tensors for tests of the search."""

import math

import numpy as np

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.search.portfolio import Candidate

BIAS = Candidate("bias", "bias", 0, core=True)
TABLES = Candidate("tables", "tables", 1, core=True)
COMPONENTS = Candidate("julia:2/0", "joint", 6, (2, 0), core=True)
LONG = 600.0
"""Seconds that a small search never needs: what it does cannot depend on the clock."""


def rmse(said, truth):
    return float(np.sqrt(np.mean((said - truth) ** 2)))


def halves(tensor, learnt):
    order = np.random.default_rng(7).permutation(len(tensor))
    return tensor.take(order[:learnt]), tensor.take(order[learnt:])


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
