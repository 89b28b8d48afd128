"""A generated epidemic in the spirit of the paper's introduction: place × what is counted × day.

At first all places follow one wave, and hospitalisations and deaths follow cases: multilinear. Later every
region has its own wave, cut off where it closes down, and hospitals fill up: nonlinear. Reports are
missing in blocks, as in real life: a place stops reporting for weeks, or one of its numbers is absent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor

WHAT = ("cases", "hospitalisations", "deaths")
PLACES, REGIONS, DAYS = 80, 6, 180


@dataclass(frozen=True)
class Epidemic:
    """What was reported, and what was true where nothing was."""

    observed: SparseTensor
    """What was reported, with noise: place × what × day, three cells of four."""
    missing: SparseTensor
    """What would have been reported in the other cells."""
    truth: NDArray[np.float64]
    """All numbers without noise, ``(places, 3, days)``: an index, 100 at the peak of a typical place."""
    regions: tuple[str, ...]
    """Region of every place."""


def make_epidemic(seed: int = 0) -> Epidemic:
    """Draw an epidemic; the same for the same seed."""
    rng = np.random.default_rng(seed)
    region = np.sort(rng.integers(REGIONS, size=PLACES))
    truth = _curves(rng, region)
    reported = np.maximum(truth + 2.0 * rng.standard_normal(truth.shape), 0.0)
    known = _reporting(rng)
    modes = (_places(region), Mode("what", 3, WHAT), Mode("day", DAYS, _days(), "ordered"))
    observed = SparseTensor(np.argwhere(known), reported[known], modes)
    missing = SparseTensor(np.argwhere(~known), reported[~known], modes)
    return Epidemic(observed, missing, truth, tuple(f"region {r + 1}" for r in region))


def _curves(rng: np.random.Generator, region: NDArray[np.int64]) -> NDArray[np.float64]:
    day = np.arange(DAYS)
    size = rng.lognormal(0.0, 0.4, PLACES)[:, None]  # (places, 1)
    first = 100 * np.exp(-(((day - 45) / 18) ** 2))  # (days,) one wave for all
    start, width, height = rng.uniform(100, 150, REGIONS), rng.uniform(10, 22, REGIONS), rng.uniform(40, 160, REGIONS)
    second = height[:, None] * np.exp(-(((day - start[:, None]) / width[:, None]) ** 2))  # (regions, days)
    closed = rng.uniform(30, 120, REGIONS)[:, None]
    second = np.minimum(second, closed + 0.1 * second)  # cut off where a region closes down
    cases = size * (first + second[region])  # (places, days)
    beds = rng.uniform(40, 110, PLACES)[:, None]
    wards = _later(0.8 * cases, 7)
    wards = np.minimum(wards, beds + 0.1 * wards)  # hospitals fill up
    deaths = _later(0.6 * wards, 7) * np.where(wards > 0.9 * beds, 1.4, 1.0)
    return np.stack([cases, wards, deaths], axis=1)


def _later(curve: NDArray[np.float64], days: int) -> NDArray[np.float64]:
    return np.concatenate([np.zeros((len(curve), days)), curve[:, :-days]], axis=1)


def _reporting(rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which numbers were reported, ``(places, 3, days)``."""
    known = rng.random((PLACES, 3, DAYS)) > 0.1
    for place in range(PLACES):
        for _ in range(rng.integers(2, 6)):
            begin, length = rng.integers(DAYS), rng.integers(10, 30)
            what = slice(None) if rng.random() < 0.3 else rng.integers(3)
            known[place, what, begin : begin + length] = False
    return known


def _places(region: NDArray[np.int64]) -> Mode:
    numbers = [int(np.sum(region[:k] == region[k])) + 1 for k in range(len(region))]
    labels = tuple(f"{'ABCDEF'[r]}{n:02d}" for r, n in zip(region, numbers, strict=True))
    return Mode("place", len(labels), labels)


def _days() -> tuple[str, ...]:
    return tuple(str(day) for day in np.arange("2021-01-01", "2021-06-30", dtype="datetime64[D]"))
