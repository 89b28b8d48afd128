"""``--linear "…+tables+local:MODE"``: blocks that memorise, added to a model that is fitted.

They learn from residuals of training entries that were left out, so the model is fitted once more to each part of the
folds; the model that answers is the one that was fitted to all training entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import Tables
from jointensor.predictors.conformal import Calibration
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.residual_stack import ResidualStack, fit_residual_stack
from jointensor.training.fit import Fit

FOLDS = 3


def remember(
    fitted: Fit,
    parts: Split,
    late: Sequence[str],
    again: Callable[[Split], Fit],
    calibration: Calibration | None,
    seed: int,
) -> tuple[Ensemble, ResidualStack]:
    """The fitted model with memory.

    Parameters
    ----------
    fitted
        The model.
    parts
        What it was fitted to.
    late
        Blocks that memorise, modes by position.
    again
        Fits the same model to another split.
    calibration
        Intervals of the model.
    seed
        Of the folds.
    """
    train = parts.train
    if len(train) < FOLDS:  # nothing to learn a memory from
        nothing = ResidualStack((), np.zeros(len(train)), ())
        return _ensemble(fitted, nothing, train, calibration), nothing
    folds = np.random.default_rng([seed, 6]).permutation(len(train)) % FOLDS
    left = np.empty(len(train))
    for fold in range(FOLDS):
        out = np.flatnonzero(folds == fold)
        found = again(Split(train.take(np.flatnonzero(folds != fold)), parts.valid, parts.test, parts.rule, parts.seed))
        left[out] = train.values[out] - found.predict(train.indices[out])
    along = [int(piece.partition(":")[2]) for piece in late if piece.startswith("local:")]
    tables = any(piece.partition(":")[0] == "tables" for piece in late)
    memory = fit_residual_stack(train, left, folds, tables=tables, along=along)
    return _ensemble(fitted, memory, train, calibration), memory


def _ensemble(fitted: Fit, memory: ResidualStack, train: SparseTensor, calibration: Calibration | None) -> Ensemble:
    fallback: Tables = fitted.predictor.fallback
    member = Member("joint", 1.0, (fitted.predictor,))
    low, high = float(train.values.min()), float(train.values.max())
    return Ensemble((member,), memory.parts, fallback, low, high, calibration)
