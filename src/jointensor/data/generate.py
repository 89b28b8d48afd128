"""Synthetic tensors of any order, size, density, rank, skew and noise, drawn entry by entry.

    value = Σ_r Π_n A_n(i_n, r)  +  Σ_f σ(Σ_n B_n(i_n, f) / √N)  +  noise

Values are made in blocks, so memory is a few times that of the entries: Enron's shape costs what its
entries cost. :func:`~jointensor.data.synthetic.make_joint` is the smaller sibling, with any network as f and the
parts of every value kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import ConfigError
from jointensor.registry import nearest

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]

NONLINEARITIES: dict[str, Curve] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "sine": lambda x: np.sin(2.0 * x),
    "square": np.square,
    "step": np.sign,
}
"""Choices for σ."""

BLOCK = 1 << 18
"""Entries whose values are made at a time."""
MAX_SPARSE_DENSITY = 0.25
"""Density above which cells are drawn from a list of all cells, which is then at most four times the entries."""

MIN_NEW_SHARE = 0.05
"""Share of drawn cells that must be new; with less, the skew is halved."""
MAX_SKEWED_LABELS = 10**8
"""Labels of a mode for which a list of popularities is held in memory."""


@dataclass(frozen=True)
class SyntheticSpec:
    """Size, structure and noise of a synthetic tensor."""

    shape: tuple[int, ...]
    """Size of every mode, two at least."""
    entries: int
    """Number of observed cells."""
    rank: tuple[int, int] = (3, 0)
    """R and F."""
    nonlinearity: str = "tanh"
    """σ of the nonlinear part."""
    ratio: float = 1.0
    """Standard deviation of the nonlinear part, relative to that of the multilinear part."""
    skew: float = 0.0
    """Zipf exponent of how often labels occur; 0 makes all alike. It flattens where popular cells run out."""
    noise: float = 0.0
    """Standard deviation of the noise, relative to that of the noiseless values."""
    seed: int = 0
    """Seed of factors, cells and noise."""

    def __post_init__(self) -> None:
        if len(self.shape) < 2 or min(self.shape) < 1:
            raise ConfigError(f"shape {self.shape}: give two sizes or more, each at least 1")
        if not 0 < self.entries <= math.prod(self.shape):
            raise ConfigError(f"{self.entries:,} entries cannot be drawn from {math.prod(self.shape):,} cells")
        if min(self.rank) < 0 or sum(self.rank) == 0:
            raise ConfigError(f"rank {self.rank[0]}/{self.rank[1]} has no components; give at least one")
        if self.nonlinearity not in NONLINEARITIES:
            raise ConfigError(f"nonlinearity '{self.nonlinearity}': {nearest(self.nonlinearity, NONLINEARITIES)}")
        for name, value in (("ratio", self.ratio), ("skew", self.skew), ("noise", self.noise), ("seed", self.seed)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} {value}: give a finite number that is not negative")


@dataclass(frozen=True)
class Planted:
    """The factors of a synthetic tensor."""

    linear: tuple[NDArray[np.float32], ...]
    """One ``(I_n, R)`` per mode."""
    nonlinear: tuple[NDArray[np.float32], ...]
    """One ``(I_n, F)`` per mode."""
    nonlinear_scale: float
    """Factor of the nonlinear part."""


def generate(spec: SyntheticSpec) -> tuple[SparseTensor, Planted]:
    """Draw a tensor; returns it with its factors.

    Examples
    --------
    >>> tensor, planted = generate(SyntheticSpec(shape=(20, 30, 10), entries=500, rank=(2, 3), skew=1.0))
    >>> tensor.shape, len(tensor), planted.linear[0].shape
    ((20, 30, 10), 500, (20, 2))
    """
    for_factors, for_cells, for_noise = np.random.default_rng(spec.seed).spawn(3)
    linear = _factors(spec.shape, spec.rank[0], for_factors)
    nonlinear = _factors(spec.shape, spec.rank[1], for_factors)
    cells = draw_skewed_cells(spec.shape, spec.entries, spec.skew, for_cells)
    values = _in_blocks(cells, linear, _multilinear)
    scale = 0.0
    if spec.rank[1]:
        curve = NONLINEARITIES[spec.nonlinearity]
        bent = _in_blocks(cells, nonlinear, lambda rows: _additive(rows, curve))
        spread = float(bent.std(dtype=np.float64))
        target = spec.ratio * (float(values.std(dtype=np.float64)) if spec.rank[0] else 1.0)
        scale = target / spread if spread else 1.0
        values += np.float32(scale) * bent
    if spec.noise:
        size = np.float32(spec.noise * float(values.std(dtype=np.float64)))
        for start in range(0, len(values), BLOCK):
            part = values[start : start + BLOCK]
            part += size * for_noise.standard_normal(len(part), dtype=np.float32)
    return SparseTensor(cells, values, spec.shape), Planted(linear, nonlinear, scale)


def draw_skewed_cells(shape: Sequence[int], entries: int, skew: float, rng: np.random.Generator) -> NDArray[Any]:
    """Distinct cells ``(entries, modes)``; labels of a mode occur about as often as ``rank ** -skew``.

    Which label is the most popular is random. Where a skewed draw repeats cells too often, its skew is
    halved, so that any number of cells is reached.
    """
    dtype = np.int64 if max(shape) > np.iinfo(np.int32).max else np.int32
    if entries > MAX_SPARSE_DENSITY * math.prod(shape):
        return _draw_from_all(shape, entries, skew, rng).astype(dtype)
    if skew and max(shape) > MAX_SKEWED_LABELS:
        raise ConfigError(f"a mode of {max(shape):,} labels is too long for a skewed draw; leave out the skew")
    ranking = [rng.permutation(size).astype(dtype) if skew else None for size in shape]
    cells = np.empty((0, len(shape)), dtype=dtype)
    new = 1.0  # share of the last draw that was not drawn before
    while len(cells) < entries:
        before = len(cells)
        more = np.empty((min(entries, int(1.05 * (entries - before) / new) + 16), len(shape)), dtype=dtype)
        for n, (size, order) in enumerate(zip(shape, ranking, strict=True)):
            more[:, n] = _draw_labels(size, order, skew, len(more), rng)
        drawn = len(more)
        cells = np.concatenate([cells, more])
        del more
        cells = cells[_first_of_each(cells, shape)]
        new = max((len(cells) - before) / drawn, MIN_NEW_SHARE)
        if new == MIN_NEW_SHARE:
            skew = skew / 2 if skew > 0.05 else 0.0
    return cells[:entries]


def _draw_labels(
    size: int, order: NDArray[Any] | None, skew: float, count: int, rng: np.random.Generator
) -> NDArray[Any]:
    if order is None or not skew:
        return rng.integers(size, size=count)
    share = _popularity(size, skew)
    labels = np.repeat(order, rng.multinomial(count, share / share.sum()))
    rng.shuffle(labels)
    return labels


def _draw_from_all(shape: Sequence[int], entries: int, skew: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The same from a list of all cells: each has an exponential lifetime at the rate of its popularity."""
    lifetime = rng.standard_exponential(math.prod(shape)).reshape(shape)
    for n, size in enumerate(shape):
        around = [1] * len(shape)
        around[n] = size
        lifetime /= rng.permutation(_popularity(size, skew)).reshape(around)
    chosen = np.argpartition(lifetime.ravel(), entries - 1)[:entries]
    return np.stack(np.unravel_index(rng.permutation(chosen), tuple(shape)), axis=1)


def _popularity(size: int, skew: float) -> NDArray[np.float64]:
    return np.arange(1, size + 1, dtype=np.float64) ** -skew


def _first_of_each(cells: NDArray[np.integer], shape: Sequence[int]) -> NDArray[np.intp]:
    """Positions of the first entry of each cell, in their order."""
    keys = cell_keys(cells, shape)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    new = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return np.sort(order[new])


def _factors(shape: Sequence[int], width: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], ...]:
    return tuple(rng.standard_normal((size, width), dtype=np.float32) for size in shape)


def _in_blocks(
    cells: NDArray[np.integer],
    factors: Sequence[NDArray[np.float32]],
    value: Callable[[list[NDArray[np.float64]]], NDArray[np.float64]],
) -> NDArray[np.float32]:
    values = np.empty(len(cells), dtype=np.float32)
    for start in range(0, len(cells), BLOCK):
        block = cells[start : start + BLOCK]
        values[start : start + BLOCK] = value(
            [table[block[:, n]].astype(np.float64) for n, table in enumerate(factors)]
        )
    return values


def _multilinear(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    product = rows[0]
    for more in rows[1:]:
        product = product * more
    return product.sum(axis=1)


def _additive(rows: list[NDArray[np.float64]], curve: Curve) -> NDArray[np.float64]:
    total = rows[0]
    for more in rows[1:]:
        total = total + more
    return curve(total / math.sqrt(len(rows))).sum(axis=1)
