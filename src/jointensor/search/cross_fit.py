"""Candidates fitted to folds of the entries: every entry is predicted by a fit that did not see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.predictors import Predictor
from jointensor.search.budget import Budget, Clock
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.executor import FitResult, Job, run_fits
from jointensor.search.families import FitOptions, family_of
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import Folds
from jointensor.search.interruption import Interruption
from jointensor.search.jit_warmup import warm_up
from jointensor.search.portfolio import Candidate
from jointensor.search.workers import ONE_WORKER, Workers
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
    """Of the last fit, in units of the budget, its share of the machine counted in; a first fit may have had something
    to compile."""
    longest: float = 0.0
    """Of the last fit by itself: what all of a stage takes at least if this fit is one of it."""
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


class Cost(NamedTuple):
    """What a fit costs, in units of the budget."""

    share: float
    """As one of many side by side: its share of the machine is counted in."""
    longest: float
    """By itself."""

    @classmethod
    def of(cls, fitted: OutOfFold) -> Cost:
        """A further fit of a candidate costs what the last one did."""
        return cls(fitted.cost, fitted.longest)


def cost_of_stage(fits: Sequence[Cost]) -> float:
    """Cost of fits that are made side by side as far as that goes: their shares together, and no less than one fit."""
    return max(sum(one.share for one in fits), max((one.longest for one in fits), default=0.0))


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
    """Asked when it is its turn; it is not made if not."""


class CrossFitter:
    """Fits candidates to folds, or to all entries; in the processes there are, and from the store.

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
    workers
        Make fits side by side.
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
        workers: Workers = ONE_WORKER,
    ) -> None:
        self._data, self._budget, self._options, self._store = data, budget, options, store
        self._interruption, self._processes, self._on_note, self._clock = interruption, processes, on_note, clock
        self._workers = workers
        self._warm: dict[object, Lock] = {}
        self._warming = Lock()

    def fit(self, results: Results, jobs: Sequence[tuple[Candidate, int]]) -> None:
        """Fit candidates to all folds but one each, and add them to the results as they come."""
        for candidate, _ in jobs:
            self._budget.spend(candidate)
        for _ in self.fit_folds(results, [self.fold_job(candidate, fold) for candidate, fold in jobs]):
            pass

    def fit_folds(self, results: Results, jobs: Sequence[FitJob]) -> Iterator[tuple[FitJob, FitResult]]:
        """The same for jobs whose fits are booked, one after the other: each, with its result added to the results."""
        for job, result in zip(jobs, self.run(jobs), strict=True):
            name = job.candidate.name
            if result.failure is not None:
                results[name] = replace(results.get(name, OutOfFold(job.candidate)), failure=result.failure)
                self._on_note(f"{name}: failed, {result.failure}")
            elif result.part is not None and job.fold is not None:
                before = results.get(name, OutOfFold(job.candidate))
                results[name] = _with_fold(before, job.fold, result, self._budget)
            yield job, result

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
        todo = [
            Job(partial(self._run, job), job.admitted, family_of(job.candidate).on_cpu, partial(self._keep, job))
            for job in jobs
        ]
        results = run_fits(self._processes, todo, self._interruption, stored, self._workers)
        for job, result in zip(jobs, results, strict=True):
            self._keep(job, result)  # those of other processes, too
            yield result

    def _keep(self, job: FitJob, result: FitResult) -> None:
        """Store a fit that is not stored yet."""
        if result.part is not None:
            self._store.save(job.key, result.part, result.seconds)

    def _run(self, job: FitJob) -> FitResult:
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

    def _warm_up(self, candidate: Candidate) -> None:
        """Compile what a candidate needs, once; on a GPU little is compiled that fits of other shapes use too."""
        key = family_of(candidate).warmup_key(candidate)
        if key is None or pick_device(self._options.device).type != "cpu":
            return
        with self._warming:
            first, busy = key not in self._warm, self._warm.setdefault(key, Lock())
            if first:
                busy.acquire()
        if not first:
            with busy:  # compiled in another thread: its time is not that of this fit
                return
        try:
            with suppress(*FAILURES):  # the fit itself will report it
                warm_up(candidate, self._data.tensor, replace(self._options, seconds=self._budget.time_limit()))
        finally:
            busy.release()


def _with_fold(before: OutOfFold, fold: int, result: FitResult, budget: Budget) -> OutOfFold:
    """With one more fold."""
    if result.part is None or result.predictions is None:
        return before
    return replace(
        before,
        fits={**before.fits, fold: result.part},
        predictions={**before.predictions, fold: result.predictions},
        cost=budget.cost(before.candidate, result.share * result.seconds),
        longest=budget.cost(before.candidate, result.seconds),
        seconds=before.seconds + result.seconds,
        predict_seconds=result.predict_seconds / max(len(result.predictions), 1),
    )
