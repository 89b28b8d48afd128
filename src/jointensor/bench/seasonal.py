"""The seasonal mean, which any method for time series has to be ahead of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jointensor.bench.method import Answer, Problem
from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.predictors import fit_bias
from jointensor.predictors.fibers import can_be_numbered
from jointensor.predictors.tables import Table

LENGTHS = (7, 24, 168, 12, 52)
"""Steps of a season along an ordered mode: days of a week, hours of a day and of a week, months, weeks of a year."""


class Season(NamedTuple):
    """Which labels of an ordered mode are alike."""

    mode: int
    length: int
    """Every so many steps; 1: all of them, where another mode tells the season (the hours beside the dates)."""


def seasonal_mean(problem: Problem) -> Answer:
    """The mean of all entries of the same phase that agree in all other modes; biases where there are none.

    The season is the one that validates best.
    """
    valid = problem.valid

    def error(season: Season) -> float:
        return float(np.mean((_means(problem.train, season, valid.indices) - valid.values) ** 2))

    seasons = _seasons(problem.train.modes)
    if not can_be_numbered(problem.train.shape):
        raise ConfigError("seasonal cannot number the cells of so large a tensor")
    if not seasons:
        raise ConfigError("seasonal needs an ordered mode, and there is none; see order in the task")
    best = min(seasons, key=error)
    name = problem.train.modes[best.mode].name
    return Answer(_means(problem.everything, best, problem.cells), {"mode": name, "length": best.length})


def _seasons(modes: Sequence[Mode]) -> list[Season]:
    ordered = [(n, mode.size) for n, mode in enumerate(modes) if mode.order == "ordered"]
    return [Season(n, length) for n, size in ordered for length in (1, *LENGTHS) if length < size]


def _means(tensor: SparseTensor, season: Season, cells: NDArray[np.integer]) -> NDArray[np.float64]:
    """Means of entries by phase and by all other labels, for some cells, ``(cells,)``."""
    place = np.round(tensor.modes[season.mode].coordinates()).astype(np.int64)
    phase = np.append((place - place.min()) % season.length, -1)  # (labels + 1,); the last one: no label

    def in_season(indices: NDArray[np.integer]) -> NDArray[np.int64]:
        found = indices.astype(np.int64)  # (entries, modes)
        found[:, season.mode] = phase[found[:, season.mode]]
        return found

    every = tuple(range(tensor.n_modes))
    shape = [season.length if n == season.mode else size for n, size in enumerate(tensor.shape)]
    table = Table.of_means(every, shape, in_season(tensor.indices), tensor.values)
    asked, bias = in_season(cells), fit_bias(tensor, tensor.take(np.zeros(0, dtype=np.int64)))
    return np.where(table.observed(asked), table.effects[table.find(asked)], bias.predict(cells))
