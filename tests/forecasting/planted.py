"""Tensors whose future is known up to noise of a known size."""

import numpy as np

from jointensor import SparseTensor
from jointensor.data.modes import Mode


def seasonal_factors(steps=180, places=8, kinds=3, season=7, noise=0.3, memory=0.8, observed=0.9, seed=0):
    """place × kind × day: a weekly season of two components, and a common autoregression; returns the truth, too.

    The truth, ``(places, kinds, steps)``, is what is left when the noise of every entry is taken away.
    """
    rng = np.random.default_rng(seed)
    drift = np.zeros(steps)
    for t in range(1, steps):
        drift[t] = memory * drift[t - 1] + 0.3 * rng.standard_normal()
    phases = rng.standard_normal((season, 2))[np.arange(steps) % season]  # (steps, 2)
    time = np.column_stack([phases, drift])  # (steps, 3)
    a, b = 1 + rng.random((places, 3)), 1 + rng.random((kinds, 3))
    truth = 10 + np.einsum("pr,kr,tr->pkt", a, b, time)
    values = truth + noise * rng.standard_normal(truth.shape)
    cells = np.argwhere(rng.random(truth.shape) < observed)
    modes = (
        Mode("place", places, tuple(f"P{n}" for n in range(places))),
        Mode("kind", kinds, tuple("abcdefgh"[:kinds])),
        Mode("day", steps, tuple(map(str, days(steps))), "ordered"),
    )
    return SparseTensor(cells, values[tuple(cells.T)], modes), truth


def days(count, first="2024-01-01"):
    """ISO dates that follow each other."""
    return np.datetime64(first) + np.arange(count)
