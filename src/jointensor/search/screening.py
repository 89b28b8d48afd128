"""Which candidates are worth fitting, and to how many folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import TypeVar

from jointensor.data.split import FOLDS
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.search.budget import Budget
from jointensor.search.cross_fit import Cost, CrossFitter, FitJob, OutOfFold, Results, cost_of_stage, fitted_to
from jointensor.search.ensemble_selection import ErrorProducts, tolerated_error
from jointensor.search.families import family_of
from jointensor.search.folds import Folds
from jointensor.search.portfolio import Candidate, Stage
from jointensor.search.settings import SETTINGS, SearchSettings

T = TypeVar("T")


def first_fold_errors(data: Folds, results: Results) -> ErrorProducts:
    """Errors of all candidates on the first fold."""
    predictions = {name: one.predictions[0] for name, one in fitted_to(results, [0]).items()}
    return ErrorProducts.of(predictions, data.truth([0]))


def prediction_seconds(data: Folds, members: Sequence[OutOfFold], folds: int, settings: SearchSettings) -> float:
    """Seconds in which members predict all entries, for kriging of what that leaves.

    None if there is no kriging, or so many folds that all entries have out-of-fold predictions.
    """
    if folds == FOLDS or not len(data.untouched) or not data.kriging_axes():
        return 0.0
    return len(data.tensor) * sum(one.predict_seconds * one.n_predicting(folds) for one in members)


@dataclass
class FoldPlan:
    """Who is fitted to which fold; decided fold by fold, when the first fit to it is to begin."""

    members: list[str]
    others: list[str]
    affordable: Callable[[Sequence[str], int], bool]
    """Whether all of some candidates can be fitted to a fold."""
    decided: dict[int, list[str]] = field(default_factory=dict)

    def admits(self, name: str, fold: int) -> bool:
        """Whether a candidate is fitted to a fold: all are, the members alone, or none; nobody comes back."""
        if fold not in self.decided:
            before = self.decided[max(self.decided)] if self.decided else self.members + self.others
            subsets = [before, [one for one in before if one in self.members]]
            self.decided[fold] = next((names for names in subsets if names and self.affordable(names, fold)), [])
        return name in self.decided[fold]


class Screening:
    """Tries candidates as far as the budget lasts.

    Parameters
    ----------
    data
        The entries in folds.
    budget
        In whose units all costs are.
    fitter
        Makes the fits.
    candidates
        All that there are.
    processes
        Several decide together what is affordable, and try as many candidates at a time.
    settings
        Numbers of the search.
    on_note
        Called with a line for the user.
    costs
        Candidates that were fitted elsewhere, with their seconds: what a family costs before one of it was tried.
    """

    def __init__(
        self,
        data: Folds,
        budget: Budget,
        fitter: CrossFitter,
        candidates: Sequence[Candidate],
        processes: ProcessGroup = SINGLE_PROCESS,
        settings: SearchSettings = SETTINGS,
        on_note: Callable[[str], None] = lambda _: None,
        costs: Sequence[tuple[Candidate, float]] = (),
    ) -> None:
        self._data, self._budget, self._fitter, self._candidates = data, budget, fitter, candidates
        self._costs = costs
        self._processes, self._settings, self._on_note = processes, settings, on_note

    # --- screening on the first fold

    def try_core(self, results: Results) -> None:
        """Candidates of the core, as far as their share of the budget lasts; the first one in any case."""
        core = [one for one in self._candidates if one.stage == "core"]
        first = core[0] if core and not results else None

        def affordable(candidate: Candidate) -> bool:
            most = min(self._budget.remaining(self._settings.screening_share), self._budget.max_cost(candidate))
            return candidate is first or most >= self._expected_cost(results, candidate).longest

        self._try(results, core, affordable)

    def try_further(self, results: Results, stage: Stage) -> None:
        """Candidates of a later stage, of families that are not far behind; those that follow another one last."""
        found = [one for one in self._candidates if one.stage == stage]
        self._try_if_worth(results, [one for one in found if one.after is None])
        self._try_if_worth(results, [one for one in found if self._follows(results, one)])

    def _turns(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """All at a time; as many as there are processes where several have to decide together what is affordable."""
        size = self._processes.size if self._processes.shared else max(len(items), 1)
        for first in range(0, len(items), size):
            yield items[first : first + size]

    def _follows(self, results: Results, candidate: Candidate) -> bool:
        """Whether it comes after another candidate, and that is the best of the family."""
        errors = {
            name: one.squared_error(self._data, [0])
            for name, one in fitted_to(results, [0]).items()
            if one.candidate.family == candidate.family
        }
        return bool(errors) and min(errors, key=lambda name: errors[name]) == candidate.after

    def _try_if_worth(self, results: Results, candidates: Sequence[Candidate]) -> None:
        """Try candidates that are affordable and whose family is worth it."""
        chosen = [one for one in candidates if self._is_near(results, one.family)]
        self._try(results, chosen, partial(self._affords, results))

    def _is_near(self, results: Results, family: str) -> bool:
        """Whether a candidate of a family was tried, and the best one is not far behind the best of all."""
        errors = [
            (one.candidate.family, one.squared_error(self._data, [0])) for one in fitted_to(results, [0]).values()
        ]
        own = [error for name, error in errors if name == family]
        return bool(own) and min(own) <= self._settings.max_error_ratio * min(error for _, error in errors)

    def _affords(self, results: Results, candidate: Candidate) -> bool:
        """Whether a candidate can be fitted to all folds, and to all entries."""
        one = self._expected_cost(results, candidate)
        folds, again = cost_of_stage([one] * FOLDS), cost_of_stage([one] * family_of(candidate).refits)
        return self._budget.remaining_for_fits() >= folds + again

    def _expected_cost(self, results: Results, candidate: Candidate) -> Cost:
        fitted = [one for one in results.values() if one.fits]
        families = {one.candidate.family for one in fitted}
        others = [(one, seconds) for one, seconds in self._costs if one.family not in families]
        return Cost(
            self._budget.expected_cost(candidate, [*((one.candidate, one.cost) for one in fitted), *others]),
            self._budget.expected_cost(candidate, [*((one.candidate, one.longest) for one in fitted), *others]),
        )

    def _skip(self, results: Results, candidate: Candidate) -> None:
        cost = self._expected_cost(results, candidate).longest
        reason = f"it may take {cost:.0f} {self._budget.unit}" if cost > 0.5 else "the budget is used up"
        self._on_note(f"{candidate.name}: not tried, {reason}")

    def _try(
        self,
        results: Results,
        candidates: Sequence[Candidate],
        affordable: Callable[[Candidate], bool] = lambda _: True,
    ) -> None:
        """Fit candidates to the first fold, those that are affordable when it is their turn."""
        for turn in self._turns(candidates):
            jobs = [self._fitter.fold_job(one, 0, self._budget.book(one, partial(affordable, one))) for one in turn]
            for job, result in self._fitter.fit_folds(results, jobs):
                if not result.admitted:
                    self._skip(results, job.candidate)
                elif result.part is not None:
                    found = results[job.candidate.name]
                    rmse = math.sqrt(found.squared_error(self._data, [0]))
                    self._on_note(f"{job.candidate.name}: RMSE {rmse:.4g}, {found.seconds:.1f} s")

    # --- the other folds

    def cross_fit(self, results: Results) -> None:
        """Fit the members that are good together to all folds, and others where they cost little."""
        members, folds = self.affordable_members(results)
        others: list[str] = []
        for name in self._cheap(results):
            needed = self._needed_cost(results, [*members, *others, name], folds)
            if name not in members and needed <= self._budget.remaining_for_fits():
                others.append(name)
        plan = FoldPlan(members, others, lambda names, fold: self._decide(results, names, fold, folds))
        jobs: list[FitJob] = []
        for fold in range(1, folds):
            for name in members + others:
                candidate = results[name].candidate
                if fold not in results[name].predictions:
                    admitted = self._budget.book(candidate, partial(plan.admits, name, fold))
                    jobs.append(self._fitter.fold_job(candidate, fold, admitted))
            if self._processes.shared and len(jobs) >= self._processes.size:
                self._fit(results, jobs)
                jobs = []
        self._fit(results, jobs)

    def _decide(self, results: Results, names: Sequence[str], fold: int, folds: int) -> bool:
        """Whether candidates are fitted to a fold."""
        if not self._affords_fold(results, names, fold, folds):
            return False
        waiting = [name for name in names if fold not in results[name].predictions]
        if waiting:
            self._on_note(f"fold {fold + 1} of {FOLDS}: {', '.join(waiting)}")
        return True

    def _fit(self, results: Results, jobs: Sequence[FitJob]) -> None:
        for _ in self._fitter.fit_folds(results, jobs):
            pass

    def affordable_members(self, results: Results) -> tuple[list[str], int]:
        """Members that are good together, and a number of folds that they can be fitted to within the budget.

        Those with the lowest expected error; or with an error that cannot be told from it and more folds, or as many
        folds and more members. Never fewer folds than others were fitted to: those fits would be lost.
        """
        if not fitted_to(results, [0]):
            return [], 1
        remaining = self._budget.remaining_for_fits()
        names, folds = self._processes.decide(lambda: self._affordable_here(results, remaining))
        return names, folds

    def _affordable_here(self, results: Results, remaining: float) -> tuple[list[str], int]:
        errors = first_fold_errors(self._data, results)
        chosen = list(errors.best_weights(self._settings))
        subsets = [names for size in range(1, len(chosen) + 1) for names in combinations(chosen, size)]
        had = max(len(results[name].predictions) for name in errors.names)
        options = [
            (self._expected_error(results, errors, names, folds), folds, list(names))
            for folds in {FOLDS, 3, 2, 1, had}
            for names in subsets
            if folds >= had and self._needed_cost(results, names, folds) <= remaining
        ]
        if not options:
            return [], 1
        most = tolerated_error(min(error for error, _, _ in options), len(self._data.truth([0])))
        near = [option for option in options if option[0] <= most]
        _, folds, names = max(near, key=lambda option: (option[1], len(option[2]), -option[0]))
        return names, folds

    def _expected_error(self, results: Results, errors: ErrorProducts, names: Sequence[str], folds: int) -> float:
        averaged = {name: results[name].n_predicting(folds) for name in names}
        return errors.among(names).expected_error(averaged, self._settings)

    def _cheap(self, results: Results) -> list[str]:
        """Candidates that cost little and are not far off: one fold may not show what they are worth."""
        errors = {name: one.squared_error(self._data, [0]) for name, one in fitted_to(results, [0]).items()}
        lowest, most = min(errors.values(), default=0.0), self._settings.cheap_share * self._budget.total
        near = [name for name, error in errors.items() if error <= self._settings.near_error_ratio * lowest]
        return [name for name in near if self._needed_cost(results, [name], FOLDS) <= most]

    def _affords_fold(self, results: Results, names: Sequence[str], fold: int, folds: int) -> bool:
        """Whether members can be fitted to a fold, later to all entries, and predict these."""
        members = [results[name] for name in names]
        waiting = [Cost.of(one) for one in members if fold not in one.predictions]
        again = [Cost.of(one) for one in members if family_of(one.candidate).refits]
        needed = cost_of_stage(waiting) + cost_of_stage(again) + self._prediction_cost(members, folds)
        return not waiting or self._budget.remaining_for_fits() >= needed

    def _needed_cost(self, results: Results, names: Sequence[str], folds: int) -> float:
        """Cost of members until they are fitted to so many folds, to all entries, and have predicted these."""
        members = [results[name] for name in names]
        fits = [Cost.of(one) for one in members for fold in range(folds) if fold not in one.predictions]
        again = [Cost.of(one) for one in members if family_of(one.candidate).refits]
        return self._prediction_cost(members, folds) + cost_of_stage(fits) + cost_of_stage(again)

    def _prediction_cost(self, members: Sequence[OutOfFold], folds: int) -> float:
        return self._budget.cost_of_seconds(prediction_seconds(self._data, members, folds, self._settings))
