"""Which candidates are worth fitting, and to how many folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from jointensor.data.split import FOLDS
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.search.budget import Budget
from jointensor.search.cross_fit import CrossFitter, OutOfFold, Results, fitted_to
from jointensor.search.ensemble_selection import ErrorProducts, tolerated_error
from jointensor.search.families import family_of
from jointensor.search.folds import Folds
from jointensor.search.portfolio import Candidate
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
        As many candidates are tried at a time.
    settings
        Numbers of the search.
    on_note
        Called with a line for the user.
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
    ) -> None:
        self._data, self._budget, self._fitter, self._candidates = data, budget, fitter, candidates
        self._processes, self._settings, self._on_note = processes, settings, on_note

    # --- screening on the first fold

    def try_core(self, results: Results) -> None:
        """Candidates of the core, as far as their share of the budget lasts; the first one in any case."""
        for turn in self._turns([one for one in self._candidates if one.stage == "core"]):
            chosen: list[Candidate] = []
            for candidate in turn:
                most = min(self._budget.remaining(self._settings.screening_share), self._budget.max_cost(candidate))
                if (results or chosen) and most < self._expected_cost(results, candidate):
                    self._skip(results, candidate)
                else:
                    chosen.append(candidate)
            self._try(results, chosen)

    def try_fallbacks(self, results: Results) -> None:
        """Fallback candidates of families whose best candidate is far behind: the family need not be."""
        behind = [one for one in self._candidates if one.fallback and self._is_behind(results, one.family)]
        for turn in self._turns([one for one in behind if self._affords(results, one)]):
            self._try(results, turn)

    def try_richer(self, results: Results) -> None:
        """Richer candidates of families that are not far behind."""
        for turn in self._turns([one for one in self._candidates if one.stage == "richer"]):
            self._try_if_worth(results, [one for one in turn if self._follows(results, one)])

    def try_late(self, results: Results) -> None:
        """Candidates that follow the best of their family; then others, by successive halving.

        Successive halving: a short fit of each, then the better half of them in full.
        """
        late = [one for one in self._candidates if one.stage == "late" and one.name not in results]
        for turn in self._turns([one for one in late if one.after is not None]):
            self._try_if_worth(results, [one for one in turn if self._follows(results, one)])
        others = [one for one in late if one.after is None]
        rmse: dict[str, float] = {}
        for turn in self._turns(others):
            rmse |= self._fitter.fit_shortly([one for one in turn if self._affords(results, one)])
        ranked = sorted((one for one in others if one.name in rmse), key=lambda one: rmse[one.name])
        for turn in self._turns(ranked[: (len(ranked) + 1) // 2]):
            self._try_if_worth(results, turn)

    def _turns(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """As many at a time as there are processes."""
        for first in range(0, len(items), self._processes.size):
            yield items[first : first + self._processes.size]

    def _follows(self, results: Results, candidate: Candidate) -> bool:
        """Whether the candidate that this one comes after is the best of the family."""
        if candidate.after is None:
            return True
        errors = {
            name: one.squared_error(self._data, [0])
            for name, one in fitted_to(results, [0]).items()
            if one.candidate.family == candidate.family
        }
        return bool(errors) and min(errors, key=lambda name: errors[name]) == candidate.after

    def _try_if_worth(self, results: Results, candidates: Sequence[Candidate]) -> None:
        """Try candidates that are affordable and whose family is not far behind."""
        chosen = []
        for candidate in candidates:
            if self._is_behind(results, candidate.family):
                continue
            if self._affords(results, candidate):
                chosen.append(candidate)
            else:
                self._skip(results, candidate)
        self._try(results, chosen)

    def _is_behind(self, results: Results, family: str) -> bool:
        """Whether the best candidate of a family is far behind the best of all."""
        errors = [
            (one.candidate.family, one.squared_error(self._data, [0])) for one in fitted_to(results, [0]).values()
        ]
        own = [error for name, error in errors if name == family]
        return bool(own) and min(own) > self._settings.max_error_ratio * min(error for _, error in errors)

    def _affords(self, results: Results, candidate: Candidate) -> bool:
        """Whether a candidate can be fitted to all folds, and to all entries."""
        fits = FOLDS + family_of(candidate).refits
        return self._budget.remaining_for_fits() >= fits * self._expected_cost(results, candidate)

    def _expected_cost(self, results: Results, candidate: Candidate) -> float:
        fitted = [(one.candidate, one.cost) for one in results.values() if one.fits]
        return self._budget.expected_cost(candidate, fitted)

    def _skip(self, results: Results, candidate: Candidate) -> None:
        cost = self._expected_cost(results, candidate)
        reason = f"it may take {cost:.0f} {self._budget.unit}" if cost > 0.5 else "the budget is used up"
        self._on_note(f"{candidate.name}: not tried, {reason}")

    def _try(self, results: Results, candidates: Sequence[Candidate]) -> None:
        """Fit candidates to the first fold."""
        self._fitter.fit(results, [(candidate, 0) for candidate in candidates])
        for candidate in candidates:
            found = results[candidate.name]
            if 0 in found.predictions:
                rmse = math.sqrt(found.squared_error(self._data, [0]))
                self._on_note(f"{candidate.name}: RMSE {rmse:.4g}, {found.seconds:.1f} s")

    # --- the other folds

    def cross_fit(self, results: Results) -> None:
        """Fit the members that are good together to all folds, and others where they cost little."""
        members, folds = self.affordable_members(results)
        others: list[str] = []
        for name in self._cheap(results):
            needed = self._needed_cost(results, [*members, *others, name], folds)
            if name not in members and needed <= self._budget.remaining_for_fits():
                others.append(name)
        jobs: list[tuple[Candidate, int]] = []
        for fold in range(1, folds):
            if not self._affords_fold(results, members + others, fold, folds):
                others = []
                if not self._affords_fold(results, members, fold, folds):
                    break
            waiting = [name for name in members + others if fold not in results[name].predictions]
            if not waiting:
                continue
            jobs += [(results[name].candidate, fold) for name in waiting]
            if len(jobs) >= self._processes.size:
                self._fitter.fit(results, jobs)
                jobs = []
            self._on_note(f"fold {fold + 1} of {FOLDS}: {', '.join(waiting)}")
        self._fitter.fit(results, jobs)

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
        waiting = [one.cost for one in members if fold not in one.predictions]
        again = sum(one.cost for one in members if family_of(one.candidate).refits)
        later = self._prediction_cost(members, folds)
        return not waiting or self._budget.remaining_for_fits() >= again + sum(waiting) + later

    def _needed_cost(self, results: Results, names: Sequence[str], folds: int) -> float:
        """Cost of members until they are fitted to so many folds, to all entries, and have predicted these."""
        members = [results[name] for name in names]
        fits = sum(
            one.cost * (sum(fold not in one.predictions for fold in range(folds)) + family_of(one.candidate).refits)
            for one in members
        )
        return self._prediction_cost(members, folds) + fits

    def _prediction_cost(self, members: Sequence[OutOfFold], folds: int) -> float:
        return self._budget.cost_of_seconds(prediction_seconds(self._data, members, folds, self._settings))
