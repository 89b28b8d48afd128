"""``--rank auto``: try structures on folds of the entries, keep what validates, and say why.

screen     candidates on the first fold: a core first, then others, while what is good so far could still be
           cross-fitted; further sizes of networks shortly first, the better half of them in full
cross-fit  the few that are good together on the other folds: every entry is predicted by models that did not see it
mix        weights that predict those entries best
remember   neighbours along ordered modes, and tables, on what is left of them
calibrate  intervals from the same left-out entries
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.baselines import Tables, fit_bias
from jointensor.data.sparse import SparseTensor, cell_keys
from jointensor.errors import ConfigError
from jointensor.experiments.candidates import Candidate, Fitted, candidates_for, fit_candidate, refit_candidate
from jointensor.training.calibration import calibrate
from jointensor.training.ensemble import Ensemble, Member
from jointensor.training.memory import fit_memory
from jointensor.training.predictor import Predictor
from jointensor.training.weights import load_predictor, save_predictor

FOLDS = 5

SCREENING, MOST_SCREENING = 0.6, 0.5
"""Shares of the budget that the core, and that everything else may be screened in."""

HOPELESS = 1.1
"""A kind whose squared error is this many times the best one's is not tried any further."""

RESERVE = 0.12
"""Share that is left for mixing, remembering and calibrating."""

STEPS = 30
"""Members are drawn with replacement so many times: weights are multiples of its inverse."""

GAIN = 0.0005
"""Share of the error that one more member must take away."""


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
        """Of one fit."""
        return max((one.seconds for one in self.fits.values()), default=0.0)


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
    ) -> None:
        if len(tensor) < 2 * FOLDS:
            raise ConfigError(f"--rank auto needs at least {2 * FOLDS} entries to learn from, there are {len(tensor)}")
        self.tensor, self.seed, self.on_note, self.store = tensor, seed, on_note, store
        self.how: dict[str, Any] = {"seed": seed, "device": device, "engine": engine}
        self.begin, self.budget = time.monotonic(), budget
        self.folds = make_folds(tensor, groups, seed)
        self.trials: dict[str, Trial] = {}
        self.interrupted = False

    def left(self, share: float = 1.0) -> float:
        """Seconds until a share of the budget is used up."""
        return share * self.budget - (time.monotonic() - self.begin)

    def run(self) -> Auto:
        """All stages; an interrupt goes on with what there is."""
        try:
            self._screen()
            self._cross_fit()
        except KeyboardInterrupt:
            self.interrupted = True
            self.on_note("interrupted: going on with what there is")
        if not any(trial.predicted for trial in self.trials.values()):
            self._fit(Trial(Candidate("bias", "bias", 0)), 0)
        return self._finish()

    def _screen(self) -> None:
        """The core, then everything else that there is time for."""
        offered = candidates_for(self.tensor)
        for candidate in [one for one in offered if one.core]:
            if self.trials and self.left(SCREENING) < self._expected(candidate):
                self._skip(candidate)
            else:
                self._try(candidate)
        extra = [one for one in offered if not one.core]
        for candidate in [one for one in extra if one.after in (None, self._best_of("drawn")) and one.kind == "drawn"]:
            self._try_if_worth(candidate)
        networks = [Trial(one) for one in extra if one.kind == "joint" and one.after is None]
        for trial in networks:  # successive halving: a few epochs each, then the better half in full
            if self._affords(self._expected(trial.candidate) / 2):
                self._short(trial)
        tried = sorted((one for one in networks if one.short is not None), key=lambda one: one.short or math.inf)
        for trial in tried[: (len(tried) + 1) // 2]:
            self._try_if_worth(trial.candidate, trial)
        for candidate in [one for one in extra if one.kind == "joint" and one.after == self._best_of("joint")]:
            self._try_if_worth(candidate)

    def _best_of(self, kind: str) -> str | None:
        mine = [one for one in self.trials.values() if one.candidate.kind == kind and 0 in one.predicted]
        return min(mine, key=lambda one: self._mse(one, [0])).candidate.name if mine else None

    def _try_if_worth(self, candidate: Candidate, trial: Trial | None = None) -> None:
        """Where there is time, and its kind is not out of the race."""
        best = min((self._mse(one, [0]) for one in self._done([0]).values()), default=math.inf)
        same = [self._mse(one, [0]) for one in self._done([0]).values() if one.candidate.kind == candidate.kind]
        if same and min(same) > HOPELESS * best:
            return
        if self._affords(self._expected(candidate)):
            self._try(candidate, trial)
        else:
            self._skip(candidate)

    def _affords(self, seconds: float) -> bool:
        """Whether a fit of so many seconds leaves time to cross-fit what is good so far."""
        chosen = greedy({name: one.predicted[0] for name, one in self._done([0]).items()}, self._truth([0]))
        needed = sum((FOLDS - 1 + self.trials[name].candidate.refits) * self.trials[name].seconds for name in chosen)
        return self.left(1 - RESERVE) - seconds > needed and self.left(MOST_SCREENING) > seconds

    def _skip(self, candidate: Candidate) -> None:
        self.on_note(f"{candidate.name}: not tried, it may take {self._expected(candidate):.0f} s")

    def _try(self, candidate: Candidate, trial: Trial | None = None) -> None:
        trial = trial or Trial(candidate)
        self._fit(trial, 0)
        if 0 in trial.predicted:
            self.on_note(f"{candidate.name}: RMSE {math.sqrt(self._mse(trial, [0])):.4g}, {trial.seconds:.1f} s")

    def _expected(self, candidate: Candidate) -> float:
        """Seconds that a fit may take, by what others of its kind took for each of their components."""
        same = [
            one.seconds / one.candidate.effort
            for one in self.trials.values()
            if one.candidate.kind == candidate.kind and one.fits
        ]
        return candidate.effort * max(same, default=0.0)

    def _short(self, trial: Trial) -> None:
        train, valid = self._parts(0)
        begin = time.monotonic()
        try:
            found = fit_candidate(
                trial.candidate, train, valid, budget=max(self.left(MOST_SCREENING), 1.0), short=True, **self.how
            )
        except (ArithmeticError, RuntimeError) as error:
            trial.failure = str(error)
            return
        trial.short = float(np.sqrt(np.mean((self._clip(found.part.predict(valid.indices)) - valid.values) ** 2)))
        self.on_note(f"{trial.candidate.name}, shortly: RMSE {trial.short:.4g}, {time.monotonic() - begin:.1f} s")

    def _fit(self, trial: Trial, fold: int) -> None:
        """One fit, from the store where it is there already."""
        self.trials.setdefault(trial.candidate.name, trial)
        train, valid = self._parts(fold)
        path = None if self.store is None else self.store / f"{trial.candidate.slug}.{fold}.safetensors"
        if path is not None and path.exists():
            trial.fits[fold] = Fitted(load_predictor(path), 0.0)
        else:
            try:
                trial.fits[fold] = fit_candidate(
                    trial.candidate, train, valid, budget=max(self.left(1 - RESERVE), 1.0), **self.how
                )
            except (ArithmeticError, RuntimeError) as error:
                trial.failure = str(error).splitlines()[0]
                self.on_note(f"{trial.candidate.name}: failed, {trial.failure}")
                return
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                save_predictor(trial.fits[fold].part, path)
        trial.predicted[fold] = self._clip(trial.fits[fold].part.predict(valid.indices))

    def _cross_fit(self) -> None:
        """The members that are good together, on all folds, the most important first; refits where they pay."""
        chosen = greedy({name: one.predicted[0] for name, one in self._done([0]).items()}, self._truth([0]))
        members = [self.trials[name] for name in sorted(chosen, key=lambda one: -chosen[one])]
        while len(members) > 1 and self._round(members) > self.left(1 - RESERVE):
            members.pop()  # better the most important one on all folds than all of them on one
        for fold in range(1, FOLDS):
            again = sum(one.seconds for one in members if one.candidate.refits)
            if self.left(1 - RESERVE) < again + sum(one.seconds for one in members):
                break
            for trial in members:
                self._fit(trial, fold)
            self.on_note(f"fold {fold + 1} of {FOLDS}: {', '.join(one.candidate.name for one in members)}")

    @staticmethod
    def _round(members: list[Trial]) -> float:
        """Seconds until all members are fitted to all folds, and to all entries."""
        return sum((FOLDS - 1 + one.candidate.refits) * one.seconds for one in members)

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
        members = tuple(Member(name, weight, self._answers(self.trials[name])) for name, weight in weights.items())
        for part in [part for member in members for part in member.parts if isinstance(part, Predictor)]:
            part.model.cpu()
        where = np.concatenate([np.flatnonzero(self.folds == fold) for fold in folds])
        entries = self.tensor.take(where)
        mixed = sum(weight * said[name].astype(np.float64) for name, weight in weights.items())
        memory = fit_memory(entries, truth - mixed, self.folds[where])
        predicted = self._clip(truth - memory.left)
        fallback = fit_bias(self.tensor, self.tensor.take(np.zeros(0, dtype=np.int64)))
        calibration = calibrate(
            entries.indices, predicted, truth - predicted, self._cold(entries, self.folds[where]), self.tensor.shape,
            self.seed,
        )  # fmt: skip
        low, high = float(self.tensor.values.min()), float(self.tensor.values.max())
        answers = np.full(len(self.tensor), np.nan, dtype=np.float32)
        answers[where] = predicted
        predictor = Ensemble(members, memory.parts, fallback, low, high, calibration)
        return self._explain(predictor, said, truth, weights, memory.notes, answers, folds)

    def _answers(self, trial: Trial) -> tuple[Any, ...]:
        """One fit to all entries, or the fits of all folds."""
        if trial.candidate.refits and not self.interrupted and self.left() > 1.3 * trial.seconds:
            try:
                found = refit_candidate(
                    trial.candidate, list(trial.fits.values()), self.tensor, budget=max(self.left(), 1.0), **self.how
                )
                return (found.part,)
            except (ArithmeticError, RuntimeError) as error:
                self.on_note(
                    f"{trial.candidate.name}: the fit to all entries failed ({error}); those of the folds answer"
                )
        return tuple(one.part for one in trial.fits.values())

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
        memory: tuple[tuple[str, float], ...],
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
        known = np.isfinite(answers)
        final = float(np.sqrt(np.mean((answers[known] - self.tensor.values[known]) ** 2)))
        figures = {"single": rmse[best], "mix": float(np.sqrt(np.mean((mix - truth) ** 2))), "all": final}
        parts = ", ".join(f"{weight:.0%} {name}" for name, weight in weights.items())
        kept = [name for name, gain in memory if any(True for _ in predictor.memory) and gain >= 0.002]
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


def make_folds(tensor: SparseTensor, groups: tuple[int, ...], seed: int) -> NDArray[np.int8]:
    """A fold for every entry; entries that share their labels of ``groups`` share their fold."""
    generator = np.random.default_rng([seed, 5])
    if not groups:
        return (generator.permutation(len(tensor)) % FOLDS).astype(np.int8)
    keys = cell_keys(tensor.indices[:, groups], [tensor.shape[n] for n in groups])
    names, member = np.unique(keys, return_inverse=True)
    return (generator.permutation(len(names)) % FOLDS).astype(np.int8)[member]


def greedy(said: dict[str, NDArray[np.float32]], truth: NDArray[np.float32]) -> dict[str, float]:
    """Weights of a mean: members are added one at a time, with replacement, while that predicts better."""
    total, picked, lowest = np.zeros(len(truth)), [], math.inf
    for step in range(1, STEPS + 1):
        errors = {name: float(np.mean(((total + one) / step - truth) ** 2)) for name, one in said.items()}
        name = min(errors, key=lambda one: errors[one])
        if errors[name] > lowest * (1 - GAIN / step):
            break
        lowest = errors[name]
        total += said[name]
        picked.append(name)
    return {name: picked.count(name) / len(picked) for name in dict.fromkeys(picked)}


def run_auto(tensor: SparseTensor, **options: Any) -> Auto:
    """Choose, fit and explain; see :class:`Search` for the options."""
    return Search(tensor, **options).run()


__all__ = ["Auto", "Search", "Tables", "greedy", "make_folds", "run_auto"]
