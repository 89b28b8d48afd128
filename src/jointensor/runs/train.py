"""The training stage of a run: one fit with what is fitted to its residuals, or a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from jointensor.data.split import groups_of, new_modes
from jointensor.distributed.process_group import ProcessGroup
from jointensor.kernels import pick_engine
from jointensor.metrics import Metrics, measure
from jointensor.models.blocks import Piece
from jointensor.models.blocks.spec import split_residual_blocks
from jointensor.predictors import Predictor
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.residual_stack import fit_residual_stack
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.dataset import Dataset, InMemory, linear_blocks, make_model
from jointensor.runs.folder import CHECKPOINTS
from jointensor.runs.result import Trained, TrainingRecord
from jointensor.search.default_fit import default_fit
from jointensor.search.families import FitOptions
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS
from jointensor.search.workers import Workers
from jointensor.training.checkpoint import Checkpoints
from jointensor.training.fit import Fit, fit, pick_device
from jointensor.training.history import Epoch, OnEpoch
from jointensor.training.recipe import make_recipe
from jointensor.training.schedule import schedule_of

SEARCH_STORE = "search"
"""Folder of the fits that a search has finished, among the checkpoints."""

RESIDUAL_FOLDS = 3
"""Folds that give every training entry one residual of a model that did not see it; each costs a fit."""


@dataclass(frozen=True)
class Context:
    """What every part of a run needs: its options, its callbacks, its processes, when it began, its checkpoints."""

    path: Path
    config: RunConfig
    listener: Listener
    processes: ProcessGroup
    begin: float
    """By the monotonic clock; earlier parts of a resumed run are counted in."""
    checkpoints: Checkpoints | None = None
    """``None`` in all processes but the first."""
    fits: list[Fit] = field(default_factory=list)
    """Fits so far."""

    def fit(self, make: Callable[..., Fit], *given: Any, **more: Any) -> Fit:
        """The next fit of the run, with the options of the run and its own checkpoints."""
        config = self.config
        options = {
            "seed": config.seed,
            "device": config.device,
            "budget": config.left(self.begin),
            "engine": config.engine,
            "on_note": self.listener.on_note,
            "checkpoint": None if self.checkpoints is None else self.checkpoints.next(),
            "stopping": self.listener.stopping,
            "processes": self.processes,
        }
        self.fits.append(make(*given, **options, **more))
        return self.fits[-1]

    @property
    def stopped(self) -> bool:
        """Whether a fit was stopped."""
        return any(one.stopped for one in self.fits)

    def note(self, *notes: str) -> None:
        """Tell the user."""
        for note in notes:
            self.listener.on_note(note)


def train_fit(run: Context, dataset: Dataset, baselines: dict[str, Predictor]) -> Trained:
    """Fit one model; then residual models and the fit to all entries, if the options ask for them."""
    config = run.config
    recipe = make_recipe(config.recipe, **config.recipe_changes)
    model = make_model(config, recipe, dataset.modes)
    run.note(repr(model))
    fitted = run.fit(dataset.fit, model, recipe, baselines["bias"], on_epoch=run.listener.on_epoch)
    run.note(*fitted.notes)
    judged, notes, fits = _with_residual_models(run, dataset, fitted)
    again = config.refit and fitted.returned == "joint" and isinstance(judged, JointPredictor) and not run.stopped
    refitted = _fit_all_entries(run, dataset, fitted) if again else None
    kept: JointPredictor | Ensemble = judged if refitted is None else refitted.predictor
    record = TrainingRecord(
        returned={"model": fitted.returned, "refit": refitted is not None},
        outcome=fitted.outcome,
        interrupted=run.stopped,
        restarts=fitted.restarts,
        attempts=fitted.attempts,
        failed=fitted.failed,
        nonlinear_dead=fitted.nonlinear_dead,
        fits=fits + again,
        epochs=len(fitted.history),
        resumed_from_epoch=sum(one.resumed_epochs for one in run.fits) or None,
        parameters=fitted.model.n_parameters(),
        engine=fitted.engine,
        linear=fitted.model.linear,
        first=fitted.first,
        ridge=fitted.ridge,
        collapsed=fitted.collapsed,
        notes=[*fitted.notes, *notes],
    )
    joint = None if fitted.returned == "joint" else replace(fitted.predictor, returned="joint")
    return Trained(judged, kept, record, fitted.history, joint=joint)


def can_mix(run: Context, dataset: Dataset) -> bool:
    """Whether a run is the default fit; one that has nothing to choose by, or several processes, fits one model."""
    if not run.config.mixes:
        return False
    if run.processes.shared or not isinstance(dataset, InMemory):
        run.note("several processes fit one model: --rank 4/16")
        return False
    if not len(dataset.valid):
        run.note("there are no validation entries to mix models by: --rank 4/16")
        return False
    return True


class Histories:
    """The epochs of several fits, which may be made side by side.

    Parameters
    ----------
    on_epoch
        Called with the epochs of all of them, one at a time.
    """

    def __init__(self, on_epoch: OnEpoch | None = None) -> None:
        self._on_epoch, self._lock = on_epoch, Lock()
        self._fits: list[list[Epoch]] = []

    def listeners(self) -> Iterator[OnEpoch]:
        """One for each fit in turn."""
        while True:
            own: list[Epoch] = []
            self._fits.append(own)
            yield partial(self._hear, own)

    def _hear(self, own: list[Epoch], epoch: Epoch) -> None:
        with self._lock:
            own.append(epoch)
            if self._on_epoch is not None:
                self._on_epoch(epoch)

    def joined(self) -> list[Epoch]:
        """One fit after the other; every start of a fit has a number of its own."""
        found: list[Epoch] = []
        for own in self._fits:
            first = found[-1].attempt + 1 if found else 0
            found += [replace(epoch, attempt=first + epoch.attempt) for epoch in own]
        return found


def train_default(run: Context, dataset: Dataset, baselines: dict[str, Predictor]) -> Trained:
    """A few models of the training entries, mixed by the validation entries."""
    assert isinstance(dataset, InMemory)  # see can_mix
    config = run.config
    device, histories = pick_device(config.device), Histories(run.listener.on_epoch)
    slots = (None if run.checkpoints is None else run.checkpoints.next() for _ in count())
    options = FitOptions(
        config.seed, config.device, config.engine, new_modes(dataset.parts.together),
        seconds=config.left(run.begin), stopping=run.listener.stopping,
    )  # fmt: skip
    with Workers.of(device, len(dataset.parts.train)) as workers:
        found = default_fit(
            dataset.parts, baselines, options, slots=slots, on_note=run.listener.on_note, workers=workers,
            listeners=histories.listeners(),
        )  # fmt: skip
    history = histories.joined()
    record = TrainingRecord(
        returned={"model": found.predictor.returned, "refit": found.refit},
        outcome=found.outcome,
        interrupted=found.outcome == "interrupted",
        fits=found.fits,
        epochs=len(history),
        parameters=found.predictor.n_parameters(),
        engine=pick_engine(config.engine, device.type).name,
        linear=found.chosen,
        search={"trials": found.trials, "reason": found.reason},
        notes=[found.reason],
    )
    return Trained(found.predictor, found.predictor, record, history, found.validated)


def train_search(run: Context, dataset: Dataset) -> Trained:
    """Choose, fit and mix models by cross-validation over training and validation entries.

    Of several processes each has all entries and makes some of the fits; the first one plans.
    """
    config, processes = run.config, run.processes
    assert isinstance(dataset, InMemory)  # refused from disk
    entries = dataset.without_validation().parts.train
    seconds = SETTINGS.seconds if config.budget is None else config.budget
    found = search(
        entries,
        seed=config.seed,
        budget=max(seconds - (time.monotonic() - run.begin), 1.0) if config.budget_fits is None else None,
        budget_fits=config.budget_fits,
        device=str(processes.device) if processes.shared else config.device,
        engine=config.engine,
        groups=dataset.parts.together,
        store=run.path / CHECKPOINTS / SEARCH_STORE if processes.first else None,
        on_note=run.listener.on_note,
        processes=processes,
        stopping=run.listener.stopping,
    )
    held_out = np.isfinite(found.predicted)
    figures = measure(found.predicted[held_out], entries.values[held_out]).to_dict()
    shared = [f"whole fits were shared out to {processes.size} processes; each has all entries"]
    record = TrainingRecord(
        returned={"model": "auto", "refit": True},
        outcome=found.outcome,
        interrupted=found.interrupted,
        fits=sum(row["folds"] for row in found.trials),
        parameters=found.predictor.n_parameters(),
        engine=pick_engine(config.engine, pick_device(config.device).type).name,
        linear=found.chosen,
        search={"trials": found.trials, "simplest": found.simplest, "reason": found.reason, **found.figures},
        notes=[*(shared if processes.shared else []), found.reason],
    )
    out_of_fold = figures | {"warm": figures, "cold": Metrics().to_dict()}
    return Trained(found.predictor, found.predictor, record, out_of_fold=out_of_fold, calibrated=True)


def _with_residual_models(
    run: Context, dataset: Dataset, fitted: Fit
) -> tuple[JointPredictor | Ensemble, list[str], int]:
    """The fitted model with residual models stacked on it, what they reduced, and how many fits that took.

    They learn from residuals of held-out training entries, so the model is fitted once more to the complement of each
    fold; the model that predicts is the one that was fitted to all training entries.
    """
    config, blocks = run.config, residual_blocks(run.config, fitted, dataset)
    if not blocks or fitted.returned != "joint" or run.stopped:
        return fitted.predictor, [], 1
    assert isinstance(dataset, InMemory)  # refused from disk
    parts, train = dataset.parts, dataset.parts.train
    member, fallback = Member("joint", 1.0, (fitted.predictor,)), fitted.predictor.fallback
    bounds = float(train.values.min()), float(train.values.max())
    if len(train) < RESIDUAL_FOLDS:  # no folds, no residuals
        return Ensemble((member,), (), fallback, *bounds), [], 1
    run.note(f"fitting {RESIDUAL_FOLDS} more times, for residuals of held-out entries")
    count, group = groups_of(train, parts.together)
    if count < RESIDUAL_FOLDS:
        count, group = groups_of(train, ())
    folds = (np.random.default_rng([config.seed, 6]).permutation(count) % RESIDUAL_FOLDS)[group]  # (entries,)
    residuals = np.empty(len(train))
    for fold in range(RESIDUAL_FOLDS):
        out = np.flatnonzero(folds == fold)
        some = replace(parts, train=train.take(np.flatnonzero(folds != fold)))
        again = run.fit(fit, make_model(config, fitted.recipe, dataset.modes), some, fitted.recipe)
        residuals[out] = train.values[out] - again.predict(train.indices[out])
    along = [(piece.numbers[0],) for piece in blocks if piece.kind.residual_model == "kriging"]
    tables = any(piece.kind.residual_model == "tables" for piece in blocks)
    stack = fit_residual_stack(train, residuals, folds, tables=tables, along=along)
    notes = [f"{name} reduced the held-out squared error by {gain:.1%}" for name, gain in stack.notes]
    run.note(*notes)
    return Ensemble((member,), stack.models, fallback, *bounds), notes, 1 + RESIDUAL_FOLDS


def residual_blocks(config: RunConfig, fitted: Fit, dataset: Dataset) -> Sequence[Piece]:
    """Blocks of ``--linear`` that are fitted to residuals, modes by position."""
    if config.linear is None:
        return []
    spelled = linear_blocks(config, fitted.recipe, dataset.modes, whole=True)
    return split_residual_blocks(spelled, sampled=fitted.recipe.linear_solver == "gibbs")[1]


def _fit_all_entries(run: Context, dataset: Dataset, fitted: Fit) -> Fit | None:
    """Train once more on all entries, for as long as the evaluated model took; ``None`` where that failed."""
    run.note("training once more on all entries")
    model = make_model(run.config, fitted.recipe, dataset.modes)
    everything = dataset.without_held_out()
    again = run.fit(everything.fit, model, schedule_of(fitted), None, on_epoch=run.listener.on_epoch)
    if (again.failed and not fitted.failed) or run.stopped:
        why = "was stopped" if run.stopped else f"failed ({again.outcome})"
        run.note(f"training on all entries {why}; the evaluated model is kept")
        return None
    return again
