"""Models of the square roots of values: of amounts and counts, whose noise grows with their size.

    x̂ = a max(z, 0)² + c,    z a model of √max(x, 0)

Least squares of the values themselves are decided by the few largest ones; roots have noise of about one size (the
variance of a Poisson count's root hardly depends on its mean). The square of a mean root is not the mean value: a and c
are those by which the squares predict the validation entries best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.predictors.base import PREDICTORS, Packed, Predictor, pack_predictor, require, unpack_predictor

MAX_NEGATIVE_SHARE = 0.01
"""Share of values below zero up to which these may be taken for zero."""

MIN_VARIATION = 0.5
"""Least standard deviation of the values over their mean: roots of values of one size are hardly other than these."""

MAX_SCALE = 2.0
"""Largest a, and the inverse of the smallest: of few validation entries one may decide it."""


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
    """The squares of what a predictor of roots predicts."""

    inner: Predictor
    """Of the roots."""
    scale: float = 1.0
    """a."""
    offset: float = 0.0
    """c."""

    @classmethod
    def of(cls, inner: Predictor, valid: SparseTensor) -> Self:
        """With the scale and the offset that predict some entries best, which the predictor was not fitted to."""
        if not len(valid):
            return cls(inner)
        squares = cls(inner).predict(valid.indices).astype(np.float64)
        values, around = valid.values.astype(np.float64), squares - squares.mean()
        slope = float(around @ values / (around @ around)) if around.any() else 1.0
        scale = min(max(slope, 1 / MAX_SCALE), MAX_SCALE)
        return cls(inner, scale, float(values.mean() - scale * squares.mean()))

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Squares, ``(entries,)``."""
        squares = np.square(np.maximum(self.inner.predict(indices), 0))
        found: NDArray[np.float32] = (self.scale * squares + self.offset).astype(np.float32)
        return found

    def n_parameters(self) -> int:
        """Those of the roots' predictor, scale and offset."""
        return self.inner.n_parameters() + 2

    def supports(self, n_modes: int) -> bool:
        """As many modes as the entries had."""
        return self.inner.supports(n_modes)

    def with_entries(self, fresh: SparseTensor) -> Self:
        """The predictor of roots learns the new labels."""
        return replace(self, inner=self.inner.with_entries(with_roots(fresh)))

    def explain(self) -> dict[str, Any]:
        """The predictor of roots, scale and offset."""
        return super().explain() | {"scale": self.scale, "offset": self.offset, "roots": self.inner.explain()}

    def pack(self) -> Packed:
        """The predictor of roots, scale and offset."""
        packed = Packed({"scale": self.scale, "offset": self.offset}, {})
        packed.config["inner"] = packed.add("inner", pack_predictor(self.inner))
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored predictor."""
        scale, offset = float(packed.config["scale"]), float(packed.config["offset"])
        require(math.isfinite(scale) and math.isfinite(offset), "scale and offset")
        return cls(unpack_predictor(packed.part(packed.config["inner"], "inner")), scale, offset)
