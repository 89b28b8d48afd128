"""``--rank auto``: try structures on folds of the entries, keep those that validate, and explain the choice.

default    the default fit, which any result is mixed with; again with other validation entries on dense tensors
screen     candidates on the first fold, as far as all folds of them are affordable
cross-fit  the few that are good together on the other folds: every entry is predicted by fits that did not see it
late       further networks, and those that help on the other folds
stack      weights that predict the left-out entries best
residuals  kriging, nearest neighbours and tables of the residuals
calibrate  intervals from the same left-out entries
refit      members fitted to all entries, and averaged
repeat     the default fit on sparse tensors, where the search gains more
explain    rows, figures and the reason
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jointensor._version import __version__
from jointensor.data.split import Groups
from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.predictors import fit_bias, refit_tables
from jointensor.predictors.ensemble import Ensemble
from jointensor.search.budget import Clock, make_budget
from jointensor.search.cross_fit import CrossFitter, Results
from jointensor.search.default_member import DefaultFitter, mix
from jointensor.search.explanation import SearchResult, explain
from jointensor.search.families import FitOptions, family_of
from jointensor.search.fit_store import FitStore, fingerprint_of
from jointensor.search.folds import Folds, fold_entries
from jointensor.search.interruption import Interruption
from jointensor.search.intervals import calibrated
from jointensor.search.portfolio import BIAS, Candidate, candidates_for, is_sparse
from jointensor.search.refit import Parts, Refitting, fold_parts, members_of
from jointensor.search.residuals import fit_residual_models, out_of_fold_predictions, residual_plan
from jointensor.search.screening import Screening, prediction_seconds
from jointensor.search.settings import SETTINGS, SearchSettings
from jointensor.search.stacking import Stack, stack
from jointensor.search.workers import Workers
from jointensor.training.fit import pick_device


def search(  # noqa: PLR0913 - everything that decides a search
    tensor: SparseTensor,
    *,
    seed: int = 0,
    budget: float | None = None,
    budget_fits: int | None = None,
    device: str = "auto",
    engine: str = "auto",
    groups: Groups = (),
    store: Path | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    processes: ProcessGroup = SINGLE_PROCESS,
    stopping: Callable[[], bool] = lambda: False,
    candidates: Sequence[Candidate] | None = None,
    settings: SearchSettings | None = None,
    clock: Clock = time.monotonic,
) -> SearchResult:
    """Choose, fit and explain.

    Parameters
    ----------
    tensor
        The entries to learn from.
    seed
        Of everything random.
    budget
        Seconds; 600 if there is no budget in fits either.
    budget_fits
        Fits instead of seconds: the same number and seed give the same result on every machine load.
    device
        ``auto`` takes a GPU where there is one.
    engine
        Which kernels do the work.
    groups
        Entries that are left out together, so that they look like those to predict.
    store
        Folder for finished fits, from which a search that was stopped goes on. It is never removed here.
    on_note
        Called with a line for the user.
    processes
        Processes that make fits side by side; all have the same tensor.
    stopping
        Asked between fits, and between the steps of a fit, whether to stop: the search then ends with the fits that
        have finished.
    candidates
        What to choose from. If not given: the default fit, unless several processes make the fits, and
        :func:`~jointensor.search.portfolio.candidates_for` the tensor.
    settings
        Numbers of the search.
    clock
        Returns seconds.
    """
    settings = SETTINGS if settings is None else settings
    data = fold_entries(tensor, groups, seed, settings)
    limit = make_budget(budget, budget_fits, clock, processes, settings)
    interruption = Interruption(stopping, processes, on_note)
    fingerprint = "" if store is None else fingerprint_of(tensor, __version__, seed, groups, settings)
    fits = FitStore(store, fingerprint, on_note)
    offered = candidates_for(data.tensor, settings) if candidates is None else candidates
    # several processes share the machine as they are, and stop together: none of them within a fit
    made_by = Workers() if processes.shared else Workers.of(pick_device(device), len(data.tensor), settings)
    with made_by as workers:
        within = (lambda: False) if processes.shared else workers.stopping(stopping)
        options = FitOptions(seed, device, engine, data.groups, settings=settings, stopping=within, clock=clock)
        fitter = CrossFitter(data, limit, options, fits, interruption, processes, on_note, clock, workers)
        default_fitter = DefaultFitter(data, limit, options, fits, on_note, clock, workers)
        first = default_fitter.first() if candidates is None and not processes.shared else None
        if first is not None and not is_sparse(data.tensor, settings):
            first = default_fitter.repeated(first)
        costs = () if first is None else first.costs
        screening = Screening(data, limit, fitter, offered, processes, settings, on_note, costs)

        results = _cross_fitted(screening, fitter, interruption)
        chosen = stack(data, results, processes, settings)
        members = [results[name] for name in chosen.weights]
        later = limit.cost_of_seconds(prediction_seconds(data, members, len(chosen.folds), settings))
        refitting = Refitting(fitter, limit, interruption, settings, on_note)
        parts = refitting.refit(fold_parts(members), results, data.tensor, spare=later)
        bare = _ensemble(data, results, chosen, parts)
        plan = residual_plan(data, chosen, results, limit, later, settings, short=interruption.happened)
        models = fit_residual_models(data, chosen, bare, plan)
        found = replace(bare, residual_models=models.models)
        mixture = mix(data, first, found, out_of_fold_predictions(data, chosen, models), settings)
        calibration = calibrated(data, mixture.around(found), mixture.rest, mixture.own, seed).calibration
        parts = refitting.refit_with_untouched(parts, results, data)
        if mixture.member is not None and mixture.share:
            mixture = replace(mixture, member=default_fitter.repeated(mixture.member))
            with interruption.ends_stage():
                interruption.check()
    predictor = mixture.around(_final_ensemble(data, results, chosen, parts, found))
    predictor = replace(predictor, calibration=calibration)
    outcome = "interrupted" if interruption.happened else "budget" if limit.exhausted else "converged"
    return explain(data, results, chosen, mixture, predictor, models.names, outcome)


def _cross_fitted(screening: Screening, fitter: CrossFitter, interruption: Interruption) -> Results:
    """Out-of-fold predictions of all candidates that were tried; of biases at least."""
    results: Results = {}
    with interruption.ends_stage():
        screening.try_core(results)
        screening.try_further(results, "richer")
        screening.cross_fit(results)
        screening.try_further(results, "late")
        screening.cross_fit(results)
    if not any(one.predictions for one in results.values()):
        fitter.fit(results, [(BIAS, 0)])
    return results


def _ensemble(data: Folds, results: Results, chosen: Stack, parts: Parts) -> Ensemble:
    """The ensemble without residual models and intervals."""
    tried: list[Any] = list(results[BIAS.name].fits.values()) if BIAS.name in results else []
    if tried:  # shrunk as on a fold
        fallback = refit_tables(tried[0], data.tensor)
    else:
        fallback = fit_bias(data.tensor, data.tensor.take(np.zeros(0, dtype=np.int64)))
    low, high = float(data.tensor.values.min()), float(data.tensor.values.max())
    return Ensemble(
        members_of(chosen.weights, parts), (), fallback, low, high, dependency=data.dependent_values(data.tensor)
    )


def _final_ensemble(data: Folds, results: Results, chosen: Stack, parts: Parts, found: Ensemble) -> Ensemble:
    """The ensemble with its last fits, in the memory of the CPU, and the values of all entries."""
    parts = {
        name: tuple(family_of(results[name].candidate).to_cpu(part) for part in fits) for name, fits in parts.items()
    }
    return replace(found, members=members_of(chosen.weights, parts), dependency=data.dependent_values(data.whole))
