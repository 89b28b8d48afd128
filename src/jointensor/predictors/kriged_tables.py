"""Shrunk tables, and kriging of what they leave along every axis: what is usual for the labels, and what is near.

Residuals are those of tables that did not see the entry, so that they are as large as those of new entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jointensor.data.split import make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.base import Predictor
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.residual_stack import fit_kriging, refit_kriging
from jointensor.predictors.tables import Tables, predict_by_others, refit_tables


def krige_tables(
    tables: Tables,
    bias: Tables,
    train: SparseTensor,
    *,
    along: Sequence[tuple[int, ...]],
    groups: tuple[int, ...] = (),
    seed: int = 0,
    in_time: Callable[[], bool] = lambda: True,
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
    in_time
        Asked before every axis; there are no further ones once it says no.
    """
    if not along or not in_time():
        return _kriged(tables, (), bias, train)
    folds = make_folds(train, groups, seed)
    residuals = train.values - predict_by_others(tables, train, folds)
    models = fit_kriging(train, residuals, along=along, in_time=in_time)
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
        residuals = train.values - predict_by_others(tables, train, make_folds(train, groups, seed))
        models = refit_kriging(like.residual_models, train, residuals)
    return _kriged(tables, models, refit_tables(like.fallback, train), train)


def _kriged(tables: Tables, models: tuple[Predictor, ...], bias: Tables, train: SparseTensor) -> Ensemble:
    low, high = float(train.values.min()), float(train.values.max())
    return Ensemble((Member("tables", 1.0, (tables,)),), models, bias, low, high, name="mixture")
