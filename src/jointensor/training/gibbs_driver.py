"""Gibbs sampling of Θ_L: burn-in, thinning, and the means and draws that predictions need."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jointensor.data.store import Column, Entries
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels import Engine
from jointensor.models.joint import evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.random_state import Generators
from jointensor.solvers.als import BATCH
from jointensor.solvers.data_parallel import keep_together
from jointensor.solvers.failures import DivergedError, StoppedError
from jointensor.solvers.gibbs import Gibbs
from jointensor.solvers.sgd import FrozenHalf
from jointensor.solvers.systems import SystemsInMemory
from jointensor.training.checkpoint import stored
from jointensor.training.trainer import Trainer

REFRESH_SWEEPS = 20
"""Sweeps after which values are computed from the tables again: rounding errors of sums of changes would add up."""


class GibbsDriver:
    """Runs a Gibbs sampler of g and keeps what predictions need.

    Of numbers (``mean``, ``bias``, ``tables``) that is their mean, of factors the draws themselves: the mean
    of factors is not the mean of their products.

    Parameters
    ----------
    g
        Its tables are changed in place.
    train
        Training entries.
    engine
        Does the work.
    processes
        The processes that have shares of the training entries.
    generators
        Random numbers of the draws in one process; torch's own state if not given.
    """

    def __init__(
        self,
        g: Multilinear,
        train: Entries,
        engine: Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
        generators: Generators | None = None,
    ) -> None:
        spread = train.moments()[1] or 1.0
        spread = min(max(spread, 1e-10), 1e15)  # its squares and their inverses have to fit 32 bits
        self.gibbs = Gibbs(g, SystemsInMemory(g, train.indices, engine, processes, generators), spread=spread)
        self.g, self.train = g, train
        self.sweeps = 0
        self.noise = 0.0
        self.kept: dict[str, list[dict[str, Tensor]]] = {
            name: [] for name, block in self.gibbs.blocks.items() if block.multiplies
        }
        self.means: dict[str, Tensor] = {}
        self.count = 0
        self.fitted = torch.zeros_like(train.values)
        """Mean of g over the draws, on the training entries."""
        self.valid = torch.zeros(0)
        """Mean score of the validation entries over the draws."""

    def resumable(self) -> dict[str, Any]:
        """State beside the tables."""
        names = ("sweeps", "noise", "kept", "means", "count", "valid")
        fitted = None if self.gibbs.processes.shared else self.fitted  # of this process's entries only
        return {"gibbs": self.gibbs.resumable(), "fitted": fitted, **{name: getattr(self, name) for name in names}}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from such a state."""
        device = self.fitted.device
        self.gibbs.resume(state["gibbs"])
        self.sweeps, self.noise, self.count = state["sweeps"], state["noise"], state["count"]
        # without it the training error that is shown is that of the draws from here on
        self.fitted = self.gibbs.total() if state["fitted"] is None else state["fitted"].to(device)
        self.valid = state["valid"].to(device)
        self.means = {name: value.to(device) for name, value in state["means"].items()}
        self.kept = {
            block: [{name: value.to(device) for name, value in one.items()} for one in drawn]
            for block, drawn in state["kept"].items()
        }

    def sweep(self, targets: Tensor) -> None:
        """Draw everything once, for x − f of the training entries."""
        with self.gibbs.threads(len(targets)):
            if self.sweeps % REFRESH_SWEEPS == REFRESH_SWEEPS - 1:
                self.gibbs.refresh()
            self.gibbs.sweep(targets)
        self.sweeps += 1

    @torch.no_grad()
    def keep(self, *, store: bool) -> None:
        """Add the present state to the means and, with ``store``, to the stored draws."""
        self.count += 1
        share = 1 / self.count
        self.fitted.lerp_(self.gibbs.total(), share)
        self.noise += (self.gibbs.noise - self.noise) * share
        for name, block in self.gibbs.blocks.items():
            for key, value in block.named_parameters():
                if name in self.kept:
                    continue
                whole = f"{name}.{key}"
                self.means[whole] = value.detach().clone() if self.count == 1 else self.means[whole].lerp(value, share)
            if store and name in self.kept:
                self.kept[name].append(block.draw())

    @torch.no_grad()
    def settle(self) -> None:
        """Set g to the means and the stored draws."""
        for whole, value in self.means.items():
            self.g.get_parameter(f"blocks.{whole}").copy_(value)
        self.g.draws.forget()
        self.g.draws.noise.fill_(self.noise)
        for name, drawn in self.kept.items():
            if drawn:
                self.g.draws.keep(name, drawn, self.noise)


@stored
@dataclass
class GibbsSweeps:
    """Variables of :func:`sample`."""

    sweep: int = 0


def sample(trainer: Trainer, frozen: FrozenHalf) -> None:
    """Draw Θ_L with the other half frozen, as often as the recipe says; g ends as the mean of the draws."""
    g, recipe, state = trainer.model.multilinear, trainer.recipe, trainer.state
    assert g is not None  # there is something to draw
    assert trainer.train.resident is not None  # refused from disk
    own = None if trainer.processes.shared else trainer.generators  # several processes agree by torch's state
    driver = GibbsDriver(g, trainer.train.resident, trainer.engine, trainer.processes, own)
    driver.valid = torch.zeros_like(trainer.valid.values)
    with trainer.enter(GibbsSweeps) as at:
        trainer.keep("gibbs", driver)
        while at.sweep < recipe.burn_in + recipe.draws * recipe.thin:
            try:
                trainer.pause()
            except StoppedError:
                break
            if at.sweep and trainer.out_of_time():
                break
            *errors, seconds = trainer.processes.decide(lambda: _sweep(trainer, driver, frozen, at.sweep))
            if not all(error is None or math.isfinite(error) for error in errors):
                raise DivergedError(f"the draws are not finite in sweep {at.sweep + 1}")
            figures = [None if error is None else trainer.loss.figure(error) for error in errors]
            trainer.record("draw", figures[0] or 0.0, figures[1], seconds, best=at.sweep >= recipe.burn_in)
            at.sweep += 1
    state.converged = driver.count >= recipe.draws * recipe.thin
    if not driver.count:  # the time was up before: the last state
        driver.keep(store=True)
    driver.settle()
    state.best_state = trainer.snapshot()


def _sweep(trainer: Trainer, driver: GibbsDriver, frozen: FrozenHalf, sweep: int) -> list[Any]:
    """One sweep, kept where it is late enough; mean squared error of training and validation entries, seconds."""
    begin, recipe = trainer.clock(), trainer.recipe
    late = sweep >= recipe.burn_in
    assert not isinstance(frozen.train, Column)  # the entries are in memory
    targets = driver.train.values - frozen.train
    with trainer.generators.as_global() if trainer.processes.shared else nullcontext():
        driver.sweep(targets)
    if late:
        driver.keep(store=(sweep - recipe.burn_in) % recipe.thin == recipe.thin - 1)
        driver.valid.lerp_(_at_valid(trainer, driver.g, frozen), 1 / driver.count)
    residuals = targets - (driver.fitted if late else driver.gibbs.total())
    valid = _error(driver.valid if late else _at_valid(trainer, driver.g, frozen), trainer)
    keep_together(trainer.model, trainer.processes)
    return [trainer.processes.mean(residuals.square()), valid, trainer.clock() - begin]


def _at_valid(trainer: Trainer, g: Multilinear, frozen: FrozenHalf) -> Tensor:
    """Score of the validation entries; many at once, since some blocks have work to do per call."""
    found = evaluate_in_batches(g, trainer.valid.indices, BATCH)
    return found.to(trainer.valid.values) + frozen.valid


def _error(score: Tensor, trainer: Trainer) -> float | None:
    return float((score - trainer.valid.values).square().mean()) if len(score) else None
