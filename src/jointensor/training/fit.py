"""Fit a joint model to a split: attempts, restarts, and an outcome that is data, not a crash."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.baselines.device import fit_bias_on_device
from jointensor.baselines.tables import Tables, fit_bias
from jointensor.data.sparse import SparseTensor
from jointensor.data.split import Split
from jointensor.errors import ConfigError, DataError, MemoryFullError
from jointensor.kernels import pick_engine
from jointensor.metrics import measure
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.training.history import Epoch, OnEpoch
from jointensor.training.journal import Journal, StoppedError
from jointensor.training.losses import make_loss
from jointensor.training.phases import train
from jointensor.training.predictor import Predictor
from jointensor.training.recipe import Recipe, make_recipe
from jointensor.training.state import Entries
from jointensor.training.together import own_share, see_all
from jointensor.training.trainer import (
    CONSTANT,
    EVALUATION_BATCH,
    BudgetError,
    DeadError,
    DivergedError,
    HopelessError,
    Trainer,
)
from jointensor.training.world import World

Outcome = Literal["converged", "budget", "diverged", "dead"]
"""``converged``: the stopping rule fired. ``budget``: epochs or seconds ran out, or a start was given up.
``diverged``: a loss was not finite. ``dead``: every prediction is the same number."""


LARGEST = 1e30
"""Size of values whose sums fit into 32 bits, however many there are."""

JUDGED = 500_000
"""Validation entries that decide between the joint model and the biases; more would only take longer."""


@dataclass(frozen=True)
class Attempt:
    """One start and how it ended."""

    number: int
    outcome: Outcome
    rfe: float
    """On validation entries (training entries where there are none)."""
    nonlinear_dead: bool
    """Whether f ended as a constant, even if g carried the fit."""
    state: dict[str, Tensor]
    history: list[Epoch]
    ridge: float | None = None
    """λ of the exact solver; ``None`` where Θ_L was descended."""
    first: str | None = None
    """Which half was estimated first."""
    collapsed: tuple[str, ...] = ()
    """Blocks of g that ended at zero."""

    @property
    def failed(self) -> bool:
        """Whether the paper would start again: RFE ≥ 1, or nothing learnt at all."""
        return self.outcome in ("diverged", "dead") or not self.rfe < 1

    def to_dict(self) -> dict[str, Any]:
        """What ``metrics.json`` keeps of it."""
        return {
            "outcome": self.outcome,
            "failed": self.failed,
            "first": self.first,
            "ridge": self.ridge,
            "collapsed": list(self.collapsed),
            "valid_rfe": self.rfe if math.isfinite(self.rfe) else None,
            "nonlinear_dead": self.nonlinear_dead,
            "epochs": len(self.history),
            "seconds": sum(row.seconds for row in self.history),
        }


@dataclass(frozen=True)
class Fit:
    """A trained model and how it came about."""

    predictor: Predictor
    """What answers: the model, and the biases for labels that were not seen."""
    history: list[Epoch]
    """All epochs of all attempts."""
    outcome: Outcome
    """How training ended: ``converged``, ``budget``, ``diverged`` or ``dead``."""
    attempts: list[dict[str, Any]]
    """How every start ended, see :meth:`Attempt.to_dict`."""
    attempt: int
    """Which start was kept, counted from 0."""
    failed: bool
    """Whether even the best attempt has a validation RFE ≥ 1."""
    nonlinear_dead: bool
    """Whether f ended as a constant, even if g carried the fit."""
    seed: int
    """Of everything random in it."""
    seconds: float
    """How long it took."""
    recipe: Recipe
    """How it was trained."""
    engine: str
    """Which kernels were used."""
    ridge: float | None
    """λ of the exact solver; ``None`` where Θ_L was descended."""
    first: str | None
    """Which half was estimated first; ``None`` for a model of one half."""
    collapsed: list[str]
    """Blocks that ended at zero."""
    notes: list[str]
    """What the recipe asked for and the model or the loss did not allow, and what is worth knowing of the result."""

    @property
    def returned(self) -> str:
        """What answers: ``joint``, or ``bias`` where that validated better and the recipe falls back."""
        return self.predictor.returned

    @property
    def restarts(self) -> int:
        """How many new starts were made."""
        return len(self.attempts) - 1

    @property
    def model(self) -> JointModel:
        """The trained model."""
        return self.predictor.model

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Values of entries, by index; see :class:`~jointensor.training.predictor.Predictor`."""
        return self.predictor.predict(indices)


def fit(  # noqa: PLR0913 - everything that decides a fit
    model: JointModel,
    split: Split,
    recipe: str | Recipe = "default",
    *,
    seed: int = 0,
    device: str = "auto",
    budget: float = math.inf,
    fallback: Tables | None = None,
    on_epoch: OnEpoch | None = None,
    engine: str = "auto",
    on_note: Callable[[str], None] | None = None,
    journal: Journal | None = None,
) -> Fit:
    """Train a model on a split.

    Parameters
    ----------
    model
        Trained in place, from a new random start.
    split
        Training and validation entries; test entries are not read.
    recipe
        Every number of training, by name or as a :class:`~jointensor.training.recipe.Recipe`.
    seed
        Of everything random here. Same seed, same result, bit for bit on the CPU; a GPU adds in an order
        of its own. Torch's own random state is left as it was.
    device
        ``auto`` takes a GPU where there is one.
    budget
        Seconds after which training stops with the best state so far.
    fallback
        Bias predictor for unseen labels, if there is one already.
    on_epoch
        Called with every row of the history.
    engine
        Which kernels do the work: ``auto``, ``reference``, ``numba`` (CPU) or ``triton`` (NVIDIA GPU).
    on_note
        Called with what is worth a line while it happens.
    journal
        Writes checkpoints and goes on from them; see :mod:`jointensor.training.journal`. Its world says which
        processes train together: all are given the same split, and each keeps its share of the training entries.
    """
    journal = journal or Journal()
    world = journal.world
    recipe = make_recipe(recipe)
    begin = time.monotonic()
    check_fit(model, split, recipe)
    place = world.device if world.shared else pick_device(device)
    kernels = pick_engine(engine, place.type)
    if kernels.first_use and recipe.solves and on_note is not None:
        on_note(kernels.first_use)
    see_all(model, split.train, world)
    model.to(place)
    short = recipe.precision == "short"
    kernels.equip(model, short=short)
    train_entries, valid_entries = (
        Entries.of(part, place) for part in (own_share(split.train, world, ordered=recipe.solves), split.valid)
    )
    if recipe.solves and not world.shared:
        train_entries = train_entries.by_last_mode()
    if model.multilinear is not None:
        if not world.shared:
            model.multilinear.see(train_entries.indices)
        model.multilinear.draws.forget()  # those of an earlier fit
    best: Attempt | None = None
    history: list[Epoch] = []
    attempts: list[dict[str, Any]] = []
    given = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for number in range(1 + recipe.restarts):
        model.load_state_dict(given)  # parameters that nothing resets must not carry over from a failed attempt
        with _seeded(seed, number, place), _memory_named(place):
            trainer = Trainer(
                model,
                train_entries,
                valid_entries,
                recipe,
                attempt=number,
                deadline=begin + budget,
                on_epoch=on_epoch,
                engine=kernels,
                journal=journal,
            )
            attempt = _attempt(trainer)
        history += attempt.history
        attempts.append(attempt.to_dict())
        if best is None or (attempt.failed, attempt.rfe) < (best.failed, best.rfe):
            best = attempt
        if not best.failed or journal.stopped or trainer.out_of_time():
            break
    assert best is not None  # the loop runs at least once
    with _seeded(seed, 0, place):
        journal.pause(len(history), force=True)
    model.load_state_dict(best.state)
    if fallback is None and place.type == "cuda" and not world.shared:
        parts = [(part.indices, part.values) for part in (train_entries, valid_entries)]
        fallback = fit_bias_on_device(parts[0], parts[1], model.shape)
    fallback = fit_bias(split.train, split.valid) if fallback is None else fallback
    notes = trainer.notes + [
        f"block '{name}' ended at zero: the ridge that validated best is large" for name in best.collapsed
    ]
    pick_engine("reference", place.type).equip(model)  # what answers can move to any device
    predictor = Predictor(model.eval(), fallback)
    if recipe.fall_back:
        predictor = _better(predictor, split.valid, notes, world)
    return Fit(
        predictor=predictor,
        history=history,
        outcome=best.outcome,
        attempts=attempts,
        attempt=best.number,
        failed=best.failed,
        nonlinear_dead=best.nonlinear_dead,
        seed=seed,
        seconds=time.monotonic() - begin,
        recipe=recipe,
        engine=kernels.name if best.ridge is not None or kernels.offered(short=short) else "reference",
        ridge=best.ridge,
        first=best.first,
        collapsed=list(best.collapsed),
        notes=notes,
    )


def _better(predictor: Predictor, valid: SparseTensor, notes: list[str], world: World) -> Predictor:
    """The joint model, or the additive biases where they validate better."""
    if not len(valid):
        return predictor
    asked, truth = valid.indices[:JUDGED], valid.values[:JUDGED]
    joint, bias = world.decide(
        lambda: [measure(one.predict(asked), truth).rmse for one in (predictor, predictor.fallback)]
    )
    if joint <= bias:
        return predictor
    notes.append(
        f"the additive-bias predictor is returned: its RMSE on the validation entries is {bias:.4g}, that of the joint "
        f"model {joint:.4g}; --set fall_back=false returns the joint model all the same"
    )
    return replace(predictor, returned="bias")


def schedule_of(result: Fit) -> Recipe:
    """The recipe that trains exactly as long as the best state of a fit took, without validation.

    For training once more on all entries, where nothing is left to tell when to stop.
    """
    rows = [row for row in result.history if row.attempt == result.attempt]
    steps = [row for row in rows if row.best] or rows  # refinement goes on from the best state of alternation
    last = max((row.epoch for row in steps), default=0)
    # Θ_N alone was trained until it validated best; Θ_L is solved in a fixed number of sweeps
    alone = [row for row in rows if row.phase == "warm start: nonlinear"]
    lowest = min(alone, key=lambda row: row.train_loss if row.valid_loss is None else row.valid_loss, default=None)
    warm = 0 if lowest is None or result.first != "nonlinear" else alone.index(lowest) + 1
    return replace(
        result.recipe,
        ridges=result.recipe.ridges if result.ridge is None else (result.ridge,),
        first=result.first or result.recipe.first,  # type: ignore[arg-type]
        warm_epochs=warm or result.recipe.warm_epochs,
        follow=0.0,
        fall_back=False,
        rounds=max((row.round for row in steps), default=0),
        turns=_turns(steps, result.first),
        refine_epochs=sum(row.phase == "refine" and row.epoch <= last for row in rows),
        tolerance=0.0,
        patience=0,
    )


def _turns(steps: list[Epoch], first: str | None) -> int:
    """Turns up to the best state of alternation."""
    last = max((row for row in steps if row.round), key=lambda row: row.epoch, default=None)
    if last is None:
        return 0
    begins = "nonlinear" if first == "linear" else "linear"
    return 2 * last.round - (last.phase == f"alternate: {begins}")


def pick_device(device: str) -> torch.device:
    """The device by name; ``auto`` is a GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from None
    return place


def check_fit(model: JointModel, split: Split, recipe: Recipe) -> None:
    """Refuse a model, entries and a recipe that do not go together."""
    if model.shape != split.train.shape:
        raise ConfigError(f"the model has shape {model.shape}, the tensor {split.train.shape}")
    lowest = min(float(part.values.min(initial=0.0)) for part in (split.train, split.valid))
    largest = max(float(np.abs(part.values).max(initial=0.0)) for part in (split.train, split.valid))
    if largest > LARGEST:
        raise DataError(f"there is a value of size {largest:g}; divide all values so that none is beyond {LARGEST:g}")
    if make_loss(recipe.loss).nonnegative and lowest < 0:
        raise DataError(f"the {recipe.loss} loss needs values of at least 0; there is a value of {lowest:g}")


def _attempt(trainer: Trainer) -> Attempt:
    trainer.start()
    start = trainer.state()
    outcome: Outcome
    try:
        train(trainer)
        outcome = "converged" if trainer.converged else "budget"
    except DivergedError:
        outcome = "diverged"
    except DeadError:
        outcome = "dead"
    except (BudgetError, HopelessError, StoppedError):
        outcome = "budget"
    if trainer.best_state is not None or outcome == "diverged":
        trainer.put(trainer.best_state or start)
    rfe, constant, dead = trainer.journal.decide(lambda: _judge(trainer))
    if outcome != "diverged" and constant:
        outcome = "dead"
    state = trainer.state()
    return Attempt(
        trainer.attempt,
        outcome,
        rfe,
        dead,
        state,
        trainer.history,
        trainer.ridge,
        trainer.first,
        tuple(trainer.collapsed),
    )


def _judge(trainer: Trainer) -> tuple[float, bool, bool]:
    """RFE of the state as it is, whether all predictions are the same, and whether all of f are."""
    entries, model = trainer.valid if len(trainer.valid) else trainer.train, trainer.model
    predicted = evaluate_in_batches(model, entries.indices, EVALUATION_BATCH)
    f = model.nonlinear
    dead = f is not None and _constant(evaluate_in_batches(f, entries.indices, EVALUATION_BATCH), entries.values)
    rfe = measure(predicted.cpu(), entries.values.cpu()).rfe
    return rfe if math.isfinite(rfe) else math.inf, _constant(predicted, entries.values), dead


def _constant(predicted: Tensor, values: Tensor) -> bool:
    """Whether predictions do not vary, though the values do."""
    if len(values) < 2 or float(values.std()) == 0:
        return False
    return float(predicted.std()) <= CONSTANT * float(values.std())


@contextmanager
def _memory_named(device: torch.device) -> Iterator[None]:
    """An error of ours where a device has too little memory, whatever was done about it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryFullError(
            f"the memory of {device} is full, and smaller steps did not help: take --device cpu, fewer components, or "
            "a smaller tensor"
        ) from error


@contextmanager
def _seeded(seed: int, attempt: int, device: torch.device) -> Iterator[None]:
    """Torch's random state set from a seed, and put back afterwards."""
    state: Any = np.random.SeedSequence([seed, attempt]).generate_state(1, np.uint64)[0]
    gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        torch.default_generator.manual_seed(int(state))
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(int(state))
        yield
