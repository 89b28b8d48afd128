"""Models of the square roots of values: of amounts and counts, whose noise grows with their size.

    x̂ = max(z, 0)² + c,    z a model of √max(x, 0)

Least squares of the values themselves are decided by the few largest ones; roots have noise of about one size (the
variance of a Poisson count's root hardly depends on its mean). The square of a mean root is smaller than the mean, by
c, the mean error on validation entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.predictors.base import PREDICTORS, Packed, Predictor, require
from jointensor.predictors.joint import JointPredictor

MAX_NEGATIVE_SHARE = 0.01
"""Share of values below zero up to which these may be taken for zero."""

MIN_VARIATION = 0.5
"""Least standard deviation of the values over their mean: roots of values of one size are hardly other than these."""


def has_roots(values: NDArray[np.floating]) -> bool:
    """Whether values are amounts or counts of different sizes."""
    mean, spread = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    return float(np.mean(values < 0)) <= MAX_NEGATIVE_SHARE and spread >= MIN_VARIATION * mean > 0


def with_roots(tensor: SparseTensor) -> SparseTensor:
    """The same cells with the roots of the values, those below zero taken for zero."""
    return tensor.with_values(np.sqrt(np.maximum(tensor.values, 0)))


@PREDICTORS.register("squares")
@dataclass(frozen=True)
class Squares(Predictor):
    """The square of what a joint model of roots predicts."""

    inner: JointPredictor
    """Of the roots."""
    offset: float
    """c."""

    @classmethod
    def of(cls, inner: JointPredictor, valid: SparseTensor) -> Self:
        """With the offset of some entries that the model was not fitted to; zero without any."""
        if not len(valid):
            return cls(inner, 0.0)
        errors = valid.values - cls(inner, 0.0).predict(valid.indices)
        return cls(inner, float(errors.mean(dtype=np.float64)))

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Squares, ``(entries,)``."""
        squares: NDArray[np.float32] = np.square(np.maximum(self.inner.predict(indices), 0)) + np.float32(self.offset)
        return squares

    def n_parameters(self) -> int:
        """Those of the model, and the offset."""
        return self.inner.n_parameters() + 1

    def supports(self, n_modes: int) -> bool:
        """As many modes as the entries had."""
        return self.inner.supports(n_modes)

    def with_entries(self, fresh: SparseTensor) -> Self:
        """The model of roots learns the new labels."""
        return replace(self, inner=self.inner.with_entries(with_roots(fresh)))

    def explain(self) -> dict[str, Any]:
        """The model of roots, and the offset."""
        return super().explain() | {"offset": self.offset, "roots": self.inner.explain()}

    def pack(self) -> Packed:
        """The model of roots, and the offset."""
        packed = Packed({"offset": self.offset}, {})
        packed.config["inner"] = packed.add("inner", self.inner.pack())
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored model."""
        offset = float(packed.config["offset"])
        require(math.isfinite(offset), "offset")
        return cls(JointPredictor.unpack(packed.part(packed.config["inner"], "inner")), offset)
