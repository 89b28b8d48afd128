"""Fibers: all entries that agree in every mode but one.

Entries are numbered so that the cells of a fiber follow each other, in the order of the mode along which it goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import cell_keys
from jointensor.predictors.base import MAX_CELLS, is_array, require, whole_numbers


def can_be_numbered(shape: Sequence[int]) -> bool:
    """Whether the cells of a tensor can be numbered, so that fibers can be found."""
    return math.prod(shape) < MAX_CELLS


def ordered_along(mode: Mode) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Coordinates of a mode's labels in ascending order, and the rank of every label in it, ``(labels,)`` each."""
    raw = mode.coordinates()
    order = np.argsort(raw, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return raw[order], ranks


def fiber_keys(
    indices: NDArray[np.integer], shape: tuple[int, ...], mode: int, ranks: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Cell numbers in which equal ``key // size`` means the same fiber, ascending along the mode.

    ``ranks``: rank of every label along the mode; its position where they are not given.
    """
    others = [n for n in range(len(shape)) if n != mode]
    along = indices[:, mode] if ranks is None else ranks[indices[:, mode]]
    return cell_keys(np.column_stack([indices[:, others], along]), [shape[n] for n in [*others, mode]])


def inside(indices: NDArray[np.integer], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which entries have a label in every mode, ``(entries,)``."""
    found: NDArray[np.bool_] = np.all((indices >= 0) & (indices < np.array(shape)), axis=1)
    return found


def check_fibers(mode: Any, shape: Any, keys: NDArray[Any], values: NDArray[Any]) -> tuple[int, ...]:
    """Refuse stored fibers whose keys are not sorted cells of the shape; returns the shape."""
    sizes = whole_numbers(shape)
    require(type(mode) is int and 0 <= mode < len(sizes) and 0 < math.prod(sizes) < MAX_CELLS, "shape of fibers")
    require(keys.ndim == 1 and keys.dtype == np.int64 and (np.diff(keys) >= 0).all(), "keys of fibers")
    require(not len(keys) or (keys[0] >= 0 and keys[-1] < math.prod(sizes)), "keys of fibers")
    require(is_array(values, np.float32, len(keys)), "values of fibers")
    return sizes


def check_order(size: int, coordinates: NDArray[Any], ranks: NDArray[Any]) -> None:
    """Refuse stored coordinates and ranks that are not those of a mode of this size."""
    require(is_array(coordinates, np.float64, size), "coordinates of fibers")
    require(is_array(ranks, np.int64, size) and ((ranks >= 0) & (ranks < size)).all(), "ranks of fibers")
