"""Candidates fitted to folds of the entries: every entry is predicted by a fit that did not see it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.predictors import Predictor
from jointensor.search.budget import Budget, Clock
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.executor import FitResult, run_fits
from jointensor.search.families import FitOptions, family_of
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import Folds
from jointensor.search.interruption import Interruption
from jointensor.search.jit_warmup import warm_up
from jointensor.search.portfolio import Candidate
from jointensor.training.fit import pick_device

FAILURES = (ArithmeticError, MemoryError, RuntimeError)
"""Errors of a fit that do not concern other fits: it diverged, or the memory of a device is full."""


@dataclass(frozen=True)
class OutOfFold:
    """One candidate: its fits to folds, and their predictions for the entries they did not see."""

    candidate: Candidate
    fits: Mapping[int, Predictor] = field(default_factory=dict)
    """By fold."""
    predictions: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    """By fold."""
    cost: float = 0.0
    """Of the last fit, in units of the budget; a first fit may have had something to compile."""
    seconds: float = 0.0
    """Of all fits."""
    predict_seconds: float = 0.0
    """Seconds that the prediction of one entry takes."""
    failure: str | None = None
    """Why the last fit failed."""

    def squared_error(self, data: Folds, folds: Sequence[int]) -> float:
        """Mean squared error of out-of-fold predictions."""
        return squared_error(np.concatenate([self.predictions[fold] for fold in folds]), data.truth(folds))

    def n_predicting(self, folds: int) -> int:
        """Fits whose mean predicts if it is fitted to so many folds."""
        return 1 if family_of(self.candidate).refits else max(folds, len(self.fits))


Results = dict[str, OutOfFold]
"""By the name of the candidate."""


def fitted_to(results: Results, folds: Sequence[int]) -> Results:
    """The candidates that were fitted to all these folds."""
    return {name: one for name, one in results.items() if all(fold in one.predictions for fold in folds)}


@dataclass(frozen=True)
class FitJob:
    """One fit to be made, or loaded from the store."""

    candidate: Candidate
    key: str
    """In the store."""
    fit: Callable[[], Predictor]
    fold: int | None = None
    """Whose entries are predicted."""
    admitted: Callable[[], bool] = lambda: True
    """Asked when it is its turn; the result is empty if not."""


class CrossFitter:
    """Fits candidates to folds, to all entries, or shortly; in the processes there are, and from the store.

    Parameters
    ----------
    data
        The entries in folds.
    budget
        Booked for fits to folds.
    options
        Of all fits.
    store
        Where finished fits are kept; of the first process.
    interruption
        Checked between fits.
    processes
        Which make the fits.
    on_note
        Called with a line for the user.
    clock
        Measures fits.
    """

    def __init__(
        self,
        data: Folds,
        budget: Budget,
        options: FitOptions,
        store: FitStore,
        interruption: Interruption,
        processes: ProcessGroup = SINGLE_PROCESS,
        on_note: Callable[[str], None] = lambda _: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._data, self._budget, self._options, self._store = data, budget, options, store
        self._interruption, self._processes, self._on_note, self._clock = interruption, processes, on_note, clock
        self._warm: set[object] = {None}

    def fit(self, results: Results, jobs: Sequence[tuple[Candidate, int]]) -> None:
        """Fit candidates to all folds but one each, and add them to the results as they come."""
        for candidate, _ in jobs:
            results.setdefault(candidate.name, OutOfFold(candidate))
            self._budget.spend(candidate)
        found = self.run([self.fold_job(candidate, fold) for candidate, fold in jobs])
        for (candidate, fold), result in zip(jobs, found, strict=True):
            name = candidate.name
            if result.part is None or result.predictions is None:
                results[name] = replace(results[name], failure=result.failure)
                self._on_note(f"{name}: failed, {result.failure}")
            else:
                results[name] = _with_fold(results[name], fold, result, self._budget)

    def fit_shortly(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """RMSE of short fits to the first fold by name, to rank candidates by; without those that fail."""
        for candidate in candidates:
            self._budget.spend(candidate, self._options.settings.short_fit_cost)
        found: dict[str, float] = {}
        jobs = [partial(self._short_fit, candidate) for candidate in candidates]
        for candidate, result in zip(candidates, run_fits(self._processes, jobs, self._interruption), strict=True):
            if result.short_rmse is None:
                self._on_note(f"{candidate.name}: short fit failed, {result.failure}")
            else:
                found[candidate.name] = result.short_rmse
                self._on_note(f"{candidate.name}: short fit, RMSE {result.short_rmse:.4g}, {result.seconds:.1f} s")
        return found

    def fold_job(self, candidate: Candidate, fold: int, admitted: Callable[[], bool] = lambda: True) -> FitJob:
        """A fit to all folds but one, which predicts that one."""

        def fit() -> Predictor:
            options = replace(self._options, seconds=self._budget.time_limit(candidate))
            return family_of(candidate).fit(candidate, *self._data.split(fold), options)

        return FitJob(candidate, f"{candidate.slug}.{fold}", fit, fold, admitted)

    def refit_job(
        self,
        candidate: Candidate,
        fits: Sequence[Predictor],
        tensor: SparseTensor,
        number: int,
        admitted: Callable[[], bool],
    ) -> FitJob:
        """A fit to all entries of a tensor, the ``number``-th from another seed; ``fits`` to folds may say how."""

        def fit() -> Predictor:
            seconds = self._budget.time_limit(reserve=False)
            options = replace(self._options, seed=self._options.seed + number, seconds=seconds)
            return family_of(candidate).refit(candidate, fits, tensor, options)

        return FitJob(candidate, f"{candidate.slug}.all-{len(tensor)}.{number}", fit, None, admitted)

    def run(self, jobs: Sequence[FitJob]) -> Iterator[FitResult]:
        """Results of jobs in their order; those that have a model are stored."""
        stored = self._processes.decide(lambda: [self._store.has(job.key) for job in jobs])
        tasks = [partial(self._run, job) for job in jobs]
        for job, result in zip(jobs, run_fits(self._processes, tasks, self._interruption, stored), strict=True):
            if result.part is not None:
                self._store.save(job.key, result.part, result.seconds)
            yield result

    def _run(self, job: FitJob) -> FitResult:
        if not job.admitted():
            return FitResult()
        try:
            stored = self._store.load(job.key)
            if stored is None:
                self._warm_up(job.candidate)
            begin = self._clock()
            part, seconds = stored or (job.fit(), self._clock() - begin)
            return FitResult(part, seconds) if job.fold is None else self._predicted(part, seconds, job.fold)
        except FAILURES as error:
            return FitResult(failure=str(error).partition("\n")[0])

    def _predicted(self, part: Predictor, seconds: float, fold: int) -> FitResult:
        """The result with predictions for the fold's entries."""
        cells = self._data.left_out(fold).indices
        part.predict(cells[:1])  # the first prediction may compile or load something
        begin = self._clock()
        predictions = self._data.clip(part.predict(cells))
        if not np.isfinite(predictions).all():
            return FitResult(failure="its predictions are not finite")
        return FitResult(part, seconds, predictions, self._clock() - begin)

    def _short_fit(self, candidate: Candidate) -> FitResult:
        train, valid = self._data.split(0)
        self._warm_up(candidate)
        begin = self._clock()
        try:
            options = replace(self._options, short=True, seconds=self._budget.time_limit())
            part = family_of(candidate).fit(candidate, train, valid, options)
            error = squared_error(self._data.clip(part.predict(valid.indices)), valid.values)
        except FAILURES as failure:
            return FitResult(failure=str(failure).partition("\n")[0])
        return FitResult(seconds=self._clock() - begin, short_rmse=math.sqrt(error))

    def _warm_up(self, candidate: Candidate) -> None:
        """Compile what a candidate needs, once; on a GPU little is compiled that fits of other shapes use too."""
        key = family_of(candidate).warmup_key(candidate)
        if key not in self._warm and pick_device(self._options.device).type == "cpu":
            self._warm.add(key)
            with suppress(*FAILURES):  # the fit itself will report it
                warm_up(candidate, self._data.tensor, replace(self._options, seconds=self._budget.time_limit()))


def _with_fold(before: OutOfFold, fold: int, result: FitResult, budget: Budget) -> OutOfFold:
    """With one more fold."""
    if result.part is None or result.predictions is None:
        return before
    return replace(
        before,
        fits={**before.fits, fold: result.part},
        predictions={**before.predictions, fold: result.predictions},
        cost=budget.cost(before.candidate, result.seconds),
        seconds=before.seconds + result.seconds,
        predict_seconds=result.predict_seconds / max(len(result.predictions), 1),
    )
