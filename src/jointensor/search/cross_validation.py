"""Candidates of a search, fitted to folds of the entries, and what they say of the entries they did not see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS, held_out, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError
from jointensor.predictors import Predictor
from jointensor.predictors.dependencies import find_dependency
from jointensor.predictors.knn import SECONDS_PER_ENTRY
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.ensemble_selection import Errors, squared_error
from jointensor.search.executor import Result, deal
from jointensor.search.folds import settled_by_others
from jointensor.search.jit_warmup import rehearse, scene_of
from jointensor.search.portfolio import Candidate, Fitted, candidates_for, fit_candidate
from jointensor.training.fit import pick_device

RESERVE = 0.12
"""Share that is left for mixing, remembering and calibrating."""

FAILURES = (ArithmeticError, MemoryError, RuntimeError)
"""What may become of a fit without the others being concerned: it diverged, or a device's memory is full."""

SEEKING = 0.5
"""Share of the time that is left at the end that partners may be looked for in."""

CHANCE = 0.03
"""Share of a network's squared error that the mean of many of them would not have, at least: 0.04 and 0.11 on entries
cut off from those of two large tensors."""


@dataclass
class Trial:
    """One candidate, how it validated and what it took."""

    candidate: Candidate
    fits: dict[int, Fitted] = field(default_factory=dict)
    predicted: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """What each fold's fit says of the entries it did not see."""
    asked: float = 0.0
    """Seconds that an answer takes."""
    short: float | None = None
    """RMSE of a short training, where one came first."""
    failure: str | None = None

    @property
    def seconds(self) -> float:
        """Of the last fit: a first one may have had things to compile."""
        return next((one.seconds for one in reversed(self.fits.values()) if one.seconds), 0.0)


class CrossValidation:
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
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.processes = processes
        if len(tensor) < 2 * FOLDS:
            raise ConfigError(f"--rank auto needs at least {2 * FOLDS} entries to learn from, there are {len(tensor)}")
        away = held_out(tensor, groups, seed)
        self.groups, self.places = groups, np.flatnonzero(~away)
        self.whole, kept, self.fresh = tensor, tensor.take(self.places), tensor.take(np.flatnonzero(away))
        self.tensor, self.seed, self.on_note, self.store = kept, seed, on_note, store
        self.offered = candidates_for(kept)
        self.how: dict[str, Any] = {"seed": seed, "device": device, "engine": engine, "groups": groups}
        self.begin, self.budget = time.monotonic(), budget
        self.parted = make_folds(kept, groups, seed)
        self.deciding = find_dependency(kept)
        self.settled = settled_by_others(kept, self.deciding, self.parted)
        if not self.settled.any():
            self.deciding = None
        # what is known anyway is learnt from in every fold, and judges nothing
        self.folds = np.where(self.settled, -1, self.parted)
        self.trials: dict[str, Trial] = {}
        self.refitted: dict[tuple[str, int, int], Result] = {}
        """Fits to all entries: by name, number of entries, seed; and further folds: by name, -1, fold."""
        self.interrupted = False
        self.rehearsed: set[object] = {None}

    def left(self, share: float = 1.0) -> float:
        """Seconds until a share of the budget is used up, by the clock of the first process."""
        return self.processes.decide(lambda: self.left_here(share))

    def left_here(self, share: float = 1.0) -> float:
        """The same by the clock of this process, for a fit that is its own."""
        return share * self.budget - (time.monotonic() - self.begin)

    def interrupt(self) -> None:
        """Go on with what there is; raises an interrupt again that is not the first, or that others know nothing of."""
        if self.processes.shared or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.on_note("interrupted: going on with what there is")

    def fit_shortly(self, trials: Sequence[Trial]) -> None:
        """Candidates trained for a few epochs, to see which deserve more."""
        jobs = [partial(self._trained_shortly, trial.candidate) for trial in trials]
        for trial, found in zip(trials, deal(self.processes, jobs), strict=True):
            trial.short, trial.failure = found.short, found.failure or trial.failure
            if found.short is not None:
                self.on_note(f"{trial.candidate.name}, shortly: RMSE {trial.short:.4g}, {found.seconds:.1f} s")

    def _trained_shortly(self, candidate: Candidate) -> Result:
        train, valid = self.parts(0)
        self._rehearse(candidate)
        begin = time.monotonic()
        try:
            found = fit_candidate(
                candidate, train, valid, budget=max(self.left_here(1 - RESERVE), 1.0), short=True, **self.how
            )
            missed = squared_error(self.clip(found.part.predict(valid.indices)), valid.values)
        except FAILURES as error:
            return Result(failure=str(error))
        return Result(seconds=time.monotonic() - begin, short=math.sqrt(missed))

    def fit_all(self, jobs: Sequence[tuple[Trial, int]]) -> None:
        """Fits of candidates to folds; dealt to the processes, from the store where they are there already."""
        for trial, _ in jobs:
            self.trials.setdefault(trial.candidate.name, trial)
        tasks = [partial(self.fitted, trial.candidate, fold) for trial, fold in jobs]
        paths = [self._place(trial.candidate, fold) for trial, fold in jobs]
        stored = self.processes.decide(lambda: [path is not None and path.exists() for path in paths])
        for (trial, fold), found in zip(jobs, deal(self.processes, tasks, stored), strict=True):
            if found.part is None or found.predicted is None:
                trial.failure = found.failure
                self.on_note(f"{trial.candidate.name}: failed, {trial.failure}")
                continue
            trial.fits[fold], trial.predicted[fold] = Fitted(found.part, found.seconds), found.predicted
            trial.asked = found.asked / max(len(found.predicted), 1)
            self.keep(trial.candidate, fold, found.part)

    def keep(self, candidate: Candidate, fold: int, part: Predictor) -> None:
        """Store a fit, for a search that goes on later."""
        path = self._place(candidate, fold)
        if path is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            save_predictor(part, path)

    def _place(self, candidate: Candidate, fold: int) -> Path | None:
        return None if self.store is None else self.store / f"{candidate.slug}.{fold}.safetensors"

    def fitted(self, candidate: Candidate, fold: int) -> Result:
        """A candidate fitted to all folds but one, or from the store; and what it says of that one."""
        train, valid = self.parts(fold)
        path = self._place(candidate, fold)
        try:
            if path is not None and path.exists():
                found = Fitted(load_predictor(path), 0.0)
            else:
                self._rehearse(candidate)
                most = min(self.left_here(1 - RESERVE), candidate.share * self.budget)
                found = fit_candidate(candidate, train, valid, budget=max(most, 1.0), **self.how)
            found.part.predict(valid.indices[:1])  # what a first answer compiles or loads is not what answers take
            begin = time.monotonic()
            predicted = self.clip(found.part.predict(valid.indices))
        except FAILURES as error:
            return Result(failure=str(error).partition("\n")[0])
        if not np.isfinite(predicted).all():
            return Result(failure="its answers are not numbers")
        return Result(found.part, found.seconds, predicted, time.monotonic() - begin)

    def _rehearse(self, candidate: Candidate) -> None:
        """Have compiled what a candidate needs, once; on a GPU little is compiled that other shapes need, too."""
        scene = scene_of(candidate)
        if scene not in self.rehearsed and pick_device(self.how["device"]).type == "cpu":
            self.rehearsed.add(scene)
            with suppress(*FAILURES):  # the fit itself will say so
                rehearse(candidate, self.tensor, budget=max(self.left_here(1 - RESERVE), 1.0), **self.how)

    def asking(self, names: Iterable[str], folds: int) -> float:
        """Seconds in which candidates answer for all entries, for neighbours to know what is left of them; none where
        there are no such neighbours, or so many folds that all entries have their answers.
        """
        if folds == FOLDS or not len(self.fresh) or not self.along():
            return 0.0
        return len(self.tensor) * sum(self.trials[name].asked * self.answering(name, folds) for name in names)

    def answering(self, name: str, folds: int) -> int:
        """Fits whose mean answers, where there are so many folds."""
        trial = self.trials[name]
        return 1 if trial.candidate.refits else max(folds, len(trial.fits))

    def errors(self) -> Errors:
        """How everything that was tried errs on the first fold."""
        return Errors.of({name: one.predicted[0] for name, one in self.done([0]).items()}, self.truth([0]))

    def expected_error(self, errors: Errors, folds: int) -> float:
        """Squared error of the best mix of members with so many folds: the mean of k networks has 1/k of the chance."""
        weights = errors.best_weights()
        without = sum(weight**2 * (1 - 1 / self.answering(name, folds)) for name, weight in weights.items())
        return errors.of_mean(weights) * (1 - CHANCE * without)

    def nearly(self, least: float) -> float:
        """How large an error may be that comes with more folds than the least one: few entries tell little."""
        return least * (1 + 1 / math.sqrt(len(self.truth([0]))))

    def along(self) -> list[int]:
        """Modes along which an entry that is asked for can have neighbours.

        Along any other mode than those of the groups they are of its own group: new groups have none.
        """
        ordered = [n for n, mode in enumerate(self.tensor.modes) if mode.order != "none"]
        return [n for n in ordered if n in self.groups] if self.groups else ordered

    def beside(self, entries: int) -> list[int]:
        """Modes whose labels may have partners; none where it would take too long to find them."""
        modes = [n for n in range(self.tensor.n_modes) if n in self.groups or not self.groups]
        return modes if (len(modes) + 2) * SECONDS_PER_ENTRY * entries < SEEKING * self.left() else []

    def done(self, folds: list[int]) -> dict[str, Trial]:
        """Trials that were fitted to all these folds."""
        return {name: one for name, one in self.trials.items() if all(fold in one.predicted for fold in folds)}

    def truth(self, folds: list[int]) -> NDArray[np.float32]:
        """Values of the entries of folds, one fold after the other."""
        return np.concatenate([self.tensor.values[self.folds == fold] for fold in folds])

    def mse(self, trial: Trial, folds: list[int]) -> float:
        """Mean squared error of entries that were left out."""
        said = np.concatenate([trial.predicted[fold] for fold in folds])
        return squared_error(said, self.truth(folds))

    def parts(self, fold: int) -> tuple[SparseTensor, SparseTensor]:
        """What a fold is learnt from, and its own entries."""
        return (
            self.tensor.take(np.flatnonzero(self.folds != fold)),
            self.tensor.take(np.flatnonzero(self.folds == fold)),
        )

    def clip(self, predicted: NDArray[Any]) -> NDArray[np.float32]:
        """No answer is outside of the values there are."""
        return np.clip(predicted, self.tensor.values.min(), self.tensor.values.max()).astype(np.float32)
