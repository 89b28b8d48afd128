"""``--linear "…+tables+local:MODE"``: residual models stacked on a model that is fitted.

They learn from residuals of held-out training entries, so the model is fitted once more to the complement of each
fold; the model that predicts is the one that was fitted to all training entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jointensor.data.split import Split
from jointensor.models.blocks import Piece
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.residual_stack import fit_residual_stack
from jointensor.training.fit import Fit

RESIDUAL_FOLDS = 3
"""Folds that give every training entry one residual of a model that did not see it; each costs a fit."""


def stack_on_residuals(
    fitted: Fit, parts: Split, blocks: Sequence[Piece], fit_again: Callable[[Split], Fit], seed: int
) -> tuple[Ensemble, list[tuple[str, float]]]:
    """The fitted model with residual models, and by which share each reduced the held-out squared error.

    Parameters
    ----------
    fitted
        The model.
    parts
        The entries it was fitted to.
    blocks
        Blocks that are fitted to residuals (``tables``, ``local:N``), modes by position.
    fit_again
        Fits the same model to another split.
    seed
        Of the folds.
    """
    train = parts.train
    member = Member("joint", 1.0, (fitted.predictor,))
    bounds = float(train.values.min()), float(train.values.max())
    fallback = fitted.predictor.fallback
    if len(train) < RESIDUAL_FOLDS:  # no folds, no residuals
        return Ensemble((member,), (), fallback, *bounds), []
    folds = np.random.default_rng([seed, 6]).permutation(len(train)) % RESIDUAL_FOLDS  # (entries,)
    residuals = np.empty(len(train))
    for fold in range(RESIDUAL_FOLDS):
        out = np.flatnonzero(folds == fold)
        some = Split(train.take(np.flatnonzero(folds != fold)), parts.valid, parts.test, parts.rule, parts.seed)
        residuals[out] = train.values[out] - fit_again(some).predict(train.indices[out])
    along = [piece.numbers[0] for piece in blocks if piece.kind.residual_model == "kriging"]
    tables = any(piece.kind.residual_model == "tables" for piece in blocks)
    stack = fit_residual_stack(train, residuals, folds, tables=tables, along=along)
    return Ensemble((member,), stack.models, fallback, *bounds), list(stack.notes)
