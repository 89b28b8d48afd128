"""Shrunk tables, and kriging of what they leave along every axis: what is usual for the labels, and what is near.

Residuals are those of tables that did not see the entry, so that they are as large as those of new entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.base import Predictor
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.residual_stack import fit_residual_stack, refit_kriging
from jointensor.predictors.tables import Tables, refit_tables
from jointensor.threads import in_threads


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
    residuals = _residuals(tables, train, folds)
    models = fit_residual_stack(train, residuals, folds, tables=False, along=along).models
    return _kriged(tables, models, bias, train)


def refit_kriged_tables(
    like: Ensemble, train: SparseTensor, *, groups: tuple[int, ...] = (), seed: int = 0
) -> Ensemble:
    """Tables with kriging for other entries: shrunk as before, and with the same covariances.

    Parameters
    ----------
    like
        Of :func:`krige_tables`.
    train, groups, seed
        As there.
    """
    before = like.members[0].fits[0]
    assert isinstance(before, Tables)  # it is what krige_tables made
    assert isinstance(like.fallback, Tables)
    tables = refit_tables(before, train)
    models: tuple[Predictor, ...] = ()
    if like.residual_models:
        residuals = _residuals(tables, train, make_folds(train, groups, seed))
        models = refit_kriging(like.residual_models, train, residuals)
    return _kriged(tables, models, refit_tables(like.fallback, train), train)


def _residuals(tables: Tables, train: SparseTensor, folds: NDArray[np.int8]) -> NDArray[np.float64]:
    """Of every entry by tables of the other folds, ``(entries,)``."""

    def of_fold(fold: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        out = np.flatnonzero(folds == fold)
        others = refit_tables(tables, train.take(np.flatnonzero(folds != fold)))
        return out, train.values[out] - others.predict(train.indices[out])

    residuals = np.empty(len(train))
    for out, found in in_threads(of_fold, range(FOLDS)):
        residuals[out] = found
    return residuals


def _kriged(tables: Tables, models: tuple[Predictor, ...], bias: Tables, train: SparseTensor) -> Ensemble:
    low, high = float(train.values.min()), float(train.values.max())
    return Ensemble((Member("tables", 1.0, (tables,)),), models, bias, low, high, name="mixture")
