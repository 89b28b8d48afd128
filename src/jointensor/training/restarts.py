"""Starts of a fit: each trained to its end, and the best one kept. An outcome is data, not a crash."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from jointensor.errors import MemoryFullError
from jointensor.metrics import measure
from jointensor.models.joint import JointModel, evaluate_in_batches, is_out_of_memory
from jointensor.solvers.failures import CONSTANT, BudgetError, DeadError, DivergedError, HopelessError
from jointensor.training.history import Epoch
from jointensor.training.journal import StoppedError
from jointensor.training.phases import train
from jointensor.training.trainer import EVALUATION_BATCH, Trainer

Outcome = Literal["converged", "budget", "diverged", "dead"]
"""``converged``: the stopping rule fired. ``budget``: epochs or seconds ran out, or a start was given up.
``diverged``: a loss was not finite. ``dead``: every prediction is the same number."""


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
class Course:
    """All starts of a fit."""

    best: Attempt
    history: list[Epoch]
    """All epochs of all attempts."""
    attempts: list[dict[str, Any]]
    """How every start ended, see :meth:`Attempt.to_dict`."""
    notes: list[str]
    """What is worth knowing of the one that was kept."""


def run_attempts(
    model: JointModel, make: Callable[[int], Trainer], restarts: int, *, seed: int, place: torch.device
) -> Course:
    """Train from a start, and from others while it fails; the model is left in the best state.

    ``make`` gives the trainer of an attempt; it is called with torch's state seeded.
    """
    best: Attempt | None = None
    history: list[Epoch] = []
    attempts: list[dict[str, Any]] = []
    given = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for number in range(1 + restarts):
        model.load_state_dict(given)  # parameters that nothing resets must not carry over from a failed attempt
        with _seeded(seed, number, place), _memory_named(place):
            trainer = make(number)
            attempt = _attempt(trainer)
        history += attempt.history
        attempts.append(attempt.to_dict())
        if best is None or (attempt.failed, attempt.rfe) < (best.failed, best.rfe):
            best = attempt
        if not best.failed or trainer.journal.stopped or trainer.out_of_time():
            break
    assert best is not None  # the loop runs at least once
    with _seeded(seed, 0, place):
        trainer.journal.pause(len(history), force=True)
    model.load_state_dict(best.state)
    collapsed = [f"block '{name}' ended at zero: the ridge that validated best is large" for name in best.collapsed]
    return Course(best, history, attempts, trainer.notes + collapsed)


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
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
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
