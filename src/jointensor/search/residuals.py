"""Residual models of an ensemble: fitted to the residuals of entries that its members did not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.knn import SECONDS_PER_ENTRY
from jointensor.predictors.residual_stack import ResidualStack, fit_residual_stack
from jointensor.search.budget import Budget
from jointensor.search.cross_fit import Results
from jointensor.search.folds import Folds, LeftOut
from jointensor.search.settings import SETTINGS, SearchSettings
from jointensor.search.stacking import Stack


@dataclass(frozen=True)
class ResidualPlan:
    """Which residual models are tried beside kriging."""

    tables: bool
    knn_modes: Sequence[int] = ()
    """Modes along which nearest neighbours are searched."""
    all_entries: bool = False
    """Whether kriging over all entries is tried too, with residuals of members that saw them."""
    nothing: bool = False
    """Whether there is no time for any."""


def residual_plan(
    data: Folds,
    stack: Stack,
    results: Results,
    budget: Budget,
    prediction_cost: float,
    settings: SearchSettings = SETTINGS,
    *,
    short: bool,
) -> ResidualPlan:
    """Which residual models are worth trying, and affordable.

    Parameters
    ----------
    data, stack, results
        Entries, members and their fits.
    budget
        What is left for it.
    prediction_cost
        Of predictions for all entries.
    settings
        Numbers of the search.
    short
        Whether only what takes next to no time is tried, after an interruption.
    """
    if budget.exhausted and budget.cost_of_seconds(1.0):
        return ResidualPlan(tables=False, nothing=True)
    tables = bool(len(data.untouched)) or stack.tabulated_share(results) < settings.max_tabulated_share
    if short:
        return ResidualPlan(tables)
    affordable = budget.remaining(settings.overtime_share) > prediction_cost
    all_entries = len(stack.folds) < FOLDS and affordable
    return ResidualPlan(tables, affordable_knn_modes(data, len(stack.truth), budget, settings), all_entries)


def affordable_knn_modes(
    data: Folds, entries: int, budget: Budget, settings: SearchSettings = SETTINGS
) -> Sequence[int]:
    """Modes along which nearest neighbours are searched; none if that would take too long, or cannot be judged.

    Residuals of neighbours are those of models that saw the entry, so that only untouched entries show what they are
    worth.
    """
    modes = data.knn_modes()
    cost = budget.cost_of_seconds((len(modes) + 2) * SECONDS_PER_ENTRY * entries)
    return modes if len(data.untouched) and cost <= settings.knn_share * budget.remaining() else []


def fit_residual_models(data: Folds, stack: Stack, ensemble: Ensemble, plan: ResidualPlan) -> ResidualStack:
    """Residual models that reduce the error of out-of-fold predictions; of untouched entries, if there are some."""
    along = data.kriging_axes()
    residuals = stack.truth - stack.mixed
    if plan.nothing:
        return ResidualStack((), residuals, ())

    def fitted(entries: SparseTensor, values: NDArray[Any], folds: NDArray[Any], **how: Any) -> ResidualStack:
        return fit_residual_stack(entries, values, folds, along=along, groups=data.groups, **how)

    def judged(models: ResidualStack) -> tuple[float, ResidualStack]:
        count, error = replace(ensemble, residual_models=models.models).best_stack_size(data.untouched)
        return error, models.first(count)

    where = stack.positions
    models = fitted(data.tensor.take(where), residuals, data.scored[where], tables=plan.tables, beside=plan.knn_modes)
    if not len(data.untouched):
        return models
    error, models = judged(models)
    if plan.all_entries and models.uses_kriging:
        # Residuals of entries that the members saw are a little too small, but there are many more of them.
        values = data.tensor.values - ensemble.weighted_mean(data.tensor.indices)
        values[where] = residuals
        other_error, others = judged(fitted(data.tensor, values, data.scored, tables=False))
        models = others.at(where) if other_error < error else models
    return models


def out_of_fold_predictions(data: Folds, stack: Stack, models: ResidualStack) -> LeftOut:
    """Positions of entries in the tensor, and predictions for them by models that did not see them.

    Entries of the same folds that a functional dependency gives come last.
    """
    known = np.flatnonzero(data.dependent & np.isin(data.fold, stack.folds))
    predicted = data.clip(stack.truth - models.residuals)
    return np.append(stack.positions, known), np.append(predicted, data.tensor.values[known])
