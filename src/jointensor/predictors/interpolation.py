"""Interpolation along an ordered mode: between the nearest observed entries of the same fiber.

A fiber is all entries that agree in every mode but one. Where a fiber has no training entry, the
additive-bias predictor answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.metrics import rmse
from jointensor.predictors.tables import MAX_CELLS, Tables


@dataclass(frozen=True)
class Interpolation:
    """Linear interpolation along one mode."""

    mode: int
    shape: tuple[int, ...]
    coordinates: NDArray[np.float64]
    """Where positions lie along the mode, ascending."""
    ranks: NDArray[np.int64]
    """Place of every label of the mode in ``coordinates``."""
    keys: NDArray[np.int64]
    """Training cells as numbers, the interpolated mode varying fastest; sorted."""
    values: NDArray[np.float32]
    fallback: Tables

    @classmethod
    def of(cls, train: SparseTensor, mode: int, fallback: Tables) -> Interpolation:
        """Interpolation between the entries of ``train`` along ``mode``."""
        coordinates = train.modes[mode].coordinates()
        along = np.argsort(coordinates, kind="stable")
        ranks = np.empty_like(along)
        ranks[along] = np.arange(len(along))
        keys = fiber_keys(train.indices, train.shape, mode, ranks)
        order = np.argsort(keys)
        return cls(mode, train.shape, coordinates[along], ranks, keys[order], train.values[order], fallback)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Interpolated values, held constant beyond a fiber's ends."""
        size = self.shape[self.mode]
        known = np.all(indices >= 0, axis=1)
        keys = fiber_keys(np.where(known[:, None], indices, 0), self.shape, self.mode, self.ranks)
        right = np.searchsorted(self.keys, keys)
        left = right - 1
        has_right = known & (right < len(self.keys))
        has_right[has_right] = self.keys[right[has_right]] // size == keys[has_right] // size
        has_left = known & (left >= 0)
        has_left[has_left] = self.keys[left[has_left]] // size == keys[has_left] // size
        right = np.where(has_right, right, left)
        left = np.where(has_left, left, right)
        found = has_left | has_right
        value = self.fallback.predict(indices)
        value[found] = self._between(left[found], right[found], keys[found] % size)
        return value

    def n_parameters(self) -> int:
        """All training values, and the numbers of the fallback."""
        return len(self.values) + self.fallback.n_parameters()

    def _between(
        self, left: NDArray[np.int64], right: NDArray[np.int64], position: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        size = self.shape[self.mode]
        start, end = (self.coordinates[self.keys[k] % size] for k in (left, right))
        gap = np.where(end > start, end - start, 1.0)
        weight = np.clip((self.coordinates[position] - start) / gap, 0.0, 1.0)
        return (1 - weight) * self.values[left] + weight * self.values[right]


def best_interpolation(train: SparseTensor, valid: SparseTensor, fallback: Tables) -> Interpolation | None:
    """Interpolation along the ordered mode that validates best; ``None`` without an ordered mode.

    ``None`` too where the cells are too many to number, see :data:`~jointensor.predictors.tables.MAX_CELLS`.
    """
    made = [Interpolation.of(train, n, fallback) for n in modes_to_interpolate(train)]
    if len(made) < 2 or not len(valid):
        return made[-1] if made else None
    return min(made, key=lambda one: rmse(one.predict(valid.indices), valid.values))


def modes_to_interpolate(tensor: SparseTensor) -> list[int]:
    """Ordered modes, where the cells can be numbered."""
    return [n for n, mode in enumerate(tensor.modes) if mode.order != "none" and math.prod(tensor.shape) < MAX_CELLS]


def fiber_keys(
    indices: NDArray[np.integer], shape: tuple[int, ...], mode: int, ranks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Cell numbers in which equal ``key // size`` means the same fiber, ascending along the mode."""
    others = [n for n in range(len(shape)) if n != mode]
    cells = np.column_stack([indices[:, others], ranks[indices[:, mode]]])
    return cell_keys(cells, [shape[n] for n in [*others, mode]])
