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
import torch
from numpy.typing import NDArray

from jointensor.data.modes import Mode, is_date
from jointensor.data.tensor import cell_keys
from jointensor.predictors.base import MAX_CELLS, Packed, is_array, require, whole_numbers
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


def longest_axis(modes: Sequence[Mode]) -> tuple[int, ...]:
    """Modes of the axis with most positions; none where there is no axis."""
    return max(axes_of(modes), key=lambda axis: math.prod(modes[n].size for n in axis), default=())


def time_unit(mode: Mode) -> int | None:
    """Which unit of time a mode counts, by its name or its labels; ``None`` for anything else."""
    units = [TIME_UNITS[word] for word in re.split(r"[^a-z]+", mode.name.lower()) if word in TIME_UNITS]
    if units:
        return max(units)
    if mode.order == "cyclic":
        return max(TIME_UNITS.values())
    dates = mode.labels is not None and all(is_date(label) for label in mode.labels)
    return TIME_UNITS["date"] if dates else None


def pack_axis(axis: Axis) -> Packed:
    """Modes, shape, period, coordinates and ranks of an axis."""
    arrays = {"coordinates": axis.coordinates} | {f"ranks.{k}": ranks for k, ranks in enumerate(axis.ranks)}
    config = {"modes": list(axis.modes), "shape": list(axis.shape), "period": axis.period}
    return Packed(config, {name: torch.as_tensor(array) for name, array in arrays.items()})


def unpack_axis(packed: Packed) -> Axis:
    """The stored axis, if every label of its modes has a position."""
    modes, shape = whole_numbers(packed.config["modes"]), whole_numbers(packed.config["shape"])
    require(0 < len(modes) <= 2 and len(set(modes)) == len(modes), "modes of an axis")
    require(all(n < len(shape) for n in modes) and 0 < math.prod(shape) < MAX_CELLS, "shape of an axis")
    ranks = tuple(packed.array(f"ranks.{k}") for k in range(len(modes)))
    axis = Axis(modes, shape, ranks, packed.array("coordinates"), float(packed.config["period"]))
    coordinates = axis.coordinates
    require(0 <= axis.period < MAX_CELLS, "period of an axis")
    require(is_array(coordinates, np.float64, axis.size), "coordinates of an axis")
    require(bool(np.isfinite(coordinates).all()) and bool((np.diff(coordinates) >= 0).all()), "coordinates of an axis")
    for n, one in zip(modes, ranks, strict=True):
        require(is_array(one, np.int64, shape[n]) and bool(((one >= 0) & (one < shape[n])).all()), "ranks of an axis")
    return axis


def check_entries(axis: Axis, keys: NDArray[Any], values: NDArray[Any]) -> None:
    """Refuse stored entries along an axis that are not cells of its tensor, in order."""
    require(keys.ndim == 1 and keys.dtype == np.int64 and bool((np.diff(keys) >= 0).all()), "keys of an axis")
    require(not len(keys) or bool(keys[0] >= 0 and keys[-1] < math.prod(axis.shape)), "keys of an axis")
    require(is_array(values, np.float32, len(keys)), "values along an axis")
