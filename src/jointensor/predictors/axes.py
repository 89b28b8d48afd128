"""Axes: orders of cells along which neighbours are looked for, by one mode or by two that tell the time together.

A calendar mode and a clock mode (date and hour, week and weekday) are one axis: 23 h is next to 0 h of the day after.
A fiber of an axis is all entries that agree in every other mode. Cells are numbered so that those of a fiber follow
each other in the order of the axis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode, is_date
from jointensor.data.tensor import cell_keys
from jointensor.predictors.base import MAX_CELLS, is_array, require
from jointensor.predictors.fibers import can_be_numbered, ordered_along

TIME_UNITS = {
    "year": 0, "quarter": 1, "month": 2, "week": 3, "date": 4, "day": 4, "weekday": 4, "hour": 5,
    "time": 6, "slot": 6, "interval": 6, "minute": 6,
}  # fmt: skip
"""Words in names of modes, from the coarsest unit of time to the finest."""

MAX_POSITIONS = 1 << 22
"""Positions along an axis of two modes: their coordinates are kept."""


@dataclass(frozen=True)
class Axis:
    """Positions along one mode, or along a calendar mode and a clock mode."""

    modes: tuple[int, ...]
    """The coarser one first."""
    shape: tuple[int, ...]
    """Of the tensor."""
    ranks: tuple[NDArray[np.int64], ...]
    """Place of every label among those of its mode, for each of the modes."""
    coordinates: NDArray[np.float64]
    """Where positions lie, ascending from 0, in median steps (of the clock, if there is one)."""
    period: float = 0.0
    """After which the axis begins again, in steps; 0 if it is not cyclic."""

    @classmethod
    def of(cls, modes: Sequence[Mode], chosen: Sequence[int]) -> Axis:
        """The axis of some modes of a tensor."""
        steps, ranks = zip(*(_in_steps(modes[n]) for n in chosen), strict=True)
        coordinates = steps[-1]
        period = float(coordinates[-1] + 1) if len(chosen) == 1 and modes[chosen[0]].order == "cyclic" else 0.0
        if len(chosen) > 1:  # the clock runs from one step after its last position on
            coordinates = np.add.outer((coordinates[-1] + 1) * steps[0], coordinates).ravel()
        return cls(tuple(chosen), tuple(mode.size for mode in modes), tuple(ranks), coordinates, period)

    @property
    def size(self) -> int:
        """Positions along the axis."""
        return math.prod(self.shape[n] for n in self.modes)

    def keys(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Cell numbers, ``(entries,)``: ``key // size`` is the fiber, ``key % size`` the position along the axis."""
        others = [n for n in range(len(self.shape)) if n not in self.modes]
        place = np.zeros(len(indices), dtype=np.int64)
        for n, ranks in zip(self.modes, self.ranks, strict=True):
            place = place * self.shape[n] + ranks[indices[:, n]]
        columns = [*(indices[:, n] for n in others), place]
        return cell_keys(np.column_stack(columns), [*(self.shape[n] for n in others), self.size])


def _in_steps(mode: Mode) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Coordinates of a mode from 0 on, in median steps, and the rank of every label."""
    ascending, ranks = ordered_along(mode)
    gaps = np.diff(ascending)
    step = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
    return (ascending - ascending[0]) / step, ranks


def axes_of(modes: Sequence[Mode]) -> list[tuple[int, ...]]:
    """Modes of every axis: those that are ordered, and pairs of them that tell the time together.

    None where the cells of the tensor are too many to be numbered.
    """
    if not can_be_numbered([mode.size for mode in modes]):
        return []
    ordered = [n for n, mode in enumerate(modes) if mode.order != "none"]
    units = {n: unit for n in ordered if (unit := time_unit(modes[n])) is not None}
    pairs = [(a, b) for a in units for b in units if units[a] < units[b] and modes[a].order != "cyclic"]
    return [(n,) for n in ordered] + [pair for pair in pairs if math.prod(modes[n].size for n in pair) <= MAX_POSITIONS]


def time_unit(mode: Mode) -> int | None:
    """Which unit of time a mode counts, by its name or its labels; ``None`` for anything else."""
    units = [TIME_UNITS[word] for word in re.split(r"[^a-z]+", mode.name.lower()) if word in TIME_UNITS]
    if units:
        return max(units)
    if mode.order == "cyclic":
        return max(TIME_UNITS.values())
    dates = mode.labels is not None and all(is_date(label) for label in mode.labels)
    return TIME_UNITS["date"] if dates else None


def check_axis(axis: Axis, keys: NDArray[Any], values: NDArray[Any]) -> None:
    """Refuse a stored axis, and entries along it, that do not belong together."""
    n_modes = len(axis.shape)
    require(0 < len(axis.modes) <= 2 and len(set(axis.modes)) == len(axis.modes) < n_modes + 1, "modes of an axis")
    require(all(n < n_modes for n in axis.modes) and 0 < math.prod(axis.shape) < MAX_CELLS, "shape of an axis")
    require(is_array(axis.coordinates, np.float64, axis.size), "coordinates of an axis")
    require(bool(np.isfinite(axis.coordinates).all()) and bool((np.diff(axis.coordinates) >= 0).all()), "coordinates")
    for n, ranks in zip(axis.modes, axis.ranks, strict=True):
        size = axis.shape[n]
        require(is_array(ranks, np.int64, size) and bool(((ranks >= 0) & (ranks < size)).all()), "ranks of an axis")
    require(keys.ndim == 1 and keys.dtype == np.int64 and bool((np.diff(keys) >= 0).all()), "keys of an axis")
    require(not len(keys) or bool(keys[0] >= 0 and keys[-1] < math.prod(axis.shape)), "keys of an axis")
    require(is_array(values, np.float32, len(keys)), "values along an axis")
