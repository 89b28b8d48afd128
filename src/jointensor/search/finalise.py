"""What a search comes to: a mix of what was tried, with memory and intervals, and the reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import Tables, fit_bias, refit_tables
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.dependencies import dependency_table
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.residual_stack import ResidualStack, fit_residual_stack
from jointensor.predictors.tables import Table
from jointensor.search.cross_validation import CrossValidation, Trial
from jointensor.search.ensemble_selection import Errors, squared_error
from jointensor.search.refit import last_fits, members_of

OVERTIME = 1.25
"""Times the budget within which members may have answered for all entries: neighbours among all are worth it."""

MISSES = 5.0
"""Times as often as asked for, entries whose value is not known may lie outside of their intervals: others, whose value
is known, never do."""


@dataclass(frozen=True)
class SearchResult:
    """What was chosen, and why."""

    predictor: Ensemble
    trials: list[dict[str, Any]]
    """A row per candidate: name, rmse, spread over folds, standard error, seconds, weight."""
    chosen: str
    simplest: str
    """The simplest candidate within one standard error of the best."""
    reason: str
    figures: dict[str, float]
    """RMSE of left-out entries: best single candidate, the mix, the mix with memory."""
    predicted: NDArray[np.float32]
    """What was predicted for entries that were left out; NaN where none was."""
    outcome: str


def finalise(search: CrossValidation) -> SearchResult:
    """Mix, remember, calibrate, and say why."""
    folds = search.processes.decide(lambda: _folds_that_judge(search))
    done = search.done(folds)
    truth = search.truth(folds)
    said = {name: np.concatenate([one.predicted[fold] for fold in folds]) for name, one in done.items()}
    weights = search.processes.decide(lambda: Errors.of(said, truth).best_weights())
    asking = search.asking(weights, len(folds))
    members = members_of(search, weights, search.tensor, spare=asking)
    fallback = _fallback(search)
    low, high = float(search.tensor.values.min()), float(search.tensor.values.max())
    predictor = Ensemble(members, (), fallback, low, high, dependency=_decided(search, search.tensor))
    where = np.concatenate([np.flatnonzero(search.folds == fold) for fold in folds])
    mixed = sum(weight * said[name].astype(np.float64) for name, weight in weights.items())
    # refitted tables know of the other entries what residuals of left-out ones say once more
    tables = bool(len(search.fresh)) or _tabulated(search, weights) < 0.5
    ask_all = len(folds) < FOLDS and not search.interrupted and search.left(OVERTIME) > asking
    memory = _remember(search, predictor, where, truth - mixed, tables=tables, ask_all=ask_all)
    known = np.flatnonzero(search.settled & np.isin(search.parted, folds))  # others had the same values
    where = np.append(where, known)
    predicted = np.append(search.clip(truth - memory.residuals), search.tensor.values[known])
    predictor = _calibrated(search, replace(predictor, residual_models=memory.models), where, predicted)
    answers = np.full(len(search.whole), np.nan, dtype=np.float32)
    answers[search.places[where]] = predicted
    members, decided = last_fits(search, weights, predictor.members), _decided(search, search.whole)
    predictor = replace(predictor, members=members, dependency=decided)
    for fit in predictor.joint_predictors:
        fit.model.cpu()
    return _explain(search, predictor, said, truth, weights, memory.names, answers, folds)


def _folds_that_judge(search: CrossValidation) -> list[int]:
    """As many as members were fitted to; fewer where a member would be lost that is worth more: a fold was cut off."""
    errors = search.errors()
    among = {k: list(search.done(list(range(k)))) for k in range(1, FOLDS + 1)}
    expected = {k: search.expected_error(errors.among(names), 1) for k, names in among.items() if names}
    most = search.nearly(min(expected.values()))
    return list(range(max(k for k, error in expected.items() if error <= most)))


def _fallback(search: CrossValidation) -> Tables:
    """Biases of all entries, for labels that were never seen; shrunk as on a fold, where they were tried."""
    tried = search.trials["bias"].fits.values() if "bias" in search.trials else ()
    for one in tried:
        return refit_tables(one.part, search.tensor)  # type: ignore[arg-type]
    return fit_bias(search.tensor, search.tensor.take(np.zeros(0, dtype=np.int64)))


def _remember(
    search: CrossValidation,
    bare: Ensemble,
    where: NDArray[np.integer],
    left: NDArray[np.floating],
    *,
    tables: bool,
    ask_all: bool,
) -> ResidualStack:
    """Memory of what the mix leaves of entries that were left out; or of all entries, where that is better."""
    along = search.along()

    def learnt(entries: SparseTensor, residuals: NDArray[Any], folds: NDArray[Any], **how: Any) -> ResidualStack:
        return fit_residual_stack(entries, residuals, folds, along=along, groups=search.groups, **how)

    def judged(memory: ResidualStack) -> tuple[float, ResidualStack]:
        count, error = replace(bare, residual_models=memory.models).best_stack_size(search.fresh)
        return error, memory.first(count)

    # Residuals of partners were left by models that knew the entry: only untouched ones tell what that is worth.
    beside = search.beside(len(where)) if len(search.fresh) and not search.interrupted else []
    memory = learnt(search.tensor.take(where), left, search.folds[where], tables=tables, beside=beside)
    if not len(search.fresh):
        return memory
    error, memory = judged(memory)
    if ask_all and memory.uses_kriging:
        # Residuals of entries that models did see are a little too small, but there are many more of them.
        residuals = search.tensor.values - bare.weighted_mean(search.tensor.indices)
        residuals[where] = left
        other, more = judged(learnt(search.tensor, residuals, search.folds, tables=False))
        memory = more.at(where) if other < error else memory
    return memory


def _tabulated(search: CrossValidation, weights: dict[str, float]) -> float:
    """Share of the mix that tabulates combinations of labels itself."""
    tabulate = [name for name in weights if "tables" in name or search.trials[name].candidate.kind == "trees"]
    return sum(weights[name] for name in tabulate)


def _decided(search: CrossValidation, tensor: SparseTensor) -> Table | None:
    return None if search.deciding is None else dependency_table(tensor, search.deciding)


def _calibrated(
    search: CrossValidation, predictor: Ensemble, where: NDArray[np.integer], predicted: NDArray[np.float32]
) -> Ensemble:
    """The same with intervals, from what was predicted for entries that were left out."""
    entries, bounds = search.tensor.take(where), (predictor.low, predictor.high)
    cold = _cold(search, entries, search.parted[where])
    left_out = HeldOut(entries.indices, predicted, entries.values - predicted, cold)
    left_out = _thinned(left_out, search.settled[where], search.seed)
    calibration = calibrate(left_out, search.tensor.shape, _untouched(search, predictor), search.seed, bounds)
    return replace(predictor, calibration=calibration)


def _thinned(entries: HeldOut, known: NDArray[np.bool_], seed: int) -> HeldOut:
    """Fewer of those whose value is known: they never miss, and all misses would fall on the others."""
    open_, most = np.flatnonzero(~known), round((MISSES - 1) * (~known).sum())
    if not 0 < most < known.sum():
        return entries
    some = np.random.default_rng([seed, 11]).permutation(np.flatnonzero(known))[:most]
    return entries.at(np.sort(np.append(open_, some)))


def _untouched(search: CrossValidation, predictor: Ensemble) -> HeldOut | None:
    """Entries that nothing was learnt from, seen by what answers."""
    if not len(search.fresh):
        return None
    cells = search.fresh.indices
    said = predictor.predict(cells)
    fresh = HeldOut(cells, said, search.fresh.values - said, predictor.unseen(cells))
    return _thinned(fresh, predictor.determined(cells), search.seed)


def _cold(search: CrossValidation, entries: SparseTensor, folds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which entries have a label that what predicted them did not see."""
    cold = np.zeros(len(entries), dtype=np.bool_)
    for n, size in enumerate(search.tensor.shape):
        column = search.tensor.indices[:, n]
        whole = np.bincount(column, minlength=size)
        for fold in np.unique(folds):
            own = np.bincount(column[search.folds == fold], minlength=size)  # what its models did not see
            mine = folds == fold
            cold[mine] |= (whole - own)[entries.indices[mine, n]] == 0
    return cold


def _explain(
    search: CrossValidation,
    predictor: Ensemble,
    said: dict[str, NDArray[np.float32]],
    truth: NDArray[np.float32],
    weights: dict[str, float],
    kept: list[str],
    answers: NDArray[np.float32],
    folds: list[int],
) -> SearchResult:
    errors = {name: (one - truth).astype(np.float64) ** 2 for name, one in said.items()}
    rmse = {name: math.sqrt(one.mean()) for name, one in errors.items()}
    best = min(rmse, key=lambda name: rmse[name])
    near = [
        name
        for name, one in errors.items()
        if (one - errors[best]).mean() <= (one - errors[best]).std() / math.sqrt(len(truth))
    ]
    simplest = min(near, key=lambda name: search.trials[name].candidate.simplicity)
    mix = np.sum([weight * said[name].astype(np.float64) for name, weight in weights.items()], axis=0)
    said_at = answers[search.places]
    known = np.isfinite(said_at) & ~search.settled
    final = math.sqrt(squared_error(said_at[known], search.tensor.values[known]))
    figures = {"single": rmse[best], "mix": math.sqrt(squared_error(mix, truth)), "all": final}
    parts = ", ".join(f"{weight:.0%} {name}" for name, weight in weights.items())
    reason = (
        f"on {len(truth):,} entries that were left out, {best} alone has an RMSE of {rmse[best]:.4g}, "
        f"the mix ({parts}) {figures['mix']:.4g}"
        + (f", with {' and '.join(kept)} {final:.4g}" if kept else "")
        + f"; the simplest within one standard error of the best single one is {simplest}"
        + _known(search)
    )
    rows = [_row(search, trial, rmse.get(name), weights.get(name, 0.0)) for name, trial in search.trials.items()]
    outcome = "interrupted" if search.interrupted else "converged" if search.left() > 0 else "budget"
    return SearchResult(predictor, rows, "+".join(weights), simplest, reason, figures, answers, outcome)


def _known(search: CrossValidation) -> str:
    if search.deciding is None:
        return ""
    names = " and ".join(search.tensor.modes[n].name for n in search.deciding)
    return f"; where {names} were seen together, their value is the answer: they never had two"


def _row(search: CrossValidation, trial: Trial, rmse: float | None, weight: float) -> dict[str, Any]:
    by_fold = [math.sqrt(search.mse(trial, [fold])) for fold in trial.predicted]
    return {
        "name": trial.candidate.name,
        "rmse": by_fold[0] if rmse is None and by_fold else rmse,
        "folds": len(by_fold),
        "spread": float(np.std(by_fold)) if len(by_fold) > 1 else None,
        "seconds": sum(one.seconds for one in trial.fits.values()),
        "weight": weight,
        "failure": trial.failure,
    }
