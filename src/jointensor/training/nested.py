"""Nested training: a joint model that validates no worse than either of its halves alone.

g alone  ─▶  f alone  ─▶  the other half, on residuals  ─▶  refine (both)  ─▶  f alone again

The joint model contains both halves alone: g, where the scale of f is zero, and f, where g is a constant. Every state
that is validated on the way may be the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from jointensor.models.joint import NonlinearHalf, evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.data_parallel import take_first
from jointensor.solvers.failures import DeadError, DivergedError, FailureDetector, HopelessError
from jointensor.solvers.sgd import Exact, FrozenHalf
from jointensor.training.checkpoint import stored
from jointensor.training.descent import Descent, descend, halves_of
from jointensor.training.exact import solve_again, solve_turn
from jointensor.training.init import SPREAD, Levels, init_linear, init_nonlinear, score_of_mean, start_nonlinear
from jointensor.training.init_components import init_components
from jointensor.training.solve import solve
from jointensor.training.state import Alone, TrainState
from jointensor.training.trainer import Trainer

MIN_LEAD = 0.005
"""Share by which f alone must validate better than g alone, after its first cycle, to be the half to start from."""

MAX_CATCH_UP = 0.2
"""Share by which further cycles of f alone may lower its error. They are made where that would be below the error of
the joint model."""


FAILURES = (DeadError, DivergedError, HopelessError)
"""Failures of one half, which leave the fit to the other one."""


def half_is_best(state: TrainState) -> bool:
    """Whether a half that was trained alone is the best state so far."""
    return any(one.ended and one.figure <= state.best_figure for one in state.alone.values())


@stored
@dataclass
class LinearAlone:
    """Variables of :func:`solve_alone`."""

    begun: bool = False


def solve_alone(trainer: Trainer, exact: Exact | None) -> None:
    """g alone, to its end."""
    state, (g, f) = trainer.state, _both(trainer)
    f.set_scale(0.0)
    frozen = FrozenHalf()
    with trainer.enter(LinearAlone) as at:
        if not at.begun:
            moments = trainer.train.moments()
            trainer.generators = trainer.new_generators()  # g is drawn as it would be without f
            level = score_of_mean(trainer.model, moments)
            with trainer.generators.as_global():
                init_linear(g, level, moments[1], trainer.start_kind)
            take_first(trainer.model, trainer.processes)
            if exact is None:
                init_components(trainer, levels=Levels(level, 0.0))  # all of the mean is in g
            else:
                exact.als.refresh()
        at.begun = True
        try:
            if exact is not None:
                solve(trainer, exact, frozen)
            else:
                with trainer.enter(Descent) as descent:
                    descend(trainer, descent, g, frozen, [halves_of(trainer)["linear"]], "linear alone")
        except FAILURES:  # then f carries the fit
            state.failures = FailureDetector(state.failures.epochs)
            state.variables = {LinearAlone.__name__: at}  # those of the phases inside are not left otherwise
    state.alone["linear"] = Alone(state.best_figure, state.best_state)


def descend_alone(trainer: Trainer, _: Exact | None) -> None:
    """f alone, g a constant; to its end where it is the better half after its first cycle."""
    state, (g, f) = trainer.state, _both(trainer)
    with trainer.enter(Descent) as at:
        if not at.begun and at.best is None:
            trainer.put(state.start)
            trainer.generators = trainer.new_generators()  # f is drawn as it would be without g
            with trainer.generators.as_global():
                moments = score_of_mean(trainer.model, trainer.train.moments()), trainer.train.moments()[1]
                init_nonlinear(f, moments, trainer.start_kind)
            take_first(trainer.model, trainer.processes)
            g.become(state.levels.linear)  # without a mean it can be zero only, as for a model without it
        linear = state.alone["linear"].figure
        _descend_nonlinear(trainer, at, cycles=1)
        better = at.figure < (1 - MIN_LEAD) * linear
        if better:
            _descend_nonlinear(trainer, at)
        state.alone["nonlinear"] = Alone(at.figure, at.best, at.past, ended=at.ended or better)
    state.first = "nonlinear" if better else "linear"


def catch_up(trainer: Trainer, _: Exact | None) -> None:
    """Train f alone until it stops, if its error could fall below that of the joint model."""
    state = trainer.state
    alone = state.alone["nonlinear"]
    with trainer.enter(Descent) as at:
        if not at.begun and at.best is None:
            if alone.ended or alone.state is None or (1 - MAX_CATCH_UP) * alone.figure >= state.best_figure:
                return
            at.figure, at.best, at.past = alone.figure, alone.state, alone.epochs
            trainer.put(alone.state)  # with the constant g beside which f was trained
            at.length = 2 * trainer.recipe.cycle
        _descend_nonlinear(trainer, at)


def _descend_nonlinear(trainer: Trainer, at: Descent, cycles: int = 0) -> None:
    """Descent of f alone; where it fails, g carries the fit."""
    (g, _), half, state = _both(trainer), halves_of(trainer)["nonlinear"], trainer.state
    try:
        descend(trainer, at, half.module, trainer.freeze(g), [half], "nonlinear alone", cycles=cycles)
    except FAILURES:
        at.ended = True
        state.failures = FailureDetector(state.failures.epochs)


@stored
@dataclass
class OtherHalf:
    """Variables of :func:`fit_other_half`."""

    begun: bool = False
    solved_again: bool = False
    turn: int = 0
    figure: float = float("inf")


def fit_other_half(trainer: Trainer, exact: Exact | None) -> None:
    """The half that is behind, fitted to the residuals of the better one."""
    state, (g, f), halves = trainer.state, _both(trainer), halves_of(trainer)
    with trainer.enter(OtherHalf) as at, trainer.enter(Descent) as descent:
        if not at.begun:
            _start_other_half(trainer, exact)
        at.begun = True
        if state.first == "linear":
            descend(trainer, descent, f, trainer.freeze(g), [halves["nonlinear"]], "alternate: nonlinear")
        elif exact is None:
            descend(trainer, descent, g, trainer.freeze(f), [halves["linear"]], "alternate: linear")
        else:
            _solve_other_half(trainer, exact, trainer.freeze(f), at)
    trainer.put_best()
    if state.first == "linear":
        shrink_nonlinear(trainer)


def _start_other_half(trainer: Trainer, exact: Exact | None) -> None:
    """The better half as it is; the other one where it begins."""
    state, (_, f) = trainer.state, _both(trainer)
    linear, nonlinear = state.alone["linear"], state.alone["nonlinear"]
    if state.first == "linear":
        trainer.put(linear.state or state.start)
        f.set_scale(1.0, state.levels.nonlinear)  # it begins with values around zero
        level = None if trainer.start_kind == "raw" else state.levels.nonlinear
        with trainer.generators.as_global():
            start_nonlinear(f, level, SPREAD * linear.figure)
        take_first(trainer.model, trainer.processes)
    else:  # g begins at one solution for other targets: components that are zero would stay zero
        trainer.put(state.single or linear.state or state.start)
        best = {name: value for name, value in (nonlinear.state or {}).items() if name.startswith("nonlinear.")}
        trainer.model.load_state_dict(best, strict=False)
    if exact is not None:
        exact.als.refresh()


def _solve_other_half(trainer: Trainer, exact: Exact, frozen: FrozenHalf, at: OtherHalf) -> None:
    """g by exact sweeps for as long as they improve it."""
    if not at.solved_again:
        solve_again(trainer, exact, frozen)
    at.solved_again = True
    while at.turn < trainer.recipe.sweeps:
        figure = solve_turn(trainer, exact, frozen, at.turn + 1)
        at.turn += 1
        if figure >= at.figure:
            break
        at.figure = figure


def shrink_nonlinear(trainer: Trainer) -> None:
    """Scale f by its least-squares factor on the validation entries, 1 at most; 0 where f does not help at all."""
    g, f = _both(trainer)
    entries, batch = trainer.valid, trainer.evaluation_batch
    if trainer.loss.name != "squared":
        return

    def factor() -> float:
        values = evaluate_in_batches(f, entries.indices, batch)  # (entries,)
        squares = float(values.square().sum())
        residuals = entries.values - evaluate_in_batches(g, entries.indices, batch)
        return min(max(float((residuals * values).sum()) / squares, 0.0), 1.0) if squares else 1.0

    f.set_scale(trainer.processes.decide(factor) * float(f.scale), float(f.offset))
    trainer.consider()


def _both(trainer: Trainer) -> tuple[Multilinear, NonlinearHalf]:
    g, f = trainer.model.multilinear, trainer.model.nonlinear
    assert g is not None  # nested training is of models with two halves
    assert f is not None
    return g, f
