"""Shrunk tables, and kriging of what they leave along every axis: what is usual for the labels, and what is near.

Residuals are those of tables that did not see the entry, so that they are as large as those of new entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jointensor.data.split import FOLDS, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.residual_stack import fit_residual_stack
from jointensor.predictors.tables import Tables, refit_tables


def krige_tables(
    tables: Tables,
    bias: Tables,
    train: SparseTensor,
    *,
    along: Sequence[tuple[int, ...]],
    groups: tuple[int, ...] = (),
    seed: int = 0,
) -> Ensemble:
    """Tables with kriging of their out-of-fold residuals.

    Parameters
    ----------
    tables, bias
        Fitted to the same entries; additive biases predict labels that were not seen.
    train
        These entries.
    along
        Modes of every axis along which kriging is tried.
    groups
        Modes whose labels, taken together, will be new in the entries to predict.
    seed
        Of the folds.
    """
    folds = make_folds(train, groups, seed)
    residuals = np.empty(len(train))
    for fold in range(FOLDS):
        out = folds == fold
        others = refit_tables(tables, train.take(np.flatnonzero(~out)))
        residuals[out] = train.values[out] - others.predict(train.indices[out])
    models = fit_residual_stack(train, residuals, folds, tables=False, along=along).models
    low, high = float(train.values.min()), float(train.values.max())
    return Ensemble((Member("tables", 1.0, (tables,)),), models, bias, low, high, name="mixture")
