"""Unfolding: a tensor as the matrix of its fibers by the positions along an axis, and CP of that matrix.

    x(i, j, t)  ≈  b_ij + b_t + Σ_r A((i, j), r) B(t, r)

Every fiber has a row of its own, where CP of the tensor has a product of rows of its labels. Where fibers have many
entries each, as series have, few components of the matrix may do what CP needs very many for. A fiber without training
entries has no row: additive biases of the tensor predict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.axes import Axis, pack_axis, unpack_axis
from jointensor.predictors.base import PREDICTORS, Packed, Predictor, require
from jointensor.predictors.fibers import inside
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.tables import Tables
from jointensor.predictors.update import check_labels_kept, fit_new_biases


@dataclass(frozen=True)
class Unfolding:
    """Which cell of the matrix every cell of the tensor is."""

    axis: Axis
    """Its positions are the columns."""
    fibers: NDArray[np.int64]
    """Numbers of the fibers that have a row, ascending, ``(rows,)``."""
    along: Mode
    """The columns as a mode."""

    @classmethod
    def of(cls, tensor: SparseTensor, along: Sequence[int]) -> Self:
        """Of a tensor along some of its modes; rows are the fibers that have entries."""
        axis = Axis.of(tensor.modes, along)
        return cls(axis, np.unique(axis.keys(tensor.indices) // axis.size), _as_mode(axis))

    def cells(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows and columns, ``(entries, 2)``, and which entries have them, ``(entries,)``; those of others are 0."""
        known = inside(indices, self.axis.shape)
        keys = self.axis.keys(np.where(known[:, None], indices, 0))
        fiber, place = keys // self.axis.size, keys % self.axis.size
        rows = np.minimum(np.searchsorted(self.fibers, fiber), len(self.fibers) - 1)
        known &= self.fibers[rows] == fiber
        return np.where(known[:, None], np.column_stack([rows, place]), 0), known

    def matrix(self, tensor: SparseTensor) -> SparseTensor:
        """The entries of a tensor that have a row, as entries of the matrix, in their order."""
        cells, known = self.cells(tensor.indices)
        return SparseTensor.part(cells[known], tensor.values[known], (Mode("fiber", len(self.fibers)), self.along))


def _as_mode(axis: Axis) -> Mode:
    """The positions of an axis as a mode, with their coordinates as labels."""
    labels = tuple(map(repr, axis.coordinates.tolist()))
    distinct = len(set(labels)) == len(labels)
    return Mode("along", axis.size, labels if distinct else None, "cyclic" if axis.period else "ordered")


@PREDICTORS.register("unfolding")
@dataclass(frozen=True)
class Unfolded(Predictor):
    """A joint model of the unfolded tensor."""

    unfolding: Unfolding
    inner: JointPredictor
    """Of the matrix."""
    fallback: Tables
    """Additive biases of the tensor."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Those of the matrix where it has a row, else biases, ``(entries,)``."""
        indices = np.asarray(indices)
        cells, known = self.unfolding.cells(indices)
        predictions = np.empty(len(indices), dtype=np.float32)
        predictions[known] = self.inner.predict(cells[known])
        predictions[~known] = self.fallback.predict(indices[~known])
        return predictions

    def n_parameters(self) -> int:
        """Those of the matrix's model."""
        return self.inner.n_parameters()

    def supports(self, n_modes: int) -> bool:
        """As many modes as the tensor had."""
        return len(self.unfolding.axis.shape) == n_modes

    def with_entries(self, fresh: SparseTensor) -> Self:
        """Biases learn the new labels; fibers with a new label have no row."""
        check_labels_kept([table.sizes[0] for table in self.fallback.tables], fresh)
        return replace(self, fallback=fit_new_biases(self.fallback, fresh))

    def explain(self) -> dict[str, Any]:
        """Along which modes, and the model of the matrix."""
        return super().explain() | {"modes": list(self.unfolding.axis.modes), "matrix": self.inner.explain()}

    def pack(self) -> Packed:
        """The unfolding, the model of the matrix, and the biases."""
        packed = Packed({}, {"fibers": torch.as_tensor(self.unfolding.fibers)})
        packed.config["axis"] = packed.add("axis", pack_axis(self.unfolding.axis))
        packed.config["inner"] = packed.add("inner", self.inner.pack())
        packed.config["fallback"] = packed.add("fallback", self.fallback.pack())
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored model, if the matrix is one of the tensor."""
        config, fibers = packed.config, packed.array("fibers")
        axis = unpack_axis(packed.part(config["axis"], "axis"))
        inner = JointPredictor.unpack(packed.part(config["inner"], "inner"))
        fallback = Tables.unpack_biases(packed.part(config["fallback"], "fallback"))
        require(
            fibers.ndim == 1 and len(fibers) and fibers.dtype == np.int64 and bool((np.diff(fibers) > 0).all()),
            "fibers",
        )
        require(inner.shape == (len(fibers), axis.size), "shape of an unfolding")
        require(tuple(table.sizes[0] for table in fallback.tables) == axis.shape, "biases")
        return cls(Unfolding(axis, fibers, _as_mode(axis)), inner, fallback)
