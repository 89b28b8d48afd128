"""One epoch, validation, the best state so far and checkpoints: what all phases use."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from jointensor.data.store import Entries, EntryStore, Half, ShardedEntries
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import RunError
from jointensor.kernels import Engine, pick_engine
from jointensor.models.joint import (
    LINKS,
    JointModel,
    cp_rank,
    evaluate_in_batches,
    free_gpu_memory,
    is_out_of_memory,
)
from jointensor.models.multilinear import Multilinear
from jointensor.random_state import Generators, may_draw
from jointensor.solvers.als import MAX_CHECKPOINT_VALUES, VALUES, Als
from jointensor.solvers.data_parallel import keep_together, take_first
from jointensor.solvers.failures import BudgetError, DivergedError, FailureDetector, StoppedError, Validation
from jointensor.solvers.losses import make_loss
from jointensor.solvers.sgd import (
    Average,
    Exact,
    FrozenHalf,
    Position,
    Resumable,
    Sgd,
    Solver,
    sweep_in_memory,
    sweep_on_disk,
)
from jointensor.solvers.stopping import Either, Patience, RelativeChange
from jointensor.solvers.systems import SystemsInMemory
from jointensor.solvers.systems_on_disk import SystemsOnDisk
from jointensor.training.checkpoint import Slot
from jointensor.training.history import Epoch, OnEpoch
from jointensor.training.init import initialise
from jointensor.training.recipe import Recipe
from jointensor.training.state import MISFIT, Snapshot, TrainState

EVALUATION_BATCH = 65536
"""Entries per forward pass where no gradients are needed."""

STEPS_PER_EPOCH = 256
"""About how many steps an epoch has where the recipe does not give a batch size."""

MIN_BATCH, MAX_BATCH = 1024, 131072
"""Bounds of the batch size that this leads to."""


@dataclass(frozen=True)
class MemoryLimits:
    """Memory that training may take where entries are on disk."""

    systems: int = 1 << 30
    """Bytes for the systems of an exact solve."""
    batch: int = sys.maxsize
    """Most entries of a step, or of an evaluation."""


DEFAULT_LIMITS = MemoryLimits()
"""Limits of a fit that was given none."""


V = TypeVar("V")
S = TypeVar("S", bound=Resumable)


class Trainer:
    """Runs epochs for the phases; see :mod:`jointensor.training.state` for how a fit is resumed."""

    def __init__(  # noqa: PLR0913 - everything that decides a fit
        self,
        model: JointModel,
        train: EntryStore,
        valid: Entries,
        recipe: Recipe,
        *,
        seed: int = 0,
        deadline: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        on_epoch: OnEpoch | None = None,
        on_note: Callable[[str], None] | None = None,
        engine: Engine | None = None,
        processes: ProcessGroup = SINGLE_PROCESS,
        checkpoint: Slot | None = None,
        stopping: Callable[[], bool] = lambda: False,
        limits: MemoryLimits = DEFAULT_LIMITS,
    ) -> None:
        self.model, self.train, self.valid, self.recipe = model, train, valid, recipe
        self.seed, self.deadline, self.clock = seed, deadline, clock
        self.on_epoch, self.on_note, self.stopping, self.checkpoint = on_epoch, on_note, stopping, checkpoint
        self.processes = processes
        self.engine = engine or pick_engine("reference", "cpu")
        self.limits = limits
        self.loss = make_loss(recipe.loss, huber_delta=recipe.huber_delta)
        self.may_draw = may_draw(model)
        self.state = TrainState(shared=processes.shared, batch_limit=limits.batch)
        self.generators = self.new_generators()
        self.solvers: dict[str, Resumable] = {}
        """Solvers whose state a checkpoint holds."""
        self.first_rank = cp_rank(model)
        """R that every start begins with."""
        self.stopped = False
        """Whether someone asked to stop, and training did."""

    # --- starts and checkpoints ---

    def start(self) -> None:
        """Set the model to a new random start."""
        self.generators, self.solvers = self.new_generators(), {}
        state, number = self.state, len(self.state.attempts)
        state.failures = FailureDetector(self.recipe.failure_epochs if number < self.recipe.restarts else 0)
        if self.first_rank:
            self.model.resize_cp(self.first_rank)
        given = self.snapshot() if not number else {}
        self.model.load_state_dict(state.untouched, strict=False)
        self.model.eval()
        self.model.link = self.loss.link
        with self.generators.as_global():
            state.levels = initialise(self.model, self.train.moments(), start=self.start_kind)
        take_first(self.model, self.processes)
        state.start = self.snapshot()
        if not number:
            state.untouched = {name: value for name, value in given.items() if torch.equal(value, state.start[name])}

    @property
    def start_kind(self) -> str:
        """How parameters are drawn, see :func:`~jointensor.training.init.initialise`."""
        return "exact" if self.recipe.solves and self.recipe.start == "data" else self.recipe.start

    def new_generators(self) -> Generators:
        """Random numbers of a start, from its beginning."""
        return Generators(self.train.device, self.seed, len(self.state.attempts))

    def resume(self, state: TrainState) -> None:
        """Continue from a checkpoint."""
        self.state = state
        with _misfit_named():
            self.generators = self.new_generators()
            self.model.link = self.loss.link
            if state.finished:
                return
            self.generators.set_state(state.random)
            self.model.take(state.model)
            self.model.eval()

    def pause(self, position: Position | None = None) -> None:
        """A point where training may be interrupted: writes a checkpoint if one is due, and stops if asked to."""
        if self.stopped:
            return
        slot = self.checkpoint
        due, stop = self.processes.decide(lambda: [slot is not None and slot.due, self.stopping()])
        if due or stop:
            self.write(position)
        if stop:
            self.stopped = True
            raise StoppedError

    def write(self, position: Position | None = None) -> None:
        """Write a checkpoint; a disk that is full must not cost the fit, since the checkpoint before is still there."""
        if self.checkpoint is None:
            return
        state = self.state
        state.model = {} if state.finished else dict(self.model.state_dict())
        state.random, state.position = self.generators.state(), position
        state.solvers = {name: solver.resumable() for name, solver in self.solvers.items()}
        try:
            self.checkpoint.write(state, skip=None if self._stores_values else VALUES)
        except RunError as error:
            if self.on_note is not None:
                self.on_note(f"no checkpoint was written, training continues: {error}")
        state.model, state.solvers, state.position = {}, {}, None

    @property
    def _stores_values(self) -> bool:
        """Whether checkpoints hold the blocks' values of training entries; not of very many, or of a share of them."""
        g = self.model.multilinear
        return g is None or (len(self.train) * len(g.blocks) <= MAX_CHECKPOINT_VALUES and not self.processes.shared)

    @contextmanager
    def enter(self, variables: type[V]) -> Iterator[V]:
        """Local variables of a phase: those of the checkpoint where it was interrupted, otherwise new ones.

        They, and the solvers made meanwhile, are part of checkpoints until the phase is left.
        """
        name, before = variables.__name__, set(self.solvers)
        yield self.state.variables.setdefault(name, variables())
        del self.state.variables[name]
        self.solvers = {name: solver for name, solver in self.solvers.items() if name in before}

    def keep(self, name: str, solver: S) -> S:
        """Make a solver part of checkpoints under a name; where a fit is resumed, it continues from its state."""
        found = self.state.solvers.pop(name, None)
        if found is not None:
            with _misfit_named():
                solver.resume(found)
        self.solvers[name] = solver
        return solver

    def out_of_time(self) -> bool:
        """Whether the budget is spent."""
        return self.processes.decide(lambda: self.clock() > self.deadline)

    def note(self, text: str) -> None:
        """Keep a line for the result, once."""
        if text not in self.state.notes:
            self.state.notes.append(text)

    # --- states of the model ---

    def snapshot(self) -> Snapshot:
        """A copy of all parameters."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def validated_snapshot(self, solver: Solver) -> Snapshot:
        """A copy of the parameters that were validated: the running means, where the solver takes them."""
        if solver.average is None:
            return self.snapshot()
        solver.average.swap()
        state = self.snapshot()
        solver.average.swap()
        return state

    def put(self, state: Snapshot) -> None:
        """Set all parameters to a copy."""
        self.model.take(state)

    def put_best(self) -> None:
        """Set all parameters to the best state so far, if there is one."""
        if self.state.best_state is not None:
            self.put(self.state.best_state)

    def consider(self) -> None:
        """Keep the present state where it validates better than the best one so far."""
        figure = self.figure_of(self.model.score)
        if figure < self.state.best_figure:
            self.state.best_figure, self.state.best_state = figure, self.snapshot()

    # --- sizes ---

    @property
    def max_epochs(self) -> int:
        """How many epochs the recipe allows in all."""
        recipe, model = self.recipe, self.model
        both = model.multilinear is not None and model.nonlinear is not None
        drawn = recipe.burn_in + recipe.draws * recipe.thin if recipe.linear_solver == "gibbs" else 0
        if drawn and model.nonlinear is None:
            return drawn
        if not both or recipe.training == "naive":
            return recipe.refine_epochs + (recipe.rounds if recipe.solves else 0)
        return drawn + recipe.refine_epochs + recipe.warm_epochs + 2 * recipe.rounds * recipe.epochs_per_turn

    @property
    def evaluation_batch(self) -> int:
        """Entries per forward pass where no gradients are needed."""
        return min(EVALUATION_BATCH if self.train.device.type == "cpu" else 8 * EVALUATION_BATCH, self.limits.batch)

    @property
    def batch_size(self) -> int:
        """Entries per step; fewer than the recipe says where these did not fit into memory."""
        wanted = self.recipe.batch_size
        if not wanted:
            wanted = 2 ** round(math.log2(max(self.train.total, 1) / STEPS_PER_EPOCH))
            wanted = int(min(max(wanted, MIN_BATCH), MAX_BATCH))
        return min(wanted, self.state.batch_limit)

    # --- solvers ---

    def sgd(self, name: str, *groups: tuple[nn.Module, float], average: bool = True, falls_within: int = 0) -> Sgd:
        """The recipe's optimiser over modules, each with its learning rate; part of checkpoints as ``name``."""
        recipe = self.recipe
        settings: list[dict[str, Any]] = [{"params": list(module.parameters()), "lr": lr} for module, lr in groups]
        every = [parameter for group in settings for parameter in group["params"]]
        means = Average(every, recipe.average) if recipe.average and average else None
        optimizer: Any
        runner = None
        if recipe.optimizer == "sgd":
            optimizer = torch.optim.SGD(settings, weight_decay=recipe.decay)
        elif self.engine.replays_steps and not self.processes.shared and self.train.resident is not None:
            from jointensor.solvers.cuda_graphs import DeviceAdam, GraphSteps  # noqa: PLC0415 - needs Triton

            optimizer, runner = DeviceAdam(settings, recipe.decay), GraphSteps()
        else:
            optimizer = torch.optim.AdamW(settings, weight_decay=recipe.decay, fused=True)
        made = Sgd(
            optimizer,
            self.loss,
            self.batch_size,
            means,
            falls_within=falls_within,
            pause=self.pause,
            generators=self.generators,
            processes=self.processes,
            runner=runner,
        )
        return self.keep(name, made)

    def exact(self, g: Multilinear) -> Exact:
        """The exact solver of g."""
        entries, spread = self.train.resident, self.train.moments()[1] or 1.0
        if entries is None:
            assert isinstance(self.train, ShardedEntries)  # entries that are not in memory are on disk
            systems = SystemsOnDisk(g, self.train, self.engine, self.limits.systems, self.processes)
            als = Als(g, systems, spread=spread)
            return Exact(als, partial(sweep_on_disk, als))
        als = Als(g, SystemsInMemory(g, entries.indices, self.engine, self.processes), spread=spread)
        return Exact(als, partial(sweep_in_memory, als, entries.values, self.loss, self.recipe.huber_delta))

    def stopping_rule(self) -> Either:
        """A fresh rule for one phase."""
        recipe = self.recipe
        rules: list[RelativeChange | Patience] = []
        if recipe.tolerance:
            rules.append(RelativeChange(recipe.tolerance))
        if recipe.patience:
            rules.append(Patience(recipe.patience, recipe.min_gain))
        return Either(tuple(rules))

    def freeze(self, half: Half) -> FrozenHalf:
        """Evaluate a half that stays as it is during a turn."""

        def score(indices: Tensor) -> Tensor:
            return evaluate_in_batches(half, indices, self.evaluation_batch)

        return FrozenHalf(self.train.evaluate(score, self.evaluation_batch), score(self.valid.indices))

    # --- epochs ---

    def epoch(
        self,
        half: Half,
        frozen: FrozenHalf,
        solver: Solver,
        phase: str,
        round_: int = 0,
        *,
        keep: bool = True,
    ) -> float:
        """One pass over the training entries; returns the figure that stopping looks at.

        Parameters
        ----------
        half, frozen
            What is trained, and the other half.
        solver
            Trains it.
        phase, round_
            For the history.
        keep
            Whether the state is a candidate for the best one.
        """
        state = self.state
        if self.out_of_time():
            raise BudgetError
        position, state.position = state.position, None
        if position is None:
            self.pause()
        train_loss, figures, seconds = self.processes.decide(lambda: self._train(half, frozen, solver, position))
        train_figure, validation = self.loss.figure(train_loss), None if figures is None else Validation(*figures)
        valid_figure = None if validation is None else self.loss.figure(validation.loss)
        figure = train_figure if valid_figure is None else valid_figure
        if not (math.isfinite(train_figure) and math.isfinite(figure)):
            raise DivergedError(f"the loss is {train_figure} in epoch {len(state.history) + 1}")
        # without validation entries the last state is the best known
        best = keep and (figure < state.best_figure or valid_figure is None)
        if best:
            state.best_figure, state.best_state = figure, self.validated_snapshot(solver)
        self.record(phase, train_figure, valid_figure, seconds, round_, best=best)
        if validation is not None and keep:
            state.failures.report(validation)
        return figure

    def _train(
        self, half: Half, frozen: FrozenHalf, solver: Solver, position: Position | None
    ) -> tuple[float, list[float] | None, float]:
        """Train for an epoch, or the rest of one; training loss, :class:`Validation` as a list, seconds."""
        begin = self.clock()
        self.model.train()  # dropout and the like are on in here only
        try:
            with self.generators.as_global() if self.may_draw else nullcontext():
                loss = self._within_memory(half, frozen, solver, position)
        finally:
            self.model.eval()
        keep_together(self.model, self.processes)
        if solver.average:
            solver.average.swap()
        validation = list(self._validate(half, frozen)) if len(self.valid) else None
        if solver.average:
            solver.average.swap()
        return loss, validation, self.clock() - begin

    def _within_memory(self, half: Half, frozen: FrozenHalf, solver: Solver, position: Position | None) -> float:
        """An epoch; begun again with smaller batches where a GPU's memory is too small for these."""
        while True:
            try:
                return solver.epoch(half, frozen, self.train, position)
            except RuntimeError as error:
                if not is_out_of_memory(error) or not solver.halve():
                    raise
            free_gpu_memory()
            position, self.state.batch_limit = None, getattr(solver, "batch_size", self.state.batch_limit)
            self.note(f"out of memory: steps of {self.state.batch_limit:,} entries from here on")

    def record(
        self, phase: str, train: float, valid: float | None, seconds: float, round_: int = 0, *, best: bool
    ) -> None:
        """Add a row to the history."""
        number, epoch = len(self.state.attempts), len(self.state.history) + 1
        row = Epoch(number, phase, round_, epoch, train, valid, seconds, best, self.max_epochs)
        self.state.history.append(row)
        if self.on_epoch is not None:
            self.on_epoch(row)

    # --- figures ---

    def figure_of(self, half: Half) -> float:
        """The figure that stopping looks at, for a half as it is; of training entries where there are no others."""
        return self.processes.decide(lambda: self._figure_of(half))

    def _figure_of(self, half: Half) -> float:
        entries = self.valid if len(self.valid) else self.train.sample()
        predicted = LINKS[self.model.link](evaluate_in_batches(half, entries.indices, self.evaluation_batch))
        losses = self.loss.elementwise(predicted, entries.values)
        return self.loss.figure(float(losses.mean()) if len(self.valid) else self.processes.mean(losses))

    def at_valid(self, half: Half, frozen: FrozenHalf) -> Tensor:
        """Score of the validation entries, ``(entries,)``."""
        found = evaluate_in_batches(half, self.valid.indices, self.evaluation_batch)
        return found.to(self.valid.values) + frozen.valid

    def _validate(self, half: Half, frozen: FrozenHalf) -> Validation:
        if self.processes.shared:
            return self._validate_together(half, frozen)
        predicted, values = LINKS[self.model.link](self.at_valid(half, frozen)), self.valid.values
        loss = self.loss.elementwise(predicted, values).mean()
        error = (predicted - values).norm() / values.norm().clamp_min(1e-30)
        return Validation(*torch.stack([loss, error, predicted.std(correction=0), values.std(correction=0)]).tolist())

    def _validate_together(self, half: Half, frozen: FrozenHalf) -> Validation:
        """The same, every process with its share of the validation entries."""
        mine = self.processes.share(len(self.valid))
        rest = frozen.valid[mine] if isinstance(frozen.valid, Tensor) else frozen.valid
        values = self.valid.values[mine]
        score = evaluate_in_batches(half, self.valid.indices[mine], self.evaluation_batch).to(values) + rest
        predicted = LINKS[self.model.link](score)
        numbers = [self.loss.elementwise(predicted, values), (predicted - values).square(), values.square()]
        loss, wrong, squares = self.processes.sum(*(float(one.double().sum()) for one in numbers))
        spreads = [self.processes.moments(one)[1] for one in (predicted, values)]
        return Validation(loss / len(self.valid), math.sqrt(wrong / max(squares, 1e-60)), *spreads)


@contextmanager
def _misfit_named() -> Iterator[None]:
    """An error that says what to do where a checkpoint is of another model or recipe."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{MISFIT} ({' '.join(str(error).split())})") from None
