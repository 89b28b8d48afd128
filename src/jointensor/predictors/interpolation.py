"""Interpolation along an ordered mode: between the nearest observed entries of the same fiber.

Where a fiber has no training entry, the prediction is that of the additive biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rmse
from jointensor.predictors.base import PREDICTORS, Packed, Predictor, require
from jointensor.predictors.fibers import can_be_numbered, check_fibers, check_order, fiber_keys, inside, ordered_along
from jointensor.predictors.tables import Tables

ARRAYS = ("coordinates", "ranks", "keys", "values")


@PREDICTORS.register("interpolation")
@dataclass(frozen=True)
class Interpolation(Predictor):
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
        coordinates, ranks = ordered_along(train.modes[mode])
        keys = fiber_keys(train.indices, train.shape, mode, ranks)
        order = np.argsort(keys)
        return cls(mode, train.shape, coordinates, ranks, keys[order], train.values[order], fallback)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Interpolated values, held constant beyond a fiber's ends."""
        size = self.shape[self.mode]
        known = inside(indices, self.shape)
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

    def supports(self, n_modes: int) -> bool:
        """As many modes as the training entries had."""
        return len(self.shape) == n_modes

    def explain(self) -> dict[str, Any]:
        """Along which mode."""
        return super().explain() | {"mode": self.mode}

    def pack(self) -> Packed:
        """Training values along the mode, and the fallback."""
        packed = Packed({"mode": self.mode, "shape": list(self.shape)}, {})
        packed.arrays.update({name: torch.as_tensor(np.array(getattr(self, name))) for name in ARRAYS})
        packed.config["fallback"] = packed.add("fallback", self.fallback.pack())
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored interpolation, if every position is one of the mode."""
        config, (coordinates, ranks, keys, values) = packed.config, map(packed.array, ARRAYS)
        shape = check_fibers(config["mode"], config["shape"], keys, values)
        check_order(shape[config["mode"]], coordinates, ranks)
        fallback = Tables.unpack(packed.part(config["fallback"], "fallback"))
        require(fallback.supports(len(shape)), "modes")
        return cls(config["mode"], shape, coordinates, ranks, keys, values, fallback)

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

    ``None`` too where the cells are too many to number, see :data:`~jointensor.predictors.base.MAX_CELLS`.
    """
    made = [Interpolation.of(train, n, fallback) for n in modes_to_interpolate(train)]
    if len(made) < 2 or not len(valid):
        return made[-1] if made else None
    return min(made, key=lambda one: rmse(one.predict(valid.indices), valid.values))


def modes_to_interpolate(tensor: SparseTensor) -> list[int]:
    """Ordered modes, where the cells can be numbered."""
    return [n for n, mode in enumerate(tensor.modes) if mode.order != "none" and can_be_numbered(tensor.shape)]
