"""Restarts of a fit: starts are trained to their end until one does not fail, and the best is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from jointensor.errors import MemoryFullError
from jointensor.metrics import measure
from jointensor.models.joint import evaluate_in_batches, is_out_of_memory
from jointensor.solvers.failures import CONSTANT_TOLERANCE
from jointensor.training.average import n_solutions
from jointensor.training.phases import train
from jointensor.training.state import Attempt
from jointensor.training.trainer import EVALUATION_BATCH, Trainer


def run_restarts(trainer: Trainer) -> Attempt:
    """Train from a random start, and from others while it fails; the model ends in the best state.

    A fit that is resumed continues with the start that was interrupted.
    """
    while not trainer.state.finished:
        with _memory_named(trainer.train.device):
            attempt = _run_start(trainer)
        state = trainer.state
        best = state.attempts[state.best_attempt] if state.attempts else None
        state.attempts.append(attempt)
        if best is None or (attempt.failed, attempt.rfe) < (best.failed, best.rfe):
            state.best_attempt, state.attempt_state, best = attempt.number, trainer.snapshot(), attempt
        last = len(state.attempts) > trainer.recipe.restarts
        if not best.failed or last or trainer.stopped or trainer.out_of_time():
            state.finished = True
        else:
            trainer.state = state.next_start()
    state = trainer.state
    if not trainer.stopped:
        state.variables, state.start, state.best_state, state.alone = (
            {},
            {},
            None,
            {},
        )  # a fit that is finished needs none of them
        trainer.write()
    trainer.put(state.attempt_state)
    return state.attempts[state.best_attempt]


def _run_start(trainer: Trainer) -> Attempt:
    if not trainer.state.start:
        trainer.start()
    state, outcome = trainer.state, train(trainer)
    if state.best_state is not None or outcome == "diverged":
        trainer.put(state.best_state or state.start)
    rfe, constant, dead = trainer.processes.decide(lambda: _judge(trainer))
    if outcome != "diverged" and constant:
        outcome = "dead"
    seconds = sum(row.seconds for row in state.history)
    return Attempt(
        number=len(state.attempts),
        outcome=outcome,
        rfe=rfe,
        nonlinear_dead=dead,
        epochs=len(state.history),
        seconds=seconds,
        ridge=state.ridge,
        links=state.links,
        solutions=n_solutions(trainer.model, state.single),
        first=state.first,
        collapsed=tuple(state.collapsed),
    )


def _judge(trainer: Trainer) -> tuple[float, bool, bool]:
    """RFE of the present state, whether all predictions are the same, and whether all of f are."""
    entries, model = trainer.valid if len(trainer.valid) else trainer.train.sample(), trainer.model
    predicted = evaluate_in_batches(model, entries.indices, EVALUATION_BATCH)
    f = model.nonlinear
    dead = f is not None and _constant(evaluate_in_batches(f, entries.indices, EVALUATION_BATCH), entries.values)
    rfe = measure(predicted.cpu(), entries.values.cpu()).rfe
    return rfe if math.isfinite(rfe) else math.inf, _constant(predicted, entries.values), dead


def _constant(predicted: Tensor, values: Tensor) -> bool:
    """Whether predictions do not vary, though the values do."""
    if len(values) < 2 or float(values.std()) == 0:
        return False
    return float(predicted.std()) <= CONSTANT_TOLERANCE * float(values.std())


@contextmanager
def _memory_named(device: torch.device) -> Iterator[None]:
    """An error that says what to do where the memory of a device is too small even for the smallest steps."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryFullError(
            f"the memory of {device} is full, and smaller steps did not help: take --device cpu, fewer components, or "
            "a smaller tensor"
        ) from error
