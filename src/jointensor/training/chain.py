"""A chain of draws of Θ_L, and what is kept of it."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from jointensor.kernels.rows import RowSolver
from jointensor.models.multilinear import Multilinear
from jointensor.training.gibbs import Gibbs
from jointensor.training.state import Entries, Fixed
from jointensor.training.trainer import BudgetError, DivergedError, Trainer

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
    solver
        The engine.
    """

    def __init__(self, g: Multilinear, train: Entries, solver: RowSolver) -> None:
        spread = float(train.values.std(correction=0)) or 1.0
        self.gibbs = Gibbs(g, train.indices, spread=spread, solver=solver)
        self.g, self.train = g, train
        self.sweeps = 0
        self.noise = 0.0
        self.kept: dict[str, list[dict[str, Tensor]]] = {
            name: [] for name, block in self.gibbs.blocks.items() if len(block.tables) > 1
        }
        self.means: dict[str, Tensor] = {}
        self.count = 0
        self.fitted = torch.zeros_like(train.values)
        """Mean of g over the draws, on the training entries."""

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
                self.kept[name].append({key: value.detach().clone() for key, value in block.named_parameters()})

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
                for key in drawn[-1]:  # a single state for those who ask for one
                    self.g.get_parameter(f"blocks.{name}.{key}").copy_(drawn[-1][key])


def sample(trainer: Trainer, fixed: Fixed) -> None:
    """Draw Θ_L with the other half fixed, as often as the recipe says; g ends as the mean of the draws."""
    g, recipe = trainer.model.multilinear, trainer.recipe
    assert g is not None  # there is something to draw
    chain = Chain(g, trainer.train, trainer.engine.solve_rows)
    targets = trainer.train.values - fixed.train
    valid = torch.zeros_like(trainer.valid.values)
    wanted = recipe.burn_in + recipe.draws * recipe.thin
    for sweep in range(wanted):
        begin = time.perf_counter()
        late = sweep >= recipe.burn_in
        try:
            if time.monotonic() > trainer.deadline and chain.count:
                raise BudgetError
            chain.sweep(targets)
        except BudgetError:
            break
        if late:
            chain.keep(store=(sweep - recipe.burn_in) % recipe.thin == recipe.thin - 1)
            valid.lerp_(trainer.at_valid(g, fixed), 1 / chain.count)
        left = targets - (chain.fitted if late else chain.gibbs.total())
        figures = [float(left.square().mean()), _error(valid if late else trainer.at_valid(g, fixed), trainer)]
        if not all(figure == figure and abs(figure) < float("inf") for figure in figures if figure is not None):
            raise DivergedError(f"the draws are not finite in sweep {sweep + 1}")
        shown = [None if figure is None else trainer.loss.figure(figure) for figure in figures]
        trainer.record("draw", shown[0] or 0.0, shown[1], time.perf_counter() - begin, best=late)
    chain.settle()
    trainer.best_state = trainer.state()
    trainer.converged = chain.count >= recipe.draws * recipe.thin


def _error(score: Tensor, trainer: Trainer) -> float | None:
    return float((score - trainer.valid.values).square().mean()) if len(score) else None
