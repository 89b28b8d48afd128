"""The tensors that everything is measured on, and how large they are."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

SHAPE = (183, 24, 1140, 1717)
"""As dates, hours, latitudes and longitudes have it."""
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Sizes:
    entries: int = 2_600_000
    rank: int = 20
    batch: int = 8192
    passes: int = 7
    part: int = 200_000
    """Entries for what is too slow for all of them."""
    dense: tuple[int, ...] = (200, 150, 100)
    """Shape of a tensor that fits into memory with all its cells; also of the planted one."""
    observed: int = 300_000
    growing: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    modes: tuple[int, ...] = (2, 3, 4, 5)
    ranks: tuple[int, ...] = (5, 10, 20, 40)
    seeds: int = 3
    rates: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    """Learning rates that are tried on the way to an error; the best counts."""
    budget: float = 10.0
    """Seconds after which a run towards an error is given up."""


QUICK = Sizes(
    entries=30_000, rank=5, passes=3, part=4_000, dense=(30, 20, 15), observed=4_000, growing=(10_000, 30_000),
    modes=(2, 3), ranks=(5, 10), seeds=1, rates=(0.05,), budget=0.2,
)  # fmt: skip


def skewed(count, shape=SHAPE, seed=0):
    """Cells with few frequent and many rare labels, as places and times have them; positive values."""
    rng = np.random.default_rng(seed)
    indices = np.stack([(rng.random(count) ** 2 * size).astype(np.int64) for size in shape], axis=1)
    return indices, 1 + rng.gamma(1.0, 1.0, count).astype(np.float32)


@dataclass(frozen=True)
class Planted:
    """A CP of rank 5 with noise; a tenth of the observed entries is held out."""

    shape: tuple[int, ...]
    indices: np.ndarray
    values: np.ndarray
    held_indices: np.ndarray
    held_values: np.ndarray
    noise: float
    rank: int = 5

    @property
    def target(self) -> float:
        return 1.05 * self.noise

    def rmse(self, factors, weights=1.0) -> float:
        """Error of a CP on the held-out entries."""
        rows = np.prod([np.asarray(f)[self.held_indices[:, n]] for n, f in enumerate(factors)], axis=0)
        return float(np.sqrt(np.mean(((rows * weights).sum(axis=1) - self.held_values) ** 2)))


def planted(size: Sizes, seed=0) -> Planted:
    rng = np.random.default_rng(seed)
    cells = rng.choice(int(np.prod(size.dense)), size.observed, replace=False)
    indices = np.stack(np.unravel_index(cells, size.dense), axis=1)
    factors = [rng.standard_normal((length, 5)) for length in size.dense]
    truth = np.prod([f[indices[:, n]] for n, f in enumerate(factors)], axis=0).sum(axis=1)
    noise = 0.1 * float(truth.std())
    values = (truth + noise * rng.standard_normal(len(truth))).astype(np.float32)
    held = size.observed // 10
    return Planted(size.dense, indices[held:], values[held:], indices[:held], values[:held], noise)
