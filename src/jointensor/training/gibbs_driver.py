"""A chain of draws of Θ_L, and what is kept of it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels import Engine
from jointensor.models.joint import evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.data_parallel import keep_together
from jointensor.solvers.entries import Entries, Fixed
from jointensor.solvers.failures import DivergedError
from jointensor.solvers.gibbs import Gibbs
from jointensor.training.journal import StoppedError
from jointensor.training.trainer import Trainer

BATCH = 1 << 19
"""Entries that are evaluated at a time."""

REFRESH = 20
"""Sweeps after which values are taken from the tables again: small errors of sums of changes would add up."""


class Chain:
    """Runs a Gibbs sampler of g and keeps what predictions need.

    Of numbers (``mean``, ``bias``, ``tables``) that is their mean, of what is multiplied the draws themselves: the mean
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
    """

    def __init__(
        self, g: Multilinear, train: Entries, engine: Engine, processes: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        spread = processes.moments(train.values)[1] or 1.0
        spread = min(max(spread, 1e-10), 1e15)  # its squares and their inverses have to fit 32 bits
        self.gibbs = Gibbs(
            g, train.indices, spread=spread, solver=engine.solve_rows, systems=engine.row_systems, processes=processes
        )
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
        """Everything but the tables as they are."""
        names = ("sweeps", "noise", "kept", "means", "count", "valid")
        fitted = None if self.gibbs.processes.shared else self.fitted  # of this process's entries only
        return {"gibbs": self.gibbs.resumable(), "fitted": fitted, **{name: getattr(self, name) for name in names}}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from there."""
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
        if self.sweeps % REFRESH == REFRESH - 1:
            self.gibbs.refresh()
        self.gibbs.sweep(targets)
        self.sweeps += 1

    @torch.no_grad()
    def keep(self, *, store: bool) -> None:
        """Take the state as it is into the means and, where it is to be stored, among the draws."""
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
        """Let g answer with the means of what was kept."""
        for whole, value in self.means.items():
            self.g.get_parameter(f"blocks.{whole}").copy_(value)
        self.g.draws.forget()
        self.g.draws.noise.fill_(self.noise)
        for name, drawn in self.kept.items():
            if drawn:
                self.g.draws.keep(name, drawn, self.noise)


def sample(trainer: Trainer, fixed: Fixed) -> None:
    """Draw Θ_L with the other half fixed, as often as the recipe says; g ends as the mean of the draws."""
    g, recipe = trainer.model.multilinear, trainer.recipe
    assert g is not None  # there is something to draw
    chain = trainer.journal.watch(Chain(g, trainer.train, trainer.engine, trainer.processes))
    chain.valid = torch.zeros_like(trainer.valid.values)
    wanted = recipe.burn_in + recipe.draws * recipe.thin
    for sweep in range(wanted):
        if sweep and trainer.out_of_time():
            break
        *figures, seconds = trainer.journal.decide(partial(_sweep, trainer, chain, fixed, sweep))
        if not all(figure == figure and abs(figure) < float("inf") for figure in figures if figure is not None):
            raise DivergedError(f"the draws are not finite in sweep {sweep + 1}")
        shown = [None if figure is None else trainer.loss.figure(figure) for figure in figures]
        trainer.record("draw", shown[0] or 0.0, shown[1], seconds, best=sweep >= recipe.burn_in)
        try:
            trainer.journal.pause(len(trainer.history))
        except StoppedError:
            break
    count = trainer.journal.decide(lambda: chain.count)
    if not count:  # the time was up before: the last state
        chain.keep(store=True)
    chain.settle()
    trainer.best_state = trainer.state()
    trainer.converged = count >= recipe.draws * recipe.thin


def _sweep(trainer: Trainer, chain: Chain, fixed: Fixed, sweep: int) -> list[Any]:
    """One sweep, kept where it is late enough; mean squared error of training and validation entries, seconds."""
    begin, recipe = time.perf_counter(), trainer.recipe
    late = sweep >= recipe.burn_in
    targets = trainer.train.values - fixed.train
    chain.sweep(targets)
    if late:
        chain.keep(store=(sweep - recipe.burn_in) % recipe.thin == recipe.thin - 1)
        chain.valid.lerp_(_at_valid(trainer, chain.g, fixed), 1 / chain.count)
    left = targets - (chain.fitted if late else chain.gibbs.total())
    valid = _error(chain.valid if late else _at_valid(trainer, chain.g, fixed), trainer)
    keep_together(trainer.model, trainer.processes)
    return [trainer.processes.mean(left.square()), valid, time.perf_counter() - begin]


def _at_valid(trainer: Trainer, g: Multilinear, fixed: Fixed) -> Tensor:
    """Score of the validation entries; many at once, since some blocks have work to do per call."""
    found = evaluate_in_batches(g, trainer.valid.indices, BATCH)
    return found.to(trainer.valid.values) + fixed.valid


def _error(score: Tensor, trainer: Trainer) -> float | None:
    return float((score - trainer.valid.values).square().mean()) if len(score) else None
