"""The fits that predict in the end: to all entries, and means of several where they depend on the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import Predictor
from jointensor.predictors.ensemble import Member
from jointensor.search.budget import Budget
from jointensor.search.cross_fit import Cost, CrossFitter, FitJob, OutOfFold, Results, cost_of_stage
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.executor import FitResult
from jointensor.search.families import family_of
from jointensor.search.folds import Folds
from jointensor.search.interruption import Interruption
from jointensor.search.settings import SETTINGS, SearchSettings

Parts = dict[str, tuple[Predictor, ...]]
"""Fits whose mean predicts, by the name of the member."""


def members_of(weights: dict[str, float], parts: Parts) -> tuple[Member, ...]:
    """Members of the ensemble."""
    return tuple(Member(name, weight, parts[name]) for name, weight in weights.items())


def fold_parts(members: Iterable[OutOfFold]) -> Parts:
    """The fits to folds."""
    return {one.candidate.name: tuple(one.fits.values()) for one in members}


@dataclass(frozen=True)
class Refitting:
    """What makes fits to all entries, and ends them."""

    fitter: CrossFitter
    budget: Budget
    interruption: Interruption
    settings: SearchSettings = SETTINGS
    on_note: Callable[[str], None] = lambda _: None

    def refit(self, parts: Parts, results: Results, tensor: SparseTensor, spare: float = 0.0) -> Parts:
        """Members fitted to all entries of a tensor; the fits before where that fails, or is not affordable.

        Parameters
        ----------
        parts
            The fits before, of all members.
        results
            Fits to folds.
        tensor
            The entries.
        spare
            Cost that is needed afterwards.
        """
        found = dict(parts)
        if self.interruption.happened:
            return found
        with self.interruption.ends_stage():
            again = [results[name] for name in parts if family_of(results[name].candidate).refits]
            jobs = [self._refit_job(one, tensor, 0, spare) for one in again]
            for one, result in zip(again, self.fitter.run(jobs), strict=True):
                name = one.candidate.name
                if result.failure is not None:
                    self.on_note(f"{name}: the fit to all entries failed ({result.failure}); using the folds' fits")
                if result.part is not None:
                    found[name] = (result.part,)
        return found

    def refit_with_untouched(self, parts: Parts, results: Results, data: Folds) -> Parts:
        """Members once intervals are calibrated: they may learn from the entries that were held out for that, and be
        means of more fits.

        A member that is averaged keeps the fit it has: others are added to it.
        """
        if self.interruption.happened:
            return parts
        learnt = data.tensor
        again = cost_of_stage([Cost.of(results[n]) for n in parts if family_of(results[n].candidate).refits])
        if len(data.untouched) and self.budget.affords(again):
            learnt = data.whole
            single = [n for n in parts if family_of(results[n].candidate).n_averaged(self.settings) == 1]
            parts = parts | self.refit({name: parts[name] for name in single}, results, learnt)
        return self._averaged(parts, results, data, learnt)

    def _averaged(self, parts: Parts, results: Results, data: Folds, tensor: SparseTensor) -> Parts:
        """Members with further fits from other seeds, or to further folds; networks first, which gain most."""
        found = dict(parts)
        if self.interruption.happened:
            return found
        with self.interruption.ends_stage():
            names = sorted(parts, key=lambda name: family_of(results[name].candidate).refits)
            jobs = [(results[name], job) for name in names for job in self._further(results[name], tensor)]
            for (one, job), result in zip(jobs, self.fitter.run([job for _, job in jobs]), strict=True):
                if result.part is not None and (job.fold is None or self._is_near(one, job.fold, result, data)):
                    found[one.candidate.name] = (*found[one.candidate.name], result.part)
                elif result.failure is not None:
                    self.on_note(f"{one.candidate.name}: a further fit failed, {result.failure}")
        return found

    def _further(self, one: OutOfFold, tensor: SparseTensor) -> Iterable[FitJob]:
        """Fits from other seeds; or to the other folds, if the mean over folds predicts."""
        if family_of(one.candidate).refits:
            for number in range(1, family_of(one.candidate).n_averaged(self.settings)):
                yield self._refit_job(one, tensor, number)
        else:
            for fold in range(FOLDS):
                if fold not in one.fits:
                    yield self.fitter.fold_job(one.candidate, fold, self.budget.admit(one.longest, reserve=True))

    def _refit_job(self, one: OutOfFold, tensor: SparseTensor, number: int, spare: float = 0.0) -> FitJob:
        admitted = self.budget.admit(one.longest, spare=spare)
        return self.fitter.refit_job(one.candidate, list(one.fits.values()), tensor, number, admitted)

    def _is_near(self, one: OutOfFold, fold: int, result: FitResult, data: Folds) -> bool:
        """Whether a further fold's fit is about as good as the others."""
        name, worst = one.candidate.name, max(one.squared_error(data, [other]) for other in one.predictions)
        near = result.predictions is not None and (
            squared_error(result.predictions, data.truth([fold])) <= self.settings.max_fold_error_ratio * worst
        )
        text = f"fold {fold + 1} of {FOLDS}, to be averaged" if near else "a further fold is far off"
        self.on_note(f"{name}: {text}")
        return near
