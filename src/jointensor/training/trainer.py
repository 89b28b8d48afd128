"""What the phases share: entries on the device, one epoch, validation, the best state so far."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from jointensor.distributed.sharded_rows import share_engine
from jointensor.kernels import Engine, pick_engine
from jointensor.models.joint import LINKS, JointModel, evaluate_in_batches, is_out_of_memory
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.data_parallel import SharedDescent, keep_together, take_first
from jointensor.solvers.entries import Entries, Fixed, FixedHalf, Half
from jointensor.solvers.failures import BudgetError, Checked, DivergedError, Probation
from jointensor.solvers.losses import make_loss
from jointensor.solvers.sgd import Average, Descent, Exact, Optimizer, Solver
from jointensor.solvers.stopping import Either, Patience, RelativeChange
from jointensor.training.history import Epoch, OnEpoch
from jointensor.training.init import Levels, initialise
from jointensor.training.journal import Journal, Snapshot
from jointensor.training.recipe import Recipe

EVALUATION_BATCH = 65536
"""Entries per forward pass where no gradients are needed."""


STEPS = 256
LEAST_BATCH, MOST_BATCH = 1024, 131072
"""About how many steps an epoch has where the recipe does not say how many entries a step takes, and their bounds."""


class Trainer:
    """Runs epochs for the phases and remembers the best validated state."""

    def __init__(
        self,
        model: JointModel,
        train: Entries,
        valid: Entries,
        recipe: Recipe,
        *,
        attempt: int = 0,
        deadline: float = math.inf,
        on_epoch: OnEpoch | None = None,
        engine: Engine | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal or Journal()
        self.processes = self.journal.processes
        self.engine = share_engine(engine or pick_engine("reference", "cpu"), self.processes)
        self.sum_of_entries = int(self.processes.sum(len(train))[0])
        self.journal.model = model
        self.notes: list[str] = []
        self.ridge: float | None = None
        self.collapsed: list[str] = []
        self.first: str | None = None
        """Which half was estimated first."""
        self.model, self.train, self.valid, self.recipe = model, train, valid, recipe
        self.attempt, self.deadline, self.on_epoch = attempt, deadline, on_epoch
        self.probation = Probation(recipe.probation if attempt < recipe.restarts else 0)
        self.loss = make_loss(recipe.loss, huber_delta=recipe.huber_delta)
        self.levels = Levels(0.0, 0.0)
        self.history: list[Epoch] = []
        self.best_figure = math.inf
        self.best_state: Snapshot | None = None
        self.converged = False
        self.batch_limit = sys.maxsize
        """Most entries per step that fit into memory, as far as is known."""

    @property
    def entries(self) -> int:
        """Training entries, whoever has them."""
        return self.sum_of_entries if self.processes.shared else len(self.train)

    @property
    def most(self) -> int:
        """How many epochs the recipe allows in all."""
        recipe, model = self.recipe, self.model
        both = model.multilinear is not None and model.nonlinear is not None
        drawn = recipe.burn_in + recipe.draws * recipe.thin if recipe.linear_solver == "gibbs" else 0
        if drawn and model.nonlinear is None:
            return drawn
        if not both or recipe.training == "naive":
            return recipe.refine_epochs + (recipe.rounds if recipe.solves else 0)
        return drawn + recipe.refine_epochs + recipe.warm_epochs + 2 * recipe.rounds * recipe.epochs_per_turn

    def state(self) -> Snapshot:
        """A copy of all parameters as they are now."""
        return self.journal.snapshot(
            lambda: {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        )

    def put(self, state: dict[str, Tensor]) -> None:
        """Set all parameters to a copy of them."""
        if not self.journal.replaying:
            self.model.load_state_dict(state)

    def save(self, als: Als) -> Snapshot:
        """A copy of where exact sweeps are."""
        return self.journal.snapshot(als.save)

    def restore(self, als: Als, saved: Snapshot) -> None:
        """Let exact sweeps go on from a copy."""
        if not self.journal.replaying:
            als.restore(saved)

    def out_of_time(self) -> bool:
        """Whether the budget is spent."""
        return self.journal.decide(lambda: time.monotonic() > self.deadline)

    def validated_state(self, solver: Solver) -> Snapshot:
        """A copy of what was validated: the running means, where the solver takes them."""
        if solver.average is None:
            return self.state()
        solver.average.swap()
        state = self.state()
        solver.average.swap()
        return state

    def start(self) -> None:
        """Set the model to a new random start."""
        self.model.eval()
        self.model.link = self.loss.link
        start = "exact" if self.recipe.solves and self.recipe.start == "data" else self.recipe.start
        moments = self.processes.moments(self.train.values)
        self.levels = initialise(self.model, self.train.values, start=start, moments=moments)
        take_first(self.model, self.processes)

    def descent(self, *groups: tuple[nn.Module, float]) -> Descent:
        """The recipe's optimiser over modules, each with its learning rate."""
        return self.journal.watch(self._new_descent(*groups))

    def _new_descent(self, *groups: tuple[nn.Module, float]) -> Descent:
        recipe = self.recipe
        settings: list[dict[str, Any]] = [{"params": list(module.parameters()), "lr": lr} for module, lr in groups]
        every = [parameter for group in settings for parameter in group["params"]]
        average = Average(every, recipe.average) if recipe.average else None
        if recipe.optimizer == "sgd":
            return self._stepped(torch.optim.SGD(settings, weight_decay=recipe.decay), average)
        if self.engine.replays_steps and not self.processes.shared:
            from jointensor.solvers.cuda_graphs import DeviceAdam, GraphDescent  # noqa: PLC0415 - needs Triton

            return GraphDescent(DeviceAdam(settings, recipe.decay), self.loss, self.batch_size, average)
        return self._stepped(torch.optim.AdamW(settings, weight_decay=recipe.decay, fused=True), average)

    def _stepped(self, optimizer: Optimizer, average: Average | None) -> Descent:
        given = (optimizer, self.loss, self.batch_size, average)
        if self.processes.shared:
            return SharedDescent(*given, pause=self._pause_inside, processes=self.processes)
        return Descent(*given, pause=self._pause_inside)

    def exact(self, g: Multilinear) -> Exact:
        """The exact solver of g."""
        engine, processes = self.engine, self.processes
        spread = processes.moments(self.train.values)[1] or 1.0
        als = Als(
            g,
            self.train.indices,
            spread=spread,
            solver=engine.solve_rows,
            systems=engine.row_systems,
            processes=processes,
        )
        return Exact(als, self.loss, self.recipe.huber_delta)

    @property
    def at_once(self) -> int:
        """Entries per forward pass where no gradients are needed."""
        return EVALUATION_BATCH if self.train.values.device.type == "cpu" else 8 * EVALUATION_BATCH

    @property
    def batch_size(self) -> int:
        """Entries per step; fewer than the recipe says where these did not fit into memory."""
        wanted = self.recipe.batch_size
        if not wanted:
            wanted = 2 ** round(math.log2(max(self.entries, 1) / STEPS))
            wanted = int(min(max(wanted, LEAST_BATCH), MOST_BATCH))
        return min(wanted, self.batch_limit)

    def stopping_rule(self) -> Either:
        """A fresh rule for one phase."""
        recipe = self.recipe
        rules: list[RelativeChange | Patience] = []
        if recipe.tolerance:
            rules.append(RelativeChange(recipe.tolerance))
        if recipe.patience:
            rules.append(Patience(recipe.patience, recipe.min_gain))
        return Either(tuple(rules))

    def fix(self, half: Half) -> Fixed:
        """Evaluate a half that stays as it is during a turn."""
        parts = (self.train, self.valid)
        fixed = FixedHalf(evaluate=lambda: [evaluate_in_batches(half, part.indices, self.at_once) for part in parts])
        if not self.journal.replaying:
            fixed.resume(None)
        return self.journal.watch(fixed)

    def epoch(
        self,
        half: Half,
        fixed: Fixed,
        solver: Solver,
        phase: str,
        round_: int = 0,
        *,
        keep: bool = True,
    ) -> float:
        """One pass over the training entries; returns the figure that stopping looks at."""
        if self.out_of_time():
            raise BudgetError
        inside = self.journal.enter()
        train_loss, figures, seconds = self.journal.decide(lambda: self._train(half, fixed, solver, inside))
        train_figure, checked = self.loss.figure(train_loss), None if figures is None else Checked(*figures)
        valid_figure = None if checked is None else self.loss.figure(checked.loss)
        figure = train_figure if valid_figure is None else valid_figure
        if not (math.isfinite(train_figure) and math.isfinite(figure)):
            raise DivergedError(f"the loss is {train_figure} in epoch {len(self.history) + 1}")
        # without validation entries the last state is the best known
        best = keep and (figure < self.best_figure or valid_figure is None)
        if best:
            self.best_figure = figure
            self.best_state = self.validated_state(solver)
        self.record(phase, train_figure, valid_figure, seconds, round_, best=best)
        self.journal.pause(len(self.history))
        if checked is not None and keep:
            self.probation.report(checked)
        return figure

    def _train(
        self, half: Half, fixed: Fixed, solver: Solver, inside: dict[str, Any] | None
    ) -> tuple[float, list[float] | None, float]:
        """Train for an epoch, or from somewhere inside it; training loss, :class:`Checked` as a list, seconds."""
        begin = time.perf_counter()
        self.model.train()  # dropout and the like are on in here only
        try:
            loss = self._within_memory(half, fixed, solver, inside)
        finally:
            self.model.eval()
        keep_together(self.model, self.processes)
        if solver.average:
            solver.average.swap()
        checked = list(self._validate(half, fixed)) if len(self.valid) else None
        if solver.average:
            solver.average.swap()
        return loss, checked, time.perf_counter() - begin

    def _within_memory(self, half: Half, fixed: Fixed, solver: Solver, inside: dict[str, Any] | None) -> float:
        """An epoch; begun again with smaller batches where a GPU's memory is too small for these."""
        while True:
            try:
                return solver.epoch(half, fixed, self.train, inside)
            except RuntimeError as error:
                if not is_out_of_memory(error) or not solver.halve():
                    raise
            torch.cuda.empty_cache()
            inside, self.batch_limit = None, getattr(solver, "batch_size", self.batch_limit)
            self.notes.append(f"out of memory: steps of {self.batch_limit:,} entries from here on")

    def _pause_inside(self, share: float, inside: dict[str, Any]) -> None:
        """Between two pieces of an epoch."""
        self.journal.pause_inside(len(self.history) + share, inside)

    def record(
        self, phase: str, train: float, valid: float | None, seconds: float, round_: int = 0, *, best: bool
    ) -> None:
        """Add a row to the history."""
        row = Epoch(self.attempt, phase, round_, len(self.history) + 1, train, valid, seconds, best, self.most)
        self.history.append(row)
        if self.on_epoch is not None:
            self.on_epoch(row)

    def figure_of(self, half: Half) -> float:
        """The figure that stopping looks at, for a half as it is; of training entries where there are no others."""
        return self.journal.decide(lambda: self._figure_of(half))

    def _figure_of(self, half: Half) -> float:
        entries = self.valid if len(self.valid) else self.train
        predicted = LINKS[self.model.link](evaluate_in_batches(half, entries.indices, self.at_once))
        losses = self.loss.elementwise(predicted, entries.values)
        return self.loss.figure(float(losses.mean()) if len(self.valid) else self.processes.mean(losses))

    def at_valid(self, half: Half, fixed: Fixed) -> Tensor:
        """Score of the validation entries, ``(entries,)``."""
        return evaluate_in_batches(half, self.valid.indices, self.at_once).to(self.valid.values) + fixed.valid

    def _validate(self, half: Half, fixed: Fixed) -> Checked:
        if self.processes.shared:
            return self._validate_together(half, fixed)
        score = self.at_valid(half, fixed)
        predicted, values = LINKS[self.model.link](score), self.valid.values
        loss = self.loss.elementwise(predicted, values).mean()
        error = (predicted - values).norm() / values.norm().clamp_min(1e-30)
        return Checked(*torch.stack([loss, error, predicted.std(correction=0), values.std(correction=0)]).tolist())

    def _validate_together(self, half: Half, fixed: Fixed) -> Checked:
        """The same, every process with its share of the validation entries."""
        mine = self.processes.share(len(self.valid))
        rest = fixed.valid[mine] if isinstance(fixed.valid, Tensor) else fixed.valid
        values = self.valid.values[mine]
        score = evaluate_in_batches(half, self.valid.indices[mine], self.at_once).to(values) + rest
        predicted = LINKS[self.model.link](score)
        numbers = [self.loss.elementwise(predicted, values), (predicted - values).square(), values.square()]
        loss, wrong, squares = self.processes.sum(*(float(one.double().sum()) for one in numbers))
        spreads = [self.processes.moments(one)[1] for one in (predicted, values)]
        return Checked(loss / len(self.valid), math.sqrt(wrong / max(squares, 1e-60)), *spreads)
