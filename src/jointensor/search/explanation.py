"""What a search found, and the reasons in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.predictors.dependencies import in_words
from jointensor.predictors.ensemble import Ensemble
from jointensor.search.cross_fit import OutOfFold, Results
from jointensor.search.default_member import NAME, DefaultMember, Mixture
from jointensor.search.ensemble_selection import ErrorProducts, squared_error, within_standard_errors
from jointensor.search.folds import Folds
from jointensor.search.stacking import Stack


@dataclass(frozen=True)
class SearchResult:
    """The chosen predictor, and why it was chosen."""

    predictor: Ensemble
    trials: list[dict[str, Any]]
    """A row per candidate: name, rmse, folds, spread over folds, seconds, weight, share of the squared error that it
    removes, failure."""
    chosen: str
    """Names of the members."""
    simplest: str
    """The simplest candidate within one standard error of the best."""
    reason: str
    figures: dict[str, float]
    """RMSE of left-out entries: ``single`` best candidate, the ``mix``, ``all`` with residual models and the default
    fit."""
    predicted: NDArray[np.float32]
    """Predictions for left-out entries, with errors as large as those of new entries, ``(entries,)``; NaN for those
    that have none."""
    outcome: str
    """``converged``, ``budget`` if that was used up, or ``interrupted``."""
    interrupted: bool = False
    """Whether the search was stopped before its end; with its store it can be resumed."""


def explain(
    data: Folds,
    results: Results,
    stack: Stack,
    mixture: Mixture,
    predictor: Ensemble,
    residual_names: Sequence[str],
    outcome: str,
) -> SearchResult:
    """Figures, rows and reason of a search.

    Parameters
    ----------
    data
        The entries in folds.
    results
        All candidates.
    stack
        Members, weights and out-of-fold predictions.
    mixture
        The default fit, its weight, and the final predictions for entries that were left out.
    predictor
        What was made of them.
    residual_names
        Residual models that were kept.
    outcome
        How the search ended.
    """
    errors = {name: (one - stack.truth).astype(np.float64) ** 2 for name, one in stack.predictions.items()}
    rmse = {name: math.sqrt(one.mean()) for name, one in errors.items()}
    best = min(rmse, key=lambda name: rmse[name])
    near = [name for name, one in errors.items() if within_standard_errors(one - errors[best])]
    simplest = min(near, key=lambda name: results[name].candidate.simplicity)
    predicted = np.full(len(data.whole), np.nan, dtype=np.float32)
    predicted[data.positions[mixture.left_out[0]]] = mixture.left_out[1]
    own = predicted[data.positions]
    known = np.isfinite(own) & ~data.dependent
    final = math.sqrt(squared_error(own[known], data.tensor.values[known]))
    figures = {"single": rmse[best], "mix": math.sqrt(squared_error(stack.mixed, stack.truth)), "all": final}
    members = ", ".join(f"{weight:.0%} {name}" for name, weight in stack.weights.items())
    reason = (
        f"on {len(stack.truth):,} entries that were left out, {best} alone has an RMSE of {rmse[best]:.4g}, "
        f"the mix ({members}) {figures['mix']:.4g}"
        + _additions(residual_names, mixture, len(own[known]), final)
        + f"; the simplest within one standard error of the best single one is {simplest}"
    )
    if data.deciding is not None:
        reason += f"; {in_words(data.deciding, data.tensor.modes)}"
    rest = 1 - mixture.share
    gains = ErrorProducts.of(stack.predictions, stack.truth).gains(stack.weights)
    rows = [
        _row(data, one, rmse.get(name)) | {"weight": rest * stack.weights.get(name, 0.0), "gain": gains.get(name, 0.0)}
        for name, one in results.items()
    ]
    names = list(stack.weights) if rest else []
    if mixture.member is not None:
        rows.insert(0, _default_row(data, mixture.member) | {"weight": mixture.share})
        names = [NAME, *names] if mixture.share else names
    return SearchResult(
        predictor, rows, "+".join(names), simplest, reason, figures, predicted, outcome,
        interrupted=outcome == "interrupted",
    )  # fmt: skip


def _additions(residual_names: Sequence[str], mixture: Mixture, entries: int, rmse: float) -> str:
    """What was added to the mix, and the RMSE with it on so many entries."""
    added = [" and ".join(residual_names)] if residual_names else []
    added += [f"{mixture.share:.0%} {NAME}"] if mixture.share else []
    where = "" if mixture.own is None else f" on the {entries:,} of them that it did not learn from either"
    return f", with {' and '.join(added)} {rmse:.4g}{where}" if added else ""


def _default_row(data: Folds, member: DefaultMember) -> dict[str, Any]:
    """The default fit, scored on half of a fold, and how many fits its mean is of."""
    truth = data.tensor.values[member.positions]
    return {
        "name": NAME,
        "rmse": math.sqrt(squared_error(member.predictions, truth)),
        "folds": len(member.fits),
        "spread": None,
        "seconds": member.seconds,
        "failure": None,
        "gain": None,
    }


def _row(data: Folds, one: OutOfFold, rmse: float | None) -> dict[str, Any]:
    by_fold = [math.sqrt(one.squared_error(data, [fold])) for fold in one.predictions]
    return {
        "name": one.candidate.name,
        "rmse": by_fold[0] if rmse is None and by_fold else rmse,
        "folds": len(by_fold),
        "spread": float(np.std(by_fold)) if len(by_fold) > 1 else None,
        "seconds": one.seconds,
        "failure": one.failure,
    }
