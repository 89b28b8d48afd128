"""New labels for a fitted model: only their rows are fitted, all other parameters stay as they are.

The rows of a new label start at the mean of the known ones. Then those of g are solved with f fixed, and those of f
trained by gradient descent with g fixed, on the entries that have a new label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from jointensor.data.modes import UNSEEN
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.models.blocks.base import Block
from jointensor.models.blocks.growth import NewEntries
from jointensor.models.joint import JointModel, NonlinearHalf, evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.predictors.tables import DEFAULT_SHRINKAGE, Table, Tables

ROUNDS = 2
"""Times that g and f are fitted in turn; the second time each knows what the other has learnt of new labels."""

STEPS = 30
"""Gradient steps of f in a round, over all entries with a new label at once."""

LEARNING_RATE = 0.05
"""Of these steps, in standard deviations of the known rows."""

PRIOR_ENTRIES = 5.0
"""Shrinkage of f's new rows to the mean of the known ones, as a number of entries."""

BATCH = 1 << 16
"""Entries that are evaluated at a time."""


def fit_new_labels(model: JointModel, fresh: SparseTensor) -> JointModel:
    """A copy of a fitted model that has rows for new labels, too.

    Parameters
    ----------
    model
        Not changed.
    fresh
        New entries over modes that begin with the labels the model knows and go on with new ones.
    """
    larger = model.grown(fresh.shape)
    touched = (fresh.indices >= np.array(model.shape)).any(axis=1)
    if touched.any():
        indices = torch.as_tensor(np.ascontiguousarray(fresh.indices[touched])).long()
        _learn(larger, indices, torch.as_tensor(fresh.values[touched].copy()), model.shape)
    return larger.eval()


def fit_new_biases(biases: Tables, fresh: SparseTensor) -> Tables:
    """Additive biases with numbers for new labels: shrunk means of the residuals of the known biases."""
    starts = [table.sizes[0] for table in biases.tables]
    known = np.where(fresh.indices < np.array(starts), fresh.indices, UNSEEN)
    residuals = fresh.values.astype(np.float64) - biases.predict(known)
    tables = []
    for n, (table, start) in enumerate(zip(biases.tables, starts, strict=True)):
        column = fresh.indices[:, n]
        labels, rows = np.unique(column[column >= start], return_inverse=True)
        effects = np.bincount(rows, residuals[column >= start], minlength=len(labels))
        effects = effects / (np.bincount(rows, minlength=len(labels)) + DEFAULT_SHRINKAGE)
        tables.append(
            Table(
                (n,),
                (fresh.shape[n],),
                np.concatenate([table.keys, labels.astype(np.int64)]),
                np.concatenate([table.effects[:-1], effects, np.zeros(1)]),
            )
        )
    return replace(biases, tables=tuple(tables))


def check_labels_kept(known: Sequence[int], fresh: SparseTensor) -> None:
    """Refuse new entries over modes that have fewer labels than before."""
    if any(new < old for new, old in zip(fresh.shape, known, strict=True)):
        raise ConfigError(
            f"new entries have shape {fresh.shape}, the model knows {tuple(known)}: labels cannot be taken away"
        )


def _learn(model: JointModel, indices: Tensor, values: Tensor, starts: tuple[int, ...]) -> None:
    """Rows of new labels, of g and of f in turn."""
    g, f = model.multilinear, model.nonlinear
    for _ in range(ROUNDS if f is not None and g is not None else 1):
        if g is not None:
            with torch.no_grad():
                rest = 0.0 if f is None else evaluate_in_batches(f, indices, BATCH)
                _solve(g, NewEntries(indices, starts, float(g.draws.noise)), values - rest)
        if f is not None and model.link == "identity":  # before another link, a residual has no meaning
            rest = 0.0 if g is None else evaluate_in_batches(g, indices, BATCH)
            _descend(f, indices, values - rest, starts)


def _solve(g: Multilinear, new: NewEntries, targets: Tensor) -> None:
    """New rows of all blocks, one block after the other; then new rows in all draws; then blocks that memorise."""
    blocks, drawn = g.named_blocks, g.draws.names()
    rows = [block for name, block in blocks.items() if block.learns_rows and name not in drawn]
    residuals = targets - g.eval()(new.indices)  # updated block by block: evaluating g with many draws takes long
    _learn_blocks(rows, new, residuals)
    if drawn:
        _learn_draws(g, new, residuals)
        residuals = targets - g(new.indices)
    _learn_blocks([block for block in blocks.values() if block.memorises], new, residuals)


def _learn_blocks(blocks: Sequence[Block], new: NewEntries, residuals: Tensor) -> None:
    """Fit new labels in blocks to residuals, which are updated in place; twice, since blocks interact."""
    for block in 2 * list(blocks):
        residuals += block(new.indices)
        block.learn_new_labels(new, residuals)
        residuals -= block(new.indices)


def _learn_draws(g: Multilinear, new: NewEntries, residuals: Tensor) -> None:
    """Fit new labels in every draw of every block to the residuals of g."""
    for name in g.draws.names():
        block, draws = g.named_blocks[name], [g.draws.of(name, k) for k in range(len(g.draws))]
        targets = residuals.clone()  # with the block's own value, in the mean over its draws
        for draw in draws:
            targets += block.values_of_draw(draw, new.indices) / len(draws)
        residuals = targets.clone()
        for draw in draws:
            block.learn_new_labels(new, targets, draw)
            residuals -= block.values_of_draw(draw, new.indices) / len(draws)


def _descend(f: NonlinearHalf, indices: Tensor, targets: Tensor, starts: tuple[int, ...]) -> None:
    """New rows of f's factors by Adam over all entries at once; all other parameters of f stay."""
    stacked, factors = f.factors.stacked, f.factors
    fresh = torch.cat(
        [torch.arange(size) >= start for size, start in zip(factors.sizes, starts, strict=True)]
    )  # (rows,)
    spread = float(stacked.detach()[~fresh].std()) or 1.0
    moved = stacked.detach()[fresh].clone().requires_grad_()
    known = stacked.detach().clone()
    optimizer = torch.optim.Adam([moved], lr=LEARNING_RATE * spread)
    varied = float(targets.double().std(correction=0))
    scale = varied or float(targets.abs().max()) or 1.0  # squares of large values would be infinite
    ridge = (PRIOR_ENTRIES if varied else 0.0) / spread**2 / max(len(targets), 1)
    start = moved.detach().clone()
    for _ in range(STEPS):
        whole = known.index_put((fresh.nonzero().squeeze(1),), moved)
        errors = torch.func.functional_call(f, {"factors.stacked": whole}, (indices,)) - targets
        error = (errors / scale).square().mean()
        optimizer.zero_grad()
        (error + ridge * (moved - start).square().sum()).backward()
        optimizer.step()
    with torch.no_grad():
        stacked[fresh] = moved
