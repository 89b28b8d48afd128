"""The algorithm of the paper, one function per phase.

warm start (one half)  ─▶  alternate (f | g frozen, g | f frozen)  ─▶  refine (both)

Every phase keeps its local variables in a dataclass, see :mod:`jointensor.training.state`: it can be entered again
where a checkpoint was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from jointensor.solvers.failures import BudgetError, DeadError, DivergedError, HopelessError, StoppedError
from jointensor.solvers.sgd import Exact, FrozenHalf, Sgd
from jointensor.solvers.stopping import Either, Patience
from jointensor.training.checkpoint import stored
from jointensor.training.descent import Descent, descend, halves_of, joint_halves
from jointensor.training.exact import make_exact, solve_again, solve_turn, solve_warm_start
from jointensor.training.gibbs_driver import sample
from jointensor.training.init_components import init_components
from jointensor.training.nested import catch_up, descend_alone, fit_other_half, half_is_best, solve_alone
from jointensor.training.solve import solve
from jointensor.training.state import Outcome, Snapshot
from jointensor.training.trainer import STEPS_PER_EPOCH, Trainer

MIN_NONLINEAR_GAIN = 0.005
"""Share by which Θ_N alone must validate better than Θ_L alone to be estimated first."""

NONLINEAR_PATIENCE = 2
"""Epochs without a new best after which Θ_N alone is not trained further."""

Phase = Callable[[Trainer, Exact | None], None]


def train(trainer: Trainer) -> Outcome:
    """All phases of the recipe, from the one that the state is in; returns how they ended."""
    try:
        exact = make_exact(trainer)
        phases = phases_of(trainer, exact)
        while trainer.state.phase < len(phases):
            phases[trainer.state.phase](trainer, exact)
            trainer.state.phase += 1
    except DivergedError:
        return "diverged"
    except DeadError:
        return "dead"
    except (BudgetError, HopelessError, StoppedError):
        return "budget"
    return "converged" if trainer.state.converged else "budget"


def phases_of(trainer: Trainer, exact: Exact | None) -> list[Phase]:
    """Phases of a recipe and a model; a model with one half, or naive training, has no alternation."""
    model, recipe = trainer.model, trainer.recipe
    if (recipe.nested or recipe.max_rank or recipe.solutions > 1) and not len(trainer.valid):
        trainer.note("nested, max_rank and solutions are not used: there are no validation entries to choose by")
    if recipe.max_rank and (exact is None or recipe.linear_solver == "gibbs" or not model.linear_factors):
        trainer.note("max_rank is not used: R grows where a CP block is solved exactly")
    draws = [draw] if recipe.linear_solver == "gibbs" and exact is not None else []
    guesses: list[Phase] = [start_components] if recipe.guesses == "always" and exact is None else []
    if recipe.training == "naive":
        return [*guesses, refine]
    if model.multilinear is not None and model.nonlinear is not None:
        if recipe.nested and len(trainer.valid):  # without validation entries there is nothing to compare
            return [solve_alone, descend_alone, fit_other_half, refine, catch_up, *draws]
        return [*guesses, warm_start, alternate, refine, *draws]
    if exact is None:
        return [start_components, refine]
    return [draw_alone] if draws else [solve]


def start_components(trainer: Trainer, _: Exact | None = None) -> None:
    """Initial components of a multilinear model that is descended."""
    init_components(trainer)


@stored
@dataclass
class DrawingAlone:
    """Variables of :func:`draw_alone`."""

    start: Snapshot | None = None
    solved: float | None = None
    """Figure of the least-squares solution."""
    solution: Snapshot | None = None
    figure: float | None = None
    """Figure of the draws from the random start."""
    first: Snapshot | None = None
    """Their mean."""


def draw_alone(trainer: Trainer, exact: Exact | None) -> None:
    """A model that is multilinear only, drawn from its random start.

    Components may end as spikes where no entry is. Where the draws are worse than the least-squares solution, they are
    drawn once more from there, and the better ones are kept.
    """
    g, state = trainer.model.multilinear, trainer.state
    assert g is not None
    assert exact is not None  # there is something to draw
    if g.cp is None:
        draw(trainer)
        return
    with trainer.enter(DrawingAlone) as at:
        at.start = at.start or trainer.snapshot()
        if at.solution is None:
            at.solved = solve_warm_start(trainer, exact, FrozenHalf())
            g.forget_tables()  # they are overfitted to the entries that are to be drawn for
            at.solution = trainer.snapshot()
            trainer.put(at.start)
        if at.figure is None:
            draw(trainer)
            at.first, at.figure = state.best_state, trainer.figure_of(trainer.model.score)
            if at.figure <= (at.solved or 0.0) or at.first is None:
                return
            state.best_state = at.solution
        draw(trainer)
        if trainer.figure_of(trainer.model.score) > at.figure:
            state.best_state = at.first
            trainer.put_best()


@stored
@dataclass
class Drawing:
    """Variables of :func:`draw`."""

    begun: bool = False
    before: float | None = None
    """Figure of the mean of the draws."""
    mean: Snapshot | None = None


def draw(trainer: Trainer, _: Exact | None = None) -> None:
    """Draw Θ_L from its posterior, the other half as it is; then train that half once more for the mean of the draws.

    The trained half is kept where it validates better.
    """
    model, state = trainer.model, trainer.state
    with trainer.enter(Drawing) as at:
        if not at.begun:
            trainer.put_best()
        at.begun = True
        if at.mean is None:
            sample(trainer, FrozenHalf() if model.nonlinear is None else trainer.freeze(model.nonlinear))
            if model.nonlinear is None or model.multilinear is None:
                return
            at.before, at.mean = trainer.figure_of(model.score), trainer.snapshot()
        half, frozen = halves_of(trainer)["nonlinear"], trainer.freeze(model.multilinear)  # type: ignore[arg-type]
        rate = trainer.recipe.lr_refine or half.lr
        sgd = trainer.sgd("draw", half._replace(lr=rate), falls_within=1)
        figure = trainer.epoch(half.module, frozen, sgd, "draw: nonlinear", keep=False)
        sgd.settle()
        better = len(trainer.valid) and figure < (math.inf if at.before is None else at.before)
        state.best_state = trainer.snapshot() if better else at.mean
        trainer.put_best()


@stored
@dataclass
class WarmStart:
    """Variables of :func:`warm_start`."""

    start: Snapshot | None = None
    linear: float = math.inf
    """Figure of Θ_L alone."""
    solved: Snapshot | None = None


def warm_start(trainer: Trainer, exact: Exact | None = None) -> None:
    """Estimate one half as if the other did not exist: Θ_L first, as the paper recommends.

    "We first ignore the nonlinear parameters and initialize Θ_L by approximately solving … with a
    fixed number of iterations." All that counts of the other half is the constant it starts at. The
    states are not candidates for the best one, since the other half is still random.
    """
    recipe, state = trainer.recipe, trainer.state
    if recipe.first == "auto":
        state.first = _better_first(trainer, exact)
        return
    state.first = recipe.first
    _estimate(trainer, exact, state.first)
    if state.first == "nonlinear" and not recipe.rounds and trainer.model.multilinear is not None:
        trainer.model.multilinear.become(state.levels.linear)  # no turn of it will follow


def _better_first(trainer: Trainer, exact: Exact | None) -> str:
    """Estimate each half alone and keep the one that validates better; Θ_L, unless Θ_N is clearly better."""
    with trainer.enter(WarmStart) as at:
        at.start = at.start or trainer.snapshot()
        if at.solved is None:
            at.linear = _estimate(trainer, exact, "linear")
            at.solved = trainer.snapshot()
            trainer.put(at.start)
        better = _best_epoch(trainer) < (1 - MIN_NONLINEAR_GAIN) * at.linear
        if better:
            found = {name: value for name, value in trainer.snapshot().items() if name.startswith("nonlinear.")}
            at.solved = {**at.solved, **found}
        trainer.put(at.solved)
    if exact is not None:
        exact.als.refresh()
    return "nonlinear" if better else "linear"


@stored
@dataclass
class Estimation:
    """Variables of :func:`_estimate`."""

    initialised: bool = False
    epoch: int = 0
    figure: float = math.inf


def _estimate(trainer: Trainer, exact: Exact | None, name: str) -> float:
    """Train one half alone, the other a constant; returns the figure it ends with."""
    half, levels = halves_of(trainer)[name], trainer.state.levels
    level = levels.nonlinear if name == "linear" else levels.linear
    frozen = FrozenHalf(level, level)
    if name == "linear" and exact is not None:
        return solve_warm_start(trainer, exact, frozen)
    with trainer.enter(Estimation) as at:
        if name == "linear" and not at.initialised and trainer.recipe.guesses != "always":
            init_components(trainer)
        at.initialised = True
        sgd = trainer.sgd("warm start", half)
        while at.epoch < trainer.recipe.warm_epochs:
            at.figure = trainer.epoch(half.module, frozen, sgd, "warm start", keep=False)
            at.epoch += 1
        sgd.settle()
    return at.figure


@stored
@dataclass
class NonlinearAlone:
    """Variables of :func:`_best_epoch`."""

    constant: bool = False
    epoch: int = 0
    rule: Patience = field(default_factory=lambda: Patience(NONLINEAR_PATIENCE))
    best: float = math.inf
    state: Snapshot | None = None


def _best_epoch(trainer: Trainer) -> float:
    """Train Θ_N alone for as long as that lowers the validation error; ends at its lowest.

    Θ_L is set to the constant it stands for, so that the result is a model like any other and may be kept.
    """
    model, level = trainer.model, trainer.state.levels.linear
    assert model.multilinear is not None  # there are two halves
    half, frozen = halves_of(trainer)["nonlinear"], FrozenHalf(level, level)
    # epochs of few steps count for less; none has less than one
    times = max(1, STEPS_PER_EPOCH * min(trainer.batch_size, trainer.train.total) // trainer.train.total)
    with trainer.enter(NonlinearAlone) as at:
        if at.state is None:
            at.constant = model.multilinear.become(level)
            at.state = trainer.snapshot()
        sgd = trainer.sgd("nonlinear alone", half)
        while at.epoch < times * trainer.recipe.warm_epochs:
            try:
                figure = trainer.epoch(half.module, frozen, sgd, "warm start: nonlinear", keep=at.constant)
            except (DeadError, HopelessError):  # then Θ_L carries the fit
                break
            if figure < at.best:
                at.best, at.state = figure, trainer.validated_snapshot(sgd)
            at.epoch += 1
            if at.rule.report(figure):
                break
        trainer.put(at.state)
    return at.best


@stored
@dataclass
class Alternation:
    """Variables of :func:`alternate`."""

    round: int = 1
    turn: int = 0
    """Turn of the round, 0 or 1."""
    solved_again: bool = False
    """Whether Θ_L was estimated for the first time beside Θ_N."""
    epoch: int = 0
    figure: float = math.inf
    rule: Either | None = None


def alternate(trainer: Trainer, exact: Exact | None = None) -> None:
    """Algorithm 1: train one half with the other frozen, then the other way round, and so on.

    After a warm start of Θ_L each round updates Θ_N by eq. (8), then Θ_L by eq. (9). The frozen half
    is a constant during a turn and is evaluated once.
    """
    recipe, halves = trainer.recipe, halves_of(trainer)
    turns = ("nonlinear", "linear") if (trainer.state.first or recipe.first) == "linear" else ("linear", "nonlinear")
    with trainer.enter(Alternation) as at:
        at.rule = at.rule or trainer.stopping_rule()
        solvers = {name: trainer.sgd(name, halves[name]) for name in turns if name == "nonlinear" or exact is None}
        while at.round <= recipe.rounds:
            while at.turn < len(turns):
                if recipe.turns and 2 * (at.round - 1) + at.turn >= recipe.turns:
                    return
                name, frozen = turns[at.turn], trainer.freeze(halves[turns[1 - at.turn]].module)
                if name in solvers:
                    _descend_turn(trainer, halves[name].module, frozen, solvers[name], at, name)
                elif exact is not None:
                    _solve_turn(trainer, exact, frozen, at)
                at.turn, at.epoch = at.turn + 1, 0
            if at.rule.report(at.figure):
                trainer.state.converged = True
                break
            at.round, at.turn = at.round + 1, 0


def _descend_turn(
    trainer: Trainer, module: nn.Module, frozen: FrozenHalf, sgd: Sgd, at: Alternation, name: str
) -> None:
    while at.epoch < trainer.recipe.epochs_per_turn:
        at.figure = trainer.epoch(module, frozen, sgd, f"alternate: {name}", at.round)
        at.epoch += 1
    sgd.settle()


def _solve_turn(trainer: Trainer, exact: Exact, frozen: FrozenHalf, at: Alternation) -> None:
    if at.round == 1 and trainer.state.first == "nonlinear" and not at.solved_again:
        again = solve_again if trainer.recipe.first == "auto" else solve_warm_start
        again(trainer, exact, frozen)
    at.solved_again = True
    while at.epoch < trainer.recipe.epochs_per_turn:
        at.figure = solve_turn(trainer, exact, frozen, at.round)
        at.epoch += 1


def refine(trainer: Trainer, _: Exact | None = None) -> None:
    """Train all parameters together until validation stops changing: eq. (6) by Adam or SGD."""
    recipe, state = trainer.recipe, trainer.state
    if half_is_best(state):  # the other one is a constant, and does not help
        state.converged = True
        return
    with trainer.enter(Descent) as at:
        if not at.begun and at.best is None:
            state.converged = state.converged and not recipe.refine_epochs  # the last phase decides
            at.figure, at.best = state.best_figure, state.best_state
        descend(trainer, at, trainer.model.score, FrozenHalf(), joint_halves(trainer), "refine")
        state.converged = state.converged or at.ended
