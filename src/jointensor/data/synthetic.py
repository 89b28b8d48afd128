"""Tensors with a known truth, drawn entry by entry: nothing of size ``prod(shape)`` is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import ConfigError

Network = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""f of the truth: rows ``(entries, modes, F)`` → ``(entries,)``."""


@dataclass(frozen=True)
class Truth:
    """What a synthetic tensor was made from."""

    linear_factors: tuple[NDArray[np.float64], ...]
    """A_n, one ``(I_n, R)`` per mode."""
    nonlinear_factors: tuple[NDArray[np.float64], ...]
    """B_n, one ``(I_n, F)`` per mode."""
    multilinear: NDArray[np.float64]
    """g of every observed entry."""
    nonlinear: NDArray[np.float64]
    """f of every observed entry."""


def make_joint(
    shape: Sequence[int],
    rank: tuple[int, int],
    network: Network | None = None,
    *,
    observed: float | int = 0.2,
    ratio: float | None = 1.0,
    spread: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[SparseTensor, Truth]:
    """A tensor that is a CP of rank R plus a network over F nonlinear factors.

    Parameters
    ----------
    shape
        Size of every mode.
    rank
        ``(R, F)``; multilinear factors are standard normal, nonlinear ones normal.
    network
        f; not needed when F = 0.
    observed
        Share of cells that is observed, or their number.
    ratio
        Standard deviation of the nonlinear part, relative to that of the multilinear part; ``None``: as the network
        gives it.
    spread
        Standard deviation of the nonlinear factors.
    noise
        Standard deviation of the noise, relative to that of the noiseless values.
    seed
        Of factors, cells and noise.
    """
    rng = np.random.default_rng(seed)
    linear = tuple(rng.standard_normal((size, rank[0])) for size in shape)
    nonlinear = tuple(spread * rng.standard_normal((size, rank[1])) for size in shape)
    entries = int(observed) if isinstance(observed, int | np.integer) else round(observed * math.prod(shape))
    indices = draw_cells(shape, entries, rng)
    g = np.ones((entries, rank[0]))
    for table, column in zip(linear, indices.T, strict=True):
        g *= table[column]
    multilinear = g.sum(axis=1)
    f = np.zeros(entries)
    if rank[1]:
        if network is None:
            raise ConfigError(f"F = {rank[1]} nonlinear components need a network")
        f = network(np.stack([t[c] for t, c in zip(nonlinear, indices.T, strict=True)], axis=1))
        if ratio is not None:
            f = f * (ratio * (multilinear.std() if rank[0] else 1.0) / f.std())
    values = multilinear + f
    values = values + noise * values.std() * rng.standard_normal(entries)
    return SparseTensor(indices, values, tuple(shape)), Truth(linear, nonlinear, multilinear, f)


def draw_cells(shape: Sequence[int], entries: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Distinct cells, uniformly at random, ``(entries, modes)``; works for any shape."""
    if not 0 < entries <= math.prod(shape):
        raise ConfigError(f"{entries} entries cannot be drawn from {math.prod(shape)} cells")
    cells = np.empty((0, len(shape)), dtype=np.int64)
    while len(cells) < entries:
        more = np.stack([rng.integers(size, size=max(entries // 4, 16) + entries) for size in shape], axis=1)
        cells = np.concatenate([cells, more])
        _, first = np.unique(cell_keys(cells, shape), return_index=True)
        cells = cells[np.sort(first)]
    return cells[:entries]
