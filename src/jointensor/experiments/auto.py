"""``--rank auto``: try structures on folds of the entries, keep what validates, and say why.

screen     candidates on the first fold: a core, then richer multilinear parts, as far as all folds could be afforded
cross-fit  the few that are good together on the other folds: every entry is predicted by models that did not see it
once more  further networks, shortly first, the better half of them in full; those that help on the other folds
mix        weights that predict those entries best
remember   neighbours along ordered modes, and tables, on what is left of them
calibrate  intervals from the same left-out entries
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jointensor.baselines import fit_bias
from jointensor.data.sparse import SparseTensor
from jointensor.errors import ConfigError
from jointensor.experiments.candidates import Candidate, Fitted, candidates_for, fit_candidate, refit_candidate
from jointensor.experiments.dealing import Result, deal
from jointensor.experiments.folds import FOLDS, held_out, make_folds
from jointensor.experiments.mixing import greedy, mixed_error
from jointensor.training.calibration import LeftOut, calibrate
from jointensor.training.ensemble import Ensemble, Member
from jointensor.training.memory import Remembered, fit_memory
from jointensor.training.predictor import Predictor
from jointensor.training.weights import load_predictor, save_predictor
from jointensor.training.world import ALONE, World

T = TypeVar("T")

SCREENING = 0.6
"""Share of the budget that the core may be screened in."""

HOPELESS = 1.1
"""A kind whose squared error is this many times the best one's is not tried any further."""

RESERVE = 0.12
"""Share that is left for mixing, remembering and calibrating."""

CHEAP, NOT_FAR = 0.2, 1.2
"""Share of the budget that all folds of a candidate may take, and times the least squared error it may have, to be
cross-fitted in any case."""

NEARLY = 1.02
"""Times the squared error of the best mix that members may have which can be fitted to all folds."""


@dataclass
class Trial:
    """One candidate, how it validated and what it took."""

    candidate: Candidate
    fits: dict[int, Fitted] = field(default_factory=dict)
    predicted: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """What each fold's fit says of the entries it did not see."""
    short: float | None = None
    """RMSE of a short training, where one came first."""
    failure: str | None = None

    @property
    def seconds(self) -> float:
        """Of the last fit: a first one may have had things to compile."""
        return next((one.seconds for one in reversed(self.fits.values()) if one.seconds), 0.0)


@dataclass(frozen=True)
class Auto:
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


class Search:
    """Fits candidates to folds and keeps what they predict."""

    def __init__(
        self,
        tensor: SparseTensor,
        *,
        seed: int = 0,
        budget: float = 600.0,
        device: str = "auto",
        engine: str = "auto",
        groups: tuple[int, ...] = (),
        store: Path | None = None,
        on_note: Callable[[str], None] = lambda _: None,
        world: World = ALONE,
    ) -> None:
        self.world = world
        if len(tensor) < 2 * FOLDS:
            raise ConfigError(f"--rank auto needs at least {2 * FOLDS} entries to learn from, there are {len(tensor)}")
        away = held_out(tensor, groups, seed)
        self.groups, self.places = groups, np.flatnonzero(~away)
        self.whole, kept, self.fresh = tensor, tensor.take(self.places), tensor.take(np.flatnonzero(away))
        self.tensor, self.seed, self.on_note, self.store = kept, seed, on_note, store
        self.offered = candidates_for(kept)
        self.how: dict[str, Any] = {"seed": seed, "device": device, "engine": engine, "groups": groups}
        self.begin, self.budget = time.monotonic(), budget
        self.folds = make_folds(kept, groups, seed)
        self.trials: dict[str, Trial] = {}
        self.interrupted = False

    def left(self, share: float = 1.0) -> float:
        """Seconds until a share of the budget is used up, by the clock of the first process."""
        return self.world.decide(lambda: self.left_here(share))

    def left_here(self, share: float = 1.0) -> float:
        """The same by the clock of this process, for a fit that is its own."""
        return share * self.budget - (time.monotonic() - self.begin)

    def run(self) -> Auto:
        """All stages; an interrupt goes on with what there is."""
        try:
            self._screen_core()
            self._screen_drawn()
            self._cross_fit()
            self._screen_networks()
            self._cross_fit()
        except KeyboardInterrupt:
            if self.world.shared:  # nobody knows how far the others are
                raise
            self.interrupted = True
            self.on_note("interrupted: going on with what there is")
        if not any(trial.predicted for trial in self.trials.values()):
            self.trials.pop("bias", None)  # begun, perhaps, and interrupted
            self._fit_all([(Trial(Candidate("bias", "bias", 0)), 0)])
        return self._finish()

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

    def _in_turns(self, things: Sequence[T]) -> Iterator[Sequence[T]]:
        """As many at a time as there are processes."""
        for first in range(0, len(things), self.world.size):
            yield things[first : first + self.world.size]

    def _screen_drawn(self) -> None:
        """Richer multilinear parts."""
        for some in self._in_turns([one for one in self.offered if not one.core and one.kind == "drawn"]):
            self._try_if_worth([Trial(one) for one in some if one.after in (None, self._best_of("drawn"))])

    def _screen_networks(self) -> None:
        """Other sizes of networks, as far as there is time."""
        more = [one for one in self.offered if not one.core]
        for some in self._in_turns([one for one in more if one.kind == "joint" and one.after is not None]):
            self._try_if_worth([Trial(one) for one in some if one.after == self._best_of("joint")])
        networks = [Trial(one) for one in more if one.kind == "joint" and one.after is None]
        for few in self._in_turns(networks):  # successive halving: a few epochs each, then the better half in full
            self._short([trial for trial in few if self._affords(trial.candidate)])
        tried = sorted((one for one in networks if one.short is not None), key=lambda one: one.short or math.inf)
        for few in self._in_turns(tried[: (len(tried) + 1) // 2]):
            self._try_if_worth(few)

    def _best_of(self, kind: str) -> str | None:
        mine = [one for one in self.trials.values() if one.candidate.kind == kind and 0 in one.predicted]
        return min(mine, key=lambda one: self._mse(one, [0])).candidate.name if mine else None

    def _try_if_worth(self, trials: Sequence[Trial]) -> None:
        """Where there is time, and their kind is not out of the race."""
        chosen = []
        for trial in trials:
            best = min((self._mse(one, [0]) for one in self._done([0]).values()), default=math.inf)
            kind = trial.candidate.kind
            same = [self._mse(one, [0]) for one in self._done([0]).values() if one.candidate.kind == kind]
            if same and min(same) > HOPELESS * best:
                continue
            if self._affords(trial.candidate):
                chosen.append(trial)
            else:
                self._skip(trial.candidate)
        self._try(chosen)

    def _affords(self, candidate: Candidate) -> bool:
        """Whether there is time to fit a candidate to all folds."""
        return self.left(1 - RESERVE) > (FOLDS + candidate.refits) * self._expected(candidate)

    def _skip(self, candidate: Candidate) -> None:
        expected = self._expected(candidate)
        why = f"it may take {expected:.0f} s" if expected > 0.5 else "there is no time left"
        self.on_note(f"{candidate.name}: not tried, {why}")

    def _try(self, trials: Sequence[Trial]) -> None:
        self._fit_all([(trial, 0) for trial in trials])
        for trial in trials:
            if 0 in trial.predicted:
                error = math.sqrt(self._mse(trial, [0]))
                self.on_note(f"{trial.candidate.name}: RMSE {error:.4g}, {trial.seconds:.1f} s")

    def _expected(self, candidate: Candidate) -> float:
        """Seconds that a fit may take, by what others of its kind took for each of their components."""
        same = [
            one.seconds / one.candidate.effort
            for one in self.trials.values()
            if one.candidate.kind == candidate.kind and one.fits
        ]
        return candidate.effort * max(same) if same else candidate.guess

    def _short(self, trials: Sequence[Trial]) -> None:
        jobs = [partial(self._trained_shortly, trial.candidate) for trial in trials]
        for trial, found in zip(trials, deal(self.world, jobs), strict=True):
            trial.short, trial.failure = found.short, found.failure or trial.failure
            if found.short is not None:
                self.on_note(f"{trial.candidate.name}, shortly: RMSE {trial.short:.4g}, {found.seconds:.1f} s")

    def _trained_shortly(self, candidate: Candidate) -> Result:
        train, valid = self._parts(0)
        begin = time.monotonic()
        try:
            found = fit_candidate(
                candidate, train, valid, budget=max(self.left_here(1 - RESERVE), 1.0), short=True, **self.how
            )
        except (ArithmeticError, RuntimeError) as error:
            return Result(failure=str(error))
        rmse = float(np.sqrt(np.mean((self._clip(found.part.predict(valid.indices)) - valid.values) ** 2)))
        return Result(seconds=time.monotonic() - begin, short=rmse)

    def _fit_all(self, jobs: Sequence[tuple[Trial, int]]) -> None:
        """Fits of candidates to folds; dealt to the processes, from the store where they are there already."""
        for trial, _ in jobs:
            self.trials.setdefault(trial.candidate.name, trial)
        tasks = [partial(self._fitted, trial.candidate, fold) for trial, fold in jobs]
        paths = [self._place(trial.candidate, fold) for trial, fold in jobs]
        stored = self.world.decide(lambda: [path is not None and path.exists() for path in paths])
        for (trial, fold), path, found in zip(jobs, paths, deal(self.world, tasks, stored), strict=True):
            if found.part is None or found.predicted is None:
                trial.failure = found.failure
                self.on_note(f"{trial.candidate.name}: failed, {trial.failure}")
                continue
            trial.fits[fold], trial.predicted[fold] = Fitted(found.part, found.seconds), found.predicted
            if path is not None and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                save_predictor(found.part, path)

    def _place(self, candidate: Candidate, fold: int) -> Path | None:
        return None if self.store is None else self.store / f"{candidate.slug}.{fold}.safetensors"

    def _fitted(self, candidate: Candidate, fold: int) -> Result:
        train, valid = self._parts(fold)
        path = self._place(candidate, fold)
        try:
            if path is not None and path.exists():
                found = Fitted(load_predictor(path), 0.0)
            else:
                most = min(self.left_here(1 - RESERVE), candidate.share * self.budget)
                found = fit_candidate(candidate, train, valid, budget=max(most, 1.0), **self.how)
        except (ArithmeticError, RuntimeError) as error:
            return Result(failure=str(error).splitlines()[0])
        return Result(found.part, found.seconds, self._clip(found.part.predict(valid.indices)))

    def _cross_fit(self) -> None:
        """The members that are good together, on all folds, the most important first; refits where they pay."""
        members, folds = self._affordable()
        members += [one for one in self._cheap() if one not in members]
        jobs: list[tuple[Trial, int]] = []
        for fold in range(1, folds):
            waiting = [one for one in members if fold not in one.predicted]
            again = sum(one.seconds for one in members if one.candidate.refits)
            if not waiting:
                continue
            if self.left(1 - RESERVE) < again + sum(one.seconds for one in waiting):
                break
            jobs += [(trial, fold) for trial in waiting]
            if len(jobs) >= self.world.size:
                self._fit_all(jobs)
                jobs = []
            self.on_note(f"fold {fold + 1} of {FOLDS}: {', '.join(one.candidate.name for one in waiting)}")
        self._fit_all(jobs)

    def _cheap(self) -> list[Trial]:
        """What costs little and is not far off: one fold may not show what it is good for."""
        done = self._done([0])
        best = min((self._mse(one, [0]) for one in done.values()), default=0.0)
        near = [name for name, one in done.items() if self._mse(one, [0]) <= NOT_FAR * best]
        return [self.trials[name] for name in near if self._needed([name], FOLDS) <= CHEAP * self.budget]

    def _affordable(self) -> tuple[list[Trial], int]:
        """Members that are good together and can be fitted to all folds in time; or to fewer, where that costs much."""
        said = {name: one.predicted[0] for name, one in self._done([0]).items()}
        truth = self._truth([0])
        chosen = list(greedy(said, truth))
        best = mixed_error(said, truth, chosen)
        found: tuple[list[Trial], int] = ([], 1)
        for folds in (FOLDS, 3, 2, 1):
            within = [
                names
                for size in range(1, len(chosen) + 1)
                for names in combinations(chosen, size)
                if self._needed(names, folds) <= self.left(1 - RESERVE)
            ]
            if not within:
                continue
            names = min(within, key=lambda some: mixed_error(said, truth, some))
            found = ([self.trials[name] for name in names], folds)
            if mixed_error(said, truth, names) <= NEARLY * best:
                break
        return found

    def _needed(self, names: Sequence[str], folds: int) -> float:
        """Seconds until members are fitted to so many folds, and to all entries."""
        return sum(
            self.trials[name].seconds
            * (
                sum(fold not in self.trials[name].predicted for fold in range(folds))
                + self.trials[name].candidate.refits
            )
            for name in names
        )

    def _done(self, folds: list[int]) -> dict[str, Trial]:
        return {name: one for name, one in self.trials.items() if all(fold in one.predicted for fold in folds)}

    def _truth(self, folds: list[int]) -> NDArray[np.float32]:
        return np.concatenate([self.tensor.values[self.folds == fold] for fold in folds])

    def _mse(self, trial: Trial, folds: list[int]) -> float:
        said = np.concatenate([trial.predicted[fold] for fold in folds])
        return float(np.mean((said - self._truth(folds)) ** 2))

    def _parts(self, fold: int) -> tuple[SparseTensor, SparseTensor]:
        return (
            self.tensor.take(np.flatnonzero(self.folds != fold)),
            self.tensor.take(np.flatnonzero(self.folds == fold)),
        )

    def _clip(self, predicted: NDArray[Any]) -> NDArray[np.float32]:
        return np.clip(predicted, self.tensor.values.min(), self.tensor.values.max()).astype(np.float32)

    def _finish(self) -> Auto:
        """Mix, remember, calibrate."""
        folds = max(([fold for fold in range(FOLDS) if fold in one.predicted] for one in self.trials.values()), key=len)
        done = self._done(folds)
        truth = self._truth(folds)
        said = {name: np.concatenate([one.predicted[fold] for fold in folds]) for name, one in done.items()}
        weights = greedy(said, truth)
        members = self._members(weights, self.tensor)
        fallback = fit_bias(self.tensor, self.tensor.take(np.zeros(0, dtype=np.int64)))
        low, high = float(self.tensor.values.min()), float(self.tensor.values.max())
        predictor = Ensemble(members, (), fallback, low, high)
        where = np.concatenate([np.flatnonzero(self.folds == fold) for fold in folds])
        entries = self.tensor.take(where)
        mixed = sum(weight * said[name].astype(np.float64) for name, weight in weights.items())
        # refitted tables know of the other entries what residuals of left-out ones say once more
        tables = bool(len(self.fresh)) or self._tabulated(weights) < 0.5
        memory = self._remember(predictor, where, truth - mixed, tables=tables)
        predictor = replace(predictor, memory=memory.parts)
        predicted = self._clip(truth - memory.left)
        answers = np.full(len(self.tensor) + len(self.fresh), np.nan, dtype=np.float32)
        answers[self.places[where]] = predicted
        left_out = LeftOut(entries.indices, predicted, truth - predicted, self._cold(entries, self.folds[where]))
        predictor = replace(
            predictor,
            calibration=calibrate(left_out, self.tensor.shape, self._untouched(predictor), self.seed, (low, high)),
        )
        if len(self.fresh) and self.left() > 1.3 * sum(self.trials[name].seconds for name in weights):
            # intervals are calibrated: now what answers may know the entries that did it, and be a little better
            predictor = replace(predictor, members=self._members(weights, self.whole, predictor.members))
        for part in [part for member in predictor.members for part in member.parts if isinstance(part, Predictor)]:
            part.model.cpu()
        return self._explain(predictor, said, truth, weights, memory.names, answers, folds)

    def _members(
        self, weights: dict[str, float], tensor: SparseTensor, before: Sequence[Member] = ()
    ) -> tuple[Member, ...]:
        """What answers: every structure fitted to all these entries; else what answered before, or the folds' fits."""
        parts = {name: tuple(one.part for one in self.trials[name].fits.values()) for name in weights}
        parts |= {member.name: member.parts for member in before}
        jobs = [partial(self._refitted, self.trials[name], tensor) for name in weights]
        members = []
        for (name, weight), found in zip(weights.items(), deal(self.world, jobs), strict=True):
            if found.failure is not None:
                self.on_note(f"{name}: the fit to all entries failed ({found.failure}); those of the folds answer")
            members.append(Member(name, weight, parts[name] if found.part is None else (found.part,)))
        return tuple(members)

    def _remember(
        self, bare: Ensemble, where: NDArray[np.integer], left: NDArray[np.floating], *, tables: bool
    ) -> Remembered:
        """Memory of what the mix leaves of entries that were left out; or of all entries, where that is better."""
        # along any other mode the neighbours of an entry are of its own group: new groups have none
        along = [n for n in self.groups if self.tensor.modes[n].order != "none"] if self.groups else None

        def learnt(entries: SparseTensor, residuals: NDArray[Any], folds: NDArray[Any], *, tables: bool) -> Remembered:
            return fit_memory(entries, residuals, folds, tables=tables, along=along, groups=self.groups)

        def judged(memory: Remembered) -> tuple[float, Remembered]:
            count, error = replace(bare, memory=memory.parts).enough_memory(self.fresh)
            return error, memory.first(count)

        memory = learnt(self.tensor.take(where), left, self.folds[where], tables=tables)
        if not len(self.fresh):
            return memory
        error, memory = judged(memory)
        if len(where) < len(self.tensor) and memory.has_neighbours:
            # Residuals of entries that models did see are a little too small, but there are many more of them.
            residuals = self.tensor.values - bare.mix(self.tensor.indices)
            residuals[where] = left
            other, more = judged(learnt(self.tensor, residuals, self.folds, tables=False))
            memory = more.at(where) if other < error else memory
        return memory

    def _tabulated(self, weights: dict[str, float]) -> float:
        """Share of the mix that tabulates combinations of labels itself."""
        tabulate = [name for name in weights if "tables" in name or self.trials[name].candidate.kind == "trees"]
        return sum(weights[name] for name in tabulate)

    def _untouched(self, predictor: Ensemble) -> LeftOut | None:
        """Entries that nothing was learnt from, seen by what answers."""
        if not len(self.fresh):
            return None
        said = predictor.predict(self.fresh.indices)
        return LeftOut(self.fresh.indices, said, self.fresh.values - said, predictor.unseen(self.fresh.indices))

    def _refitted(self, trial: Trial, tensor: SparseTensor) -> Result:
        """One fit to all entries; nothing where it is the folds' fits that answer, or there is no time."""
        if not trial.candidate.refits or self.interrupted or self.left_here() <= 1.3 * trial.seconds:
            return Result()
        try:
            fits = list(trial.fits.values())
            found = refit_candidate(trial.candidate, fits, tensor, budget=max(self.left_here(), 1.0), **self.how)
        except (ArithmeticError, RuntimeError) as error:
            return Result(failure=str(error))
        return Result(found.part, found.seconds)

    def _cold(self, entries: SparseTensor, folds: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a label that no entry of another fold has."""
        cold = np.zeros(len(entries), dtype=np.bool_)
        for n, size in enumerate(self.tensor.shape):
            column = self.tensor.indices[:, n]
            whole = np.bincount(column, minlength=size)
            for fold in np.unique(folds):
                own = np.bincount(column[self.folds == fold], minlength=size)
                mine = folds == fold
                cold[mine] |= (whole - own)[entries.indices[mine, n]] == 0
        return cold

    def _explain(
        self,
        predictor: Ensemble,
        said: dict[str, NDArray[np.float32]],
        truth: NDArray[np.float32],
        weights: dict[str, float],
        kept: list[str],
        answers: NDArray[np.float32],
        folds: list[int],
    ) -> Auto:
        errors = {name: (one - truth).astype(np.float64) ** 2 for name, one in said.items()}
        rmse = {name: math.sqrt(one.mean()) for name, one in errors.items()}
        best = min(rmse, key=lambda name: rmse[name])
        near = [
            name
            for name, one in errors.items()
            if (one - errors[best]).mean() <= (one - errors[best]).std() / math.sqrt(len(truth))
        ]
        simplest = min(near, key=lambda name: self.trials[name].candidate.simplicity)
        mix = sum(weight * said[name].astype(np.float64) for name, weight in weights.items())
        said_at = answers[self.places]
        known = np.isfinite(said_at)
        final = float(np.sqrt(np.mean((said_at[known] - self.tensor.values[known]) ** 2)))
        figures = {"single": rmse[best], "mix": float(np.sqrt(np.mean((mix - truth) ** 2))), "all": final}
        parts = ", ".join(f"{weight:.0%} {name}" for name, weight in weights.items())
        reason = (
            f"on {len(truth):,} entries that were left out, {best} alone has an RMSE of {rmse[best]:.4g}, "
            f"the mix ({parts}) {figures['mix']:.4g}"
            + (f", with {' and '.join(kept)} {final:.4g}" if kept else "")
            + f"; the simplest within one standard error of the best single one is {simplest}"
        )
        rows = [self._row(trial, rmse.get(name), weights.get(name, 0.0)) for name, trial in self.trials.items()]
        outcome = "interrupted" if self.interrupted else "converged" if self.left() > 0 else "budget"
        return Auto(predictor, rows, "+".join(weights), simplest, reason, figures, answers, outcome)

    def _row(self, trial: Trial, rmse: float | None, weight: float) -> dict[str, Any]:
        by_fold = [math.sqrt(self._mse(trial, [fold])) for fold in trial.predicted]
        return {
            "name": trial.candidate.name,
            "rmse": by_fold[0] if rmse is None and by_fold else rmse,
            "folds": len(by_fold),
            "spread": float(np.std(by_fold)) if len(by_fold) > 1 else None,
            "seconds": sum(one.seconds for one in trial.fits.values()),
            "weight": weight,
            "failure": trial.failure,
        }


def run_auto(tensor: SparseTensor, **options: Any) -> Auto:
    """Choose, fit and explain; see :class:`Search` for the options."""
    return Search(tensor, **options).run()
