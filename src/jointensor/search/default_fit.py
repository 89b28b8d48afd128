"""The default fit: a few models of the training entries, mixed and corrected by the validation entries.

members    baselines; CP with R chosen by validation, or sampled pairs and trees where entries are few; JULIA 4/16
weights    of their mean, by ensemble selection on the validation entries
dependency values that the labels of some modes determine are looked up; candidates are compared on the others
residuals  kriging of training residuals along ordered modes, as far as it predicts those of validation entries
refit      of all but the networks, with what was chosen, to training and validation entries
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor, join
from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.predictors import Predictor
from jointensor.predictors.axes import axes_of
from jointensor.predictors.dependencies import dependency_table, find_dependency, in_words
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.residual_stack import NO_MODELS, ResidualStack, fit_validated_kriging, refit_kriging
from jointensor.predictors.tables import Tables
from jointensor.search.budget import Clock
from jointensor.search.cross_fit import FAILURES
from jointensor.search.ensemble_selection import ErrorProducts
from jointensor.search.executor import FitResult, Job, run_fits
from jointensor.search.families import FitOptions, family_of
from jointensor.search.interruption import Interruption
from jointensor.search.portfolio import BASELINES, BIAS, Candidate, default_candidates
from jointensor.search.settings import SearchSettings
from jointensor.search.workers import ONE_WORKER, Workers
from jointensor.training.checkpoint import Slot
from jointensor.training.history import OnEpoch


@dataclass(frozen=True)
class DefaultFit:
    """The predictor, and how it came about."""

    predictor: Ensemble
    """With members that have learnt from the validation entries, too, where there was time."""
    validated: Ensemble
    """The same before: its errors on the validation entries are those that chose its weights."""
    refit: bool
    """Whether a member has learnt from the validation entries. Networks never do, and none does where time is short."""
    trials: list[dict[str, Any]]
    """A row per member: name, RMSE on validation entries, seconds, weight, share of the squared error that it removes,
    failure."""
    residual_models: list[tuple[str, float]]
    """Names of the residual models that are kept, and the share of the squared error that each removed."""
    dependency: str
    """What the labels of some modes decide, in words; empty if nothing."""
    fits: int
    """Models that were fitted, baselines and refits not counted."""
    outcome: str
    """``converged``, ``budget`` where that was used up, or ``interrupted``."""

    @property
    def chosen(self) -> str:
        """Names of the members."""
        return " + ".join(member.name for member in self.predictor.members)

    @property
    def reason(self) -> str:
        """What was mixed, in a sentence."""
        parts = [f"{member.weight:.0%} {member.name}" for member in self.predictor.members]
        models = [f"{name} reduced the squared error by {gain:.1%}" for name, gain in self.residual_models]
        text = f"mixed by the validation entries: {', '.join(parts)}"
        text += f"; of their residuals, {', '.join(models)}" if models else ""
        return f"{text}; {self.dependency}" if self.dependency else text


@dataclass
class _Tried:
    """Predictors with their predictions for the validation entries, and the rows of all that was tried."""

    parts: Split
    fitted: dict[str, Predictor] = field(default_factory=dict)
    predictions: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def clipped(self, predictor: Predictor) -> NDArray[np.float32]:
        """Predictions for the validation entries, within the range of the training entries."""
        values = self.parts.train.values
        return np.clip(predictor.predict(self.parts.valid.indices), values.min(), values.max()).astype(np.float32)

    def add(self, name: str, predictor: Predictor, predictions: NDArray[np.float32], seconds: float = 0.0) -> None:
        """A member, if its predictions are finite."""
        self.seconds[name] = seconds
        if np.isfinite(predictions).all():
            self.fitted[name], self.predictions[name] = predictor, predictions
        else:
            self.failures[name] = "its predictions are not finite"

    def take(self, name: str, result: FitResult, on_note: Callable[[str], None]) -> None:
        """The result of a fit: a member, or a failure."""
        if result.part is None or result.predictions is None:
            self.seconds[name], self.failures[name] = result.seconds, result.failure or ""
        else:
            self.add(name, result.part, result.predictions, result.seconds)
        if name in self.failures:
            on_note(f"{name}: failed, {self.failures[name]}")
        else:
            on_note(f"{name}: RMSE {self.rmse(name):.4g} on validation entries")

    def rmse(self, name: str) -> float:
        """Of a member, on the validation entries."""
        errors = self.predictions[name].astype(np.float64) - self.parts.valid.values
        return math.sqrt(float(np.mean(errors**2)))

    def rows(self, weights: Mapping[str, float], gains: Mapping[str, float]) -> list[dict[str, Any]]:
        """A row for each."""
        return [
            {
                "name": name,
                "rmse": self.rmse(name) if name in self.predictions else None,
                "spread": None,
                "folds": int(name in self.predictions),
                "seconds": self.seconds[name],
                "weight": weights.get(name, 0.0),
                "gain": gains.get(name, 0.0),
                "failure": self.failures.get(name),
            }
            for name in self.seconds
        ]


def default_fit(
    parts: Split,
    baselines: Mapping[str, Predictor],
    options: FitOptions,
    *,
    slots: Iterator[Slot | None] | None = None,
    candidates: Sequence[Candidate] | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    clock: Clock = time.monotonic,
    workers: Workers = ONE_WORKER,
    listeners: Iterator[OnEpoch | None] | None = None,
) -> DefaultFit:
    """Fit a few models to the training entries, and mix them by the validation entries.

    Parameters
    ----------
    parts
        Training and validation entries.
    baselines
        Fitted to the training entries, by name; ``bias`` among them.
    options
        Of all fits; its ``seconds`` are for all of them together.
    slots
        Checkpoints, one for each candidate in turn.
    candidates
        What is fitted beside the baselines; :func:`~jointensor.search.portfolio.default_candidates` if not given.
    on_note
        Called with a line for the user.
    clock
        Returns seconds.
    workers
        Make fits side by side.
    listeners
        Called after every epoch, one for each candidate in turn; in the thread that fits it.
    """
    end, interruption, fits = clock() + options.seconds, Interruption(options.stopping), 0
    chosen = default_candidates(parts.train) if candidates is None else list(candidates)
    everything, (parts, deciding) = join(parts.train, parts.valid), _open_validation(parts, options.settings)
    tried = _Tried(parts)
    for name, one in baselines.items():
        tried.add(name, one, tried.clipped(one))
    options = replace(options, stopping=workers.stopping(options.stopping), clock=clock)

    def fit(number: int, slot: Slot | None, on_epoch: OnEpoch | None) -> FitResult:
        begin, candidate = clock(), chosen[number]
        # what fits leave of their share is for those that follow
        turns = max(1.0, (len(chosen) - number) / workers.count(len(chosen)))
        limits = replace(options, seconds=max(end - begin, 0.0) / turns, checkpoint=slot, on_epoch=on_epoch)
        try:
            part = family_of(candidate).fit(candidate, parts.train, parts.valid, limits)
            seconds = clock() - begin
            return FitResult(part, seconds, tried.clipped(part))
        except FAILURES as error:
            return FitResult(seconds=clock() - begin, failure=str(error).partition("\n")[0])

    own = [(None if slots is None else next(slots), None if listeners is None else next(listeners)) for _ in chosen]
    jobs = [
        Job(partial(fit, number, *given), lambda: clock() < end, family_of(candidate).on_cpu)
        for number, (candidate, given) in enumerate(zip(chosen, own, strict=True))
    ]
    results = run_fits(SINGLE_PROCESS, jobs, interruption, workers=workers)
    with interruption.ends_stage():
        for candidate, result in zip(chosen, results, strict=True):
            if not result.admitted:
                on_note(f"{candidate.name}: not fitted, the budget is used up")
            elif result.part is not None or result.failure is not None:
                tried.take(candidate.name, result, on_note)
                fits += result.part is not None
    errors = ErrorProducts.of(tried.predictions, parts.valid.values)
    weights = errors.best_weights(options.settings)
    fitted = {name: (tried.fitted[name],) for name in weights}
    validated, residuals = _mean_of(parts.train, fitted, weights, baselines["bias"], deciding), NO_MODELS
    begin = clock()
    if begin < end and not interruption.happened:
        validated, residuals = _corrected(parts, validated, replace(options, seconds=end - begin))
    correcting = clock() - begin
    known = BASELINES | {one.name: one for one in chosen}
    refitting = _Refitting(everything, tried, known, options, workers, end, clock)
    again = refitting.members(weights, interruption, on_note)
    outcome = "interrupted" if interruption.happened else "budget" if clock() >= end else "converged"
    predictor = refitting.ensemble(validated, again, baselines["bias"], correcting) if again else validated
    rows = tried.rows(weights, errors.gains(weights, options.settings))
    kept = list(residuals.notes[: len(residuals.models)])
    dependency = in_words(deciding, parts.train.modes)
    return DefaultFit(predictor, validated, bool(again), rows, kept, dependency, fits, outcome)


@dataclass(frozen=True)
class _Refitting:
    """Fits the members of a mean to training and validation entries, with what the validation entries have chosen."""

    entries: SparseTensor
    """Training and validation entries."""
    tried: _Tried
    candidates: Mapping[str, Candidate]
    """By name, baselines among them."""
    options: FitOptions
    workers: Workers
    end: float
    """When there is no more time, by the clock."""
    clock: Clock

    def members(
        self,
        weights: Mapping[str, float],
        interruption: Interruption,
        on_note: Callable[[str], None],
    ) -> dict[str, Predictor]:
        """Members that were fitted again, by name.

        Parameters
        ----------
        weights
            Of all members. Those whose family stops by validation entries are not fitted again.
        interruption
            Ends it, with the members that are finished.
        on_note
            Called with a line for the user.
        """
        if interruption.happened:
            return {}
        names = [name for name in weights if family_of(self.candidates[name]).refits]
        jobs = [
            Job(partial(self._fit, name), partial(self._affords, name), family_of(self.candidates[name]).on_cpu)
            for name in names
        ]
        found: dict[str, Predictor] = {}
        with interruption.ends_stage():
            for name, result in zip(
                names, run_fits(SINGLE_PROCESS, jobs, interruption, workers=self.workers), strict=True
            ):
                if result.part is not None:
                    found[name] = result.part
                elif result.failure is not None:
                    on_note(f"{name}: the fit to training and validation entries failed ({result.failure})")
        return found

    def ensemble(
        self, validated: Ensemble, again: Mapping[str, Predictor], bias: Predictor, seconds: float
    ) -> Ensemble:
        """The mean with these members, and with kriging of what it leaves of all entries.

        Residuals of entries that most members have not seen are larger, and are not kriged together with the others:
        those of the training entries stay. So they do where there is no time.

        Parameters
        ----------
        validated
            The mean of the training entries.
        again
            Its members that were fitted again.
        bias
            Predicts labels that were not seen.
        seconds
            That kriging of training residuals took.
        """
        entries = self.entries
        fallback = family_of(BIAS).refit(BIAS, [bias], entries, self.options)
        deciding = None if validated.dependency is None else validated.dependency.modes
        weights = {one.name: one.weight for one in validated.members}
        fits = self._fits(weights, again)
        mean = _mean_of(entries, fits, weights, fallback, deciding)
        refitted = sum(weight / len(fits[name]) for name, weight in weights.items() if name in again)
        late = self.clock() + seconds >= self.end
        if not validated.residual_models or late or refitted < self.options.settings.min_refitted_share:
            return replace(mean, residual_models=validated.residual_models)
        residuals = entries.values - mean.weighted_mean(entries.indices)  # (entries,)
        return replace(mean, residual_models=refit_kriging(validated.residual_models, entries, residuals))

    def _fits(self, names: Iterable[str], again: Mapping[str, Predictor]) -> dict[str, tuple[Predictor, ...]]:
        """Fits whose mean every member is: of a random one, one value far off is in one of its two fits only."""
        found: dict[str, tuple[Predictor, ...]] = {}
        for name in names:
            both = name not in again or family_of(self.candidates[name]).random
            found[name] = ((self.tried.fitted[name],) if both else ()) + ((again[name],) if name in again else ())
        return found

    def _affords(self, name: str) -> bool:
        cost = family_of(self.candidates[name]).refit_cost * self.tried.seconds[name]
        return self.clock() + cost < self.end

    def _fit(self, name: str) -> FitResult:
        candidate = self.candidates[name]
        options = replace(self.options, seconds=max(self.end - self.clock(), 0.0))
        try:
            part = family_of(candidate).refit(candidate, [self.tried.fitted[name]], self.entries, options)
        except FAILURES as error:
            return FitResult(failure=str(error).partition("\n")[0])
        finite = np.isfinite(part.predict(self.tried.parts.valid.indices)).all()
        return FitResult(part) if finite else FitResult(failure="its predictions are not finite")


def _open_validation(parts: Split, settings: SearchSettings) -> tuple[Split, tuple[int, ...] | None]:
    """The parts with validation entries whose value no training entry gives, and the modes whose labels decide it.

    All validation entries and ``None`` where values are given by nothing, or to so many entries that too few are left.
    """
    deciding = find_dependency(parts.train)
    if deciding is None:
        return parts, None
    given = dependency_table(parts.train, deciding).observed(parts.valid.indices)  # (entries,)
    others = np.flatnonzero(~given)
    if not given.any() or len(others) < max(settings.min_open_entries, settings.min_open_share * len(given)):
        return parts, None
    return replace(parts, valid=parts.valid.take(others)), deciding


def _mean_of(
    entries: SparseTensor,
    fits: Mapping[str, tuple[Predictor, ...]],
    weights: Mapping[str, float],
    bias: Predictor,
    deciding: tuple[int, ...] | None,
) -> Ensemble:
    """The weighted mean of members that were fitted to some entries, which give values by the deciding modes."""
    assert isinstance(bias, Tables)  # a baseline of every run
    values = entries.values
    members = tuple(Member(name, weight, fits[name]) for name, weight in weights.items())
    dependency = None if deciding is None else dependency_table(entries, deciding)
    low, high = float(values.min()), float(values.max())
    return Ensemble(members, (), bias, low, high, dependency=dependency, name="mixture")


def _corrected(parts: Split, mean: Ensemble, options: FitOptions) -> tuple[Ensemble, ResidualStack]:
    """The mean with kriging of its residuals, where that validates better and as far as there is time.

    Predictions for the training entries are not begun if they would end too late, judged by the validation entries.
    """
    train, valid, along, in_time = parts.train, parts.valid, axes_of(parts.train.modes), options.in_time()
    if not along:
        return mean, NO_MODELS
    begin = options.clock()
    valid_residuals = valid.values - mean.weighted_mean(valid.indices)  # (validation entries,)
    seconds = options.clock() - begin
    if seconds * (1 + len(train) / max(len(valid), 1)) >= options.seconds:
        return mean, NO_MODELS
    residuals = train.values - mean.weighted_mean(train.indices)  # (training entries,)
    stack = fit_validated_kriging(train, residuals, valid, valid_residuals, along=along, in_time=in_time)
    return replace(mean, residual_models=stack.models), stack
