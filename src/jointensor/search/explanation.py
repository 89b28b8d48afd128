"""What a search found, and the reasons in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.predictors.ensemble import Ensemble
from jointensor.search.cross_fit import OutOfFold, Results
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.folds import Folds
from jointensor.search.stacking import Stack


@dataclass(frozen=True)
class SearchResult:
    """The chosen predictor, and why it was chosen."""

    predictor: Ensemble
    trials: list[dict[str, Any]]
    """A row per candidate: name, rmse, folds, spread over folds, seconds, weight, failure."""
    chosen: str
    """Names of the members."""
    simplest: str
    """The simplest candidate within one standard error of the best."""
    reason: str
    figures: dict[str, float]
    """RMSE of left-out entries: ``single`` best candidate, the ``mix``, ``all`` with residual models."""
    predicted: NDArray[np.float32]
    """Out-of-fold predictions for all entries, ``(entries,)``; NaN for those that have none."""
    outcome: str
    """``converged``, ``budget`` if that was used up, or ``interrupted``."""
    interrupted: bool = False
    """Whether the search was stopped before its end; with its store it can be resumed."""


def explain(
    data: Folds,
    results: Results,
    stack: Stack,
    predictor: Ensemble,
    residual_names: Sequence[str],
    left_out: tuple[NDArray[np.int64], NDArray[np.float32]],
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
    predictor
        What was made of them.
    residual_names
        Residual models that were kept.
    left_out
        Positions of entries in the tensor, and out-of-fold predictions for them.
    outcome
        How the search ended.
    """
    errors = {name: (one - stack.truth).astype(np.float64) ** 2 for name, one in stack.predictions.items()}
    rmse = {name: math.sqrt(one.mean()) for name, one in errors.items()}
    best = min(rmse, key=lambda name: rmse[name])
    near = [name for name, one in errors.items() if _within_standard_error(one - errors[best])]
    simplest = min(near, key=lambda name: results[name].candidate.simplicity)
    predicted = np.full(len(data.whole), np.nan, dtype=np.float32)
    predicted[data.positions[left_out[0]]] = left_out[1]
    own = predicted[data.positions]
    known = np.isfinite(own) & ~data.dependent
    final = math.sqrt(squared_error(own[known], data.tensor.values[known]))
    figures = {"single": rmse[best], "mix": math.sqrt(squared_error(stack.mixed, stack.truth)), "all": final}
    members = ", ".join(f"{weight:.0%} {name}" for name, weight in stack.weights.items())
    reason = (
        f"on {len(stack.truth):,} entries that were left out, {best} alone has an RMSE of {rmse[best]:.4g}, "
        f"the mix ({members}) {figures['mix']:.4g}"
        + (f", with {' and '.join(residual_names)} {final:.4g}" if residual_names else "")
        + f"; the simplest within one standard error of the best single one is {simplest}"
        + _dependency(data)
    )
    rows = [_row(data, one, rmse.get(name), stack.weights.get(name, 0.0)) for name, one in results.items()]
    return SearchResult(
        predictor, rows, "+".join(stack.weights), simplest, reason, figures, predicted, outcome,
        interrupted=outcome == "interrupted",
    )  # fmt: skip


def _within_standard_error(differences: NDArray[np.float64]) -> bool:
    """Whether differences of squared errors, ``(entries,)``, are on average at most their standard error."""
    return bool(differences.mean() <= differences.std() / math.sqrt(len(differences)))


def _dependency(data: Folds) -> str:
    if data.deciding is None:
        return ""
    names = " and ".join(data.tensor.modes[n].name for n in data.deciding)
    return f"; {names} decide the value, so that entries whose combination was seen before have the value seen there"


def _row(data: Folds, one: OutOfFold, rmse: float | None, weight: float) -> dict[str, Any]:
    by_fold = [math.sqrt(one.squared_error(data, [fold])) for fold in one.predictions]
    return {
        "name": one.candidate.name,
        "rmse": by_fold[0] if rmse is None and by_fold else rmse,
        "folds": len(by_fold),
        "spread": float(np.std(by_fold)) if len(by_fold) > 1 else None,
        "seconds": one.seconds,
        "weight": weight,
        "failure": one.failure,
    }
