"""``--rank auto``: try structures on folds of the entries, keep what validates, and say why.

screen     candidates on the first fold: a core (the network alone where JULIA is out of the race), then richer
           multilinear parts, as far as all folds could be afforded
cross-fit  the few that are good together on the other folds: every entry is predicted by models that did not see it
once more  further networks, shortly first, the better half of them in full; those that help on the other folds
mix        weights that predict those entries best
remember   neighbours along ordered modes, and tables, on what is left of them
calibrate  intervals from the same left-out entries
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any, TypeVar

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.search.cross_validation import RESERVE, CrossValidation, Trial
from jointensor.search.finalise import SearchResult, finalise
from jointensor.search.portfolio import Candidate

T = TypeVar("T")

SCREENING = 0.6
"""Share of the budget that the core may be screened in."""

HOPELESS = 1.1
"""A kind whose squared error is this many times the best one's is not tried any further."""

CHEAP, NOT_FAR = 0.2, 1.2
"""Share of the budget that all folds of a candidate may take, and times the least squared error it may have, to be
cross-fitted in any case."""


class Search(CrossValidation):
    """Chooses which candidates are worth fitting, and to how many folds."""

    def run(self) -> SearchResult:
        """All stages; an interrupt goes on with what there is."""
        with self._until_interrupted():
            self._screen_core()
            self._screen_second()
            self._screen_drawn()
            self._cross_fit()
            self._screen_networks()
            self._cross_fit()
        if not any(trial.predicted for trial in self.trials.values()):
            self.trials.pop("bias", None)  # begun, perhaps, and interrupted
            self.fit_all([(Trial(Candidate("bias", "bias", 0)), 0)])
        if not self.interrupted:
            with self._until_interrupted():
                return finalise(self)
        return finalise(self)

    @contextmanager
    def _until_interrupted(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.interrupt()

    def _screen_core(self) -> None:
        for some in self._in_turns([one for one in self.offered if one.core]):
            chosen: list[Trial] = []
            for candidate in some:
                most = min(self.left(SCREENING), candidate.share * self.budget)
                if (self.trials or chosen) and most < self._expected(candidate):
                    self._skip(candidate)
                else:
                    chosen.append(Trial(candidate))
            self._try(chosen)

    def _screen_second(self) -> None:
        """Others of a kind whose one in the core is out of the race: it may not be the kind that fails."""
        waiting = [one for one in self.offered if one.second and self._out_of_the_race(one.kind)]
        for some in self._in_turns([one for one in waiting if self._affords(one)]):
            self._try([Trial(one) for one in some])

    def _in_turns(self, things: Sequence[T]) -> Iterator[Sequence[T]]:
        """As many at a time as there are processes."""
        for first in range(0, len(things), self.processes.size):
            yield things[first : first + self.processes.size]

    def _screen_drawn(self) -> None:
        """Richer multilinear parts."""
        for some in self._in_turns([one for one in self.offered if not one.core and one.kind == "drawn"]):
            self._try_if_worth([Trial(one) for one in some if one.after in (None, self._best_of("drawn"))])

    def _screen_networks(self) -> None:
        """Other sizes of networks, as far as there is time."""
        more = [one for one in self.offered if not one.core]
        for some in self._in_turns([one for one in more if one.kind == "joint" and one.after is not None]):
            self._try_if_worth([Trial(one) for one in some if one.after == self._best_of("joint")])
        rest = [one for one in more if one.kind == "joint" and one.after is None]
        networks = [Trial(one) for one in rest if one.name not in self.trials]
        for few in self._in_turns(networks):  # successive halving: a few epochs each, then the better half in full
            self.fit_shortly([trial for trial in few if self._affords(trial.candidate)])
        tried = sorted((one for one in networks if one.short is not None), key=lambda one: one.short or math.inf)
        for few in self._in_turns(tried[: (len(tried) + 1) // 2]):
            self._try_if_worth(few)

    def _best_of(self, kind: str) -> str | None:
        mine = [one for one in self.trials.values() if one.candidate.kind == kind and 0 in one.predicted]
        return min(mine, key=lambda one: self.mse(one, [0])).candidate.name if mine else None

    def _try_if_worth(self, trials: Sequence[Trial]) -> None:
        """Where there is time, and their kind is not out of the race."""
        chosen = []
        for trial in trials:
            if self._out_of_the_race(trial.candidate.kind):
                continue
            if self._affords(trial.candidate):
                chosen.append(trial)
            else:
                self._skip(trial.candidate)
        self._try(chosen)

    def _out_of_the_race(self, kind: str) -> bool:
        """Whether the best of a kind is far behind the best of all."""
        done = self.done([0]).values()
        same = [self.mse(one, [0]) for one in done if one.candidate.kind == kind]
        return bool(same) and min(same) > HOPELESS * min(self.mse(one, [0]) for one in done)

    def _affords(self, candidate: Candidate) -> bool:
        """Whether there is time to fit a candidate to all folds."""
        return self.left(1 - RESERVE) > (FOLDS + candidate.refits) * self._expected(candidate)

    def _skip(self, candidate: Candidate) -> None:
        expected = self._expected(candidate)
        why = f"it may take {expected:.0f} s" if expected > 0.5 else "there is no time left"
        self.on_note(f"{candidate.name}: not tried, {why}")

    def _try(self, trials: Sequence[Trial]) -> None:
        self.fit_all([(trial, 0) for trial in trials])
        for trial in trials:
            if 0 in trial.predicted:
                error = math.sqrt(self.mse(trial, [0]))
                self.on_note(f"{trial.candidate.name}: RMSE {error:.4g}, {trial.seconds:.1f} s")

    def _expected(self, candidate: Candidate) -> float:
        """Seconds that a fit may take, by what others of its kind took for each of their components."""
        same = [
            one.seconds / one.candidate.effort
            for one in self.trials.values()
            if one.candidate.kind == candidate.kind and one.fits
        ]
        return candidate.effort * max(same) if same else candidate.guess

    def _cross_fit(self) -> None:
        """The members that are good together, on all folds, the most important first; others where they cost little."""
        members, folds = self._affordable()
        others: list[Trial] = []
        for one in self._cheap():
            names = [other.candidate.name for other in (*members, *others, one)]
            if one not in members and self._needed(names, folds) <= self.left(1 - RESERVE):
                others.append(one)
        jobs: list[tuple[Trial, int]] = []
        for fold in range(1, folds):
            if not self._in_time(members + others, fold, folds):
                others = []
                if not self._in_time(members, fold, folds):
                    break
            waiting = [one for one in members + others if fold not in one.predicted]
            if not waiting:
                continue
            jobs += [(trial, fold) for trial in waiting]
            if len(jobs) >= self.processes.size:
                self.fit_all(jobs)
                jobs = []
            self.on_note(f"fold {fold + 1} of {FOLDS}: {', '.join(one.candidate.name for one in waiting)}")
        self.fit_all(jobs)

    def _in_time(self, members: Sequence[Trial], fold: int, folds: int) -> bool:
        """Whether members can be fitted to a fold, and later to all entries, and answer for these."""
        waiting = [one.seconds for one in members if fold not in one.predicted]
        again = sum(one.seconds for one in members if one.candidate.refits)
        later = self.asking((one.candidate.name for one in members), folds)
        return not waiting or self.left(1 - RESERVE) >= again + sum(waiting) + later

    def _cheap(self) -> list[Trial]:
        """What costs little and is not far off: one fold may not show what it is good for."""
        done = self.done([0])
        best = min((self.mse(one, [0]) for one in done.values()), default=0.0)
        near = [name for name, one in done.items() if self.mse(one, [0]) <= NOT_FAR * best]
        return [self.trials[name] for name in near if self._needed([name], FOLDS) <= CHEAP * self.budget]

    def _affordable(self) -> tuple[list[Trial], int]:
        """Members that are good together, and a number of folds that they can be fitted to in time.

        Those that are to be expected to answer best; or nearly as well, with more folds, or as many and more members.
        Never fewer folds than others have had: the fits to those would be lost.
        """
        if not self.done([0]):
            return [], 1
        names, folds = self.processes.decide(self._affordable_here)
        return [self.trials[name] for name in names], folds

    def _affordable_here(self) -> tuple[list[str], int]:
        errors, left = self.errors(), self.left_here(1 - RESERVE)
        chosen = list(errors.best_weights())
        mixes = [names for size in range(1, len(chosen) + 1) for names in combinations(chosen, size)]
        had = max(len(self.trials[name].predicted) for name in errors.names)
        found = [
            (self.expected_error(errors.among(names), folds), folds, list(names))
            for folds in {FOLDS, 3, 2, 1, had}
            for names in mixes
            if folds >= had and self._needed(names, folds) <= left
        ]
        if not found:
            return [], 1
        most = self.nearly(min(error for error, _, _ in found))
        _, folds, names = max((one for one in found if one[0] <= most), key=lambda one: (one[1], len(one[2]), -one[0]))
        return names, folds

    def _needed(self, names: Sequence[str], folds: int) -> float:
        """Seconds until members are fitted to so many folds, and to all entries, and have answered for these."""
        return self.asking(names, folds) + sum(
            self.trials[name].seconds
            * (
                sum(fold not in self.trials[name].predicted for fold in range(folds))
                + self.trials[name].candidate.refits
            )
            for name in names
        )


def search(tensor: SparseTensor, **options: Any) -> SearchResult:
    """Choose, fit and explain; see :class:`~jointensor.search.cross_validation.CrossValidation` for the options."""
    return Search(tensor, **options).run()
