"""New entries and new labels for a model that is fitted already: only the rows of new labels are learnt.

Everything that is known stays as it is. The rows of a new label start at the mean of the known ones; then those of g
are solved, with f fixed, and those of f descended, with g fixed, on the entries that have a new label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from jointensor.data.modes import UNSEEN
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.kernels.rows import ModeView, solve_rows
from jointensor.models.blocks import Combinations, Product, SharedPairs
from jointensor.models.factors import Factors
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.tables import DEFAULT_SHRINKAGE, Table, Tables

TURNS = 2
"""Times that g and f take turns."""

STEPS = 30
"""Gradient steps of f in a turn, over all entries with a new label at once."""

RATE = 0.05
"""Their learning rate, in spreads of the known rows."""

RIDGE, PULL = 0.05, 5.0
"""Shrinkage of new rows to the mean of the known ones: a share of their entries, and entries' worth."""

BATCH = 1 << 16
"""Entries that are evaluated at a time."""


P = TypeVar("P", bound=JointPredictor | Ensemble)


def add_entries(predictor: P, fresh: SparseTensor) -> P:
    """The same predictor, knowing new labels too.

    Of an ensemble every joint model learns them, and so do its biases; tables and neighbours know what they knew.

    Parameters
    ----------
    predictor
        Left as it is.
    fresh
        New entries over modes that begin with the labels the model knows and go on with new ones.
    """
    shape = fresh.shape
    if any(new < known for new, known in zip(shape, predictor.shape, strict=True)):
        raise ConfigError(
            f"new entries have shape {shape}, the model knows {predictor.shape}: labels cannot be taken away"
        )
    if isinstance(predictor, Ensemble):
        return _add_to_all(predictor, fresh)  # type: ignore[return-value]
    old = predictor.model
    model = _larger(old, shape)
    starts = old.shape
    touched = (fresh.indices >= np.array(starts)).any(axis=1)
    if touched.any():
        indices = torch.as_tensor(np.ascontiguousarray(fresh.indices[touched])).long()
        _learn(model, indices, torch.as_tensor(fresh.values[touched].copy()), starts)
    fallback = _more_biases(predictor.fallback, fresh, starts)
    return replace(predictor, model=model.eval(), fallback=fallback)


def _add_to_all(ensemble: Ensemble, fresh: SparseTensor) -> Ensemble:
    members = tuple(
        replace(member, fits=tuple(add_entries(p, fresh) if isinstance(p, JointPredictor) else p for p in member.fits))
        for member in ensemble.members
    )
    return replace(ensemble, members=members, fallback=_more_biases(ensemble.fallback, fresh, ensemble.shape))


def _larger(old: JointModel, shape: Sequence[int]) -> JointModel:
    """A copy with room for new labels; their rows are the mean of the known ones."""
    part: str | nn.Module = "julia" if old.nonlinear is None else old.nonlinear.spec
    model = JointModel(shape, old.rank, linear=old.linear, nonlinear=part)
    model.link = old.link
    before = old.state_dict()
    after = {}
    for name, value in model.state_dict().items():
        given = before[name].cpu()
        after[name] = given if given.shape == value.shape else value
    for name, module in model.named_modules():
        if isinstance(module, Factors):
            known = old.get_submodule(name)
            assert isinstance(known, Factors)  # the same architecture
            centre = not name.startswith("multilinear.blocks.bias_")
            after[f"{name}.stacked"] = torch.cat(
                [
                    _grown(table.cpu(), size, centre=centre)
                    for table, size in zip(known.tables, module.sizes, strict=True)
                ]
            )
    if model.multilinear is not None and old.multilinear is not None:
        _grow_special(model.multilinear, old.multilinear, after)
    model.load_state_dict(after)
    return model


def _grown(table: Tensor, size: int, *, centre: bool) -> Tensor:
    more = table.new_zeros(size - len(table), table.shape[1])
    return torch.cat([table, more + table.mean(dim=0) if centre and len(table) else more])


def _grow_special(new: Multilinear, old: Multilinear, after: dict[str, Tensor]) -> None:
    """Draws, and blocks whose keys depend on the sizes of modes."""
    for name, value in old.draws.state_dict().items():
        of = name.partition("/")[0]
        factors = getattr(old.blocks[of], "factors", None) if of in old.blocks else None
        if isinstance(factors, Factors) and name.endswith(("factors/stacked", "whole")):
            sizes: Sequence[int] = new.get_submodule(f"blocks.{of}.factors").sizes  # type: ignore[assignment]
            value = torch.stack(
                [
                    torch.cat(
                        [
                            _grown(table, size, centre=True)
                            for table, size in zip(torch.split(one, list(factors.sizes)), sizes, strict=True)
                        ]
                    )
                    for one in value.cpu()
                ]
            )
        after[f"multilinear.draws.{name}"] = value.cpu()
    for name, block in old.blocks.items():
        if isinstance(block, Combinations):
            after[f"multilinear.blocks.{name}.keys"] = _renumbered(
                block, [new_size(new, name, k) for k in range(len(block.sizes))]
            )
            after[f"multilinear.blocks.{name}.effects"] = block.effects.detach().cpu()
        elif isinstance(block, SharedPairs) and len(block.implicit_feedback):
            raise ConfigError("a model with implicit labels cannot learn new ones; fit again")


def new_size(g: Multilinear, name: str, k: int) -> int:
    """Size of the k-th mode of a table."""
    block = g.blocks[name]
    assert isinstance(block, Combinations)  # asked for by those who looked
    return block.sizes[k]


def _renumbered(block: Combinations, sizes: Sequence[int]) -> Tensor:
    """Keys of the same combinations where modes are larger; their order stays."""
    left, labels = block.keys.cpu(), []
    for size in reversed(block.sizes):
        labels.append(left % size)
        left = left // size
    keys = torch.zeros_like(block.keys.cpu())
    for label, size in zip(reversed(labels), sizes, strict=True):
        keys = keys * size + label
    return keys


def _learn(model: JointModel, indices: Tensor, values: Tensor, starts: Sequence[int]) -> None:
    """Rows of new labels, g and f in turn."""
    g, f = model.multilinear, model.nonlinear
    for _ in range(TURNS if f is not None and g is not None else 1):
        if g is not None:
            with torch.no_grad():
                rest = 0.0 if f is None else evaluate_in_batches(f, indices, BATCH)
                _solve(g, indices, values - rest, starts)
        if f is not None:
            rest = 0.0 if g is None else evaluate_in_batches(g, indices, BATCH)
            _descend(f, model.link, indices, values - rest, starts)


def _solve(g: Multilinear, indices: Tensor, targets: Tensor, starts: Sequence[int]) -> None:
    """New rows of every block, one block and one mode after the other; with draws, in each of them; then tables."""
    left = targets - g.eval()(indices)  # kept up to date: with many draws, asking g takes time
    for _ in range(2):  # blocks lean on each other
        for name, block in g.blocks.items():
            if isinstance(block, Product | SharedPairs) and block.factors is not None and name not in g.draws.names():
                left += block(indices)
                _solve_block(block, block.factors.stacked.detach(), indices, left, starts)
                left -= block(indices)
    if g.draws.names():
        _solve_draws(g, indices, left, starts)
        left = targets - g(indices)
    for _ in range(2):
        for block in g.blocks.values():
            if isinstance(block, Combinations):
                left += block(indices)
                _tabulate(block, indices, left, float(g.draws.noise), starts)
                left -= block(indices)


def _solve_draws(g: Multilinear, indices: Tensor, left: Tensor, starts: Sequence[int]) -> None:
    """New rows in every draw of every block; ``left`` is what all blocks leave."""
    for name in g.draws.names():
        block = g.blocks[name]
        assert isinstance(block, Product | SharedPairs)  # all that there are draws of
        assert block.factors is not None
        buffers = dict(g.draws.named_buffers())
        stored = buffers[f"{name}/whole" if block.sums else f"{name}/factors/stacked"]  # (draws, rows, R)
        single = block.factors.stacked.detach()
        kept = single.clone()
        wanted = left.clone()  # and what the block says itself, in the mean over its draws
        for one in stored:
            single.copy_(one)
            wanted += block(indices) / len(stored)
        left = wanted.clone()
        for one in stored:
            single.copy_(one)
            _solve_block(block, single, indices, wanted, starts)
            one.copy_(single)
            left -= block(indices) / len(stored)
        single.copy_(kept)


def _tabulate(block: Combinations, indices: Tensor, wanted: Tensor, noise: float, starts: Sequence[int]) -> None:
    """Numbers for combinations with a new label: means of what is wanted, shrunk as the known ones are."""
    mine = torch.stack([indices[:, n] >= starts[n] for n in block.modes]).any(dim=0)
    known = block.effects.detach()[:-1, 0]
    size = float(known.square().mean()) if len(known) else 0.0
    if not mine.any() or not size:
        return
    wanted = wanted[mine]
    keys, rows = torch.unique(block._keys_of(indices[mine]), return_inverse=True)
    sums = wanted.new_zeros(len(keys)).index_add(0, rows, wanted)
    effects = sums / (torch.bincount(rows, minlength=len(keys)) + noise / size)
    old = ~torch.isin(block.keys, keys)
    every, order = torch.cat([block.keys[old], keys]).sort()
    block.keys = every
    block.effects = nn.Parameter(torch.cat([torch.cat([known[old], effects])[order], known.new_zeros(1)])[:, None])


def _solve_block(
    block: Product | SharedPairs, stacked: Tensor, indices: Tensor, wanted: Tensor, starts: Sequence[int]
) -> None:
    assert block.factors is not None  # asked for by those who looked
    tables = torch.split(stacked, list(block.factors.sizes))
    for k, mode in enumerate(block.modes):
        first = starts[mode]
        mine = indices[:, mode] >= first
        if not mine.any():
            continue
        columns = block.columns(indices[mine]).clone()
        columns[:, k] -= first
        others = [m for m in range(len(tables)) if m != k]
        table = tables[k][first:]
        view = ModeView.of(columns, k, others, len(table))
        prior = table.clone() if len(tables) == 1 else tables[k][:first].mean(dim=0).expand_as(table).clone()
        fixed = [tables[m] for m in others]
        targets = wanted[mine]
        if block.sums:  # pairs among the other modes are no part of what these rows explain
            targets = targets - _pairs_without(tables, block.columns(indices[mine]), k)
        scale = 1.0 if len(tables) == 1 else float(_size(fixed))
        ridge = RIDGE * view.counts.to(table.dtype) * scale + PULL * scale
        solve_rows(view, fixed, targets, None, ridge, table, evaluate=False, prior=prior, sums=block.sums)


def _size(others: Sequence[Tensor]) -> Tensor:
    """Mean square of the products of the other rows, so that a ridge means the same whatever their scale."""
    return torch.stack([table.square().mean() for table in others]).prod()


def _pairs_without(tables: Sequence[Tensor], columns: Tensor, k: int) -> Tensor:
    rows = torch.stack([table[columns[:, m]] for m, table in enumerate(tables) if m != k])  # (others, entries, R)
    return 0.5 * (rows.sum(dim=0).square() - rows.square().sum(dim=0)).sum(dim=1)


def _descend(f: nn.Module, link: str, indices: Tensor, targets: Tensor, starts: Sequence[int]) -> None:
    """New rows of f's factors by Adam over all entries at once; everything else of f stays."""
    if link != "identity":
        return  # the residual has no meaning before the link
    factors = f.factors
    assert isinstance(factors, Factors)  # a nonlinear half has them
    stacked = factors.stacked
    fresh = torch.cat(
        [torch.arange(size) >= start for size, start in zip(factors.sizes, starts, strict=True)]
    )  # (rows,)
    spread = float(stacked.detach()[~fresh].std()) or 1.0
    moved = stacked.detach()[fresh].clone().requires_grad_()
    known = stacked.detach().clone()
    optimizer = torch.optim.Adam([moved], lr=RATE * spread)
    varied = float(targets.double().std(correction=0))
    scale = varied or float(targets.abs().max()) or 1.0  # squares of large values would be infinite
    pull = (PULL if varied else 0.0) / spread**2 / max(len(targets), 1)
    start = moved.detach().clone()
    for _ in range(STEPS):
        whole = known.index_put((fresh.nonzero().squeeze(1),), moved)
        left = torch.func.functional_call(f, {"factors.stacked": whole}, (indices,)) - targets
        error = (left / scale).square().mean()
        optimizer.zero_grad()
        (error + pull * (moved - start).square().sum()).backward()
        optimizer.step()
    with torch.no_grad():
        stacked[fresh] = moved


def _more_biases(fallback: Tables, fresh: SparseTensor, starts: Sequence[int]) -> Tables:
    """Additive biases with numbers for the new labels: shrunk means of what the known ones leave."""
    known = np.where(fresh.indices < np.array(starts), fresh.indices, UNSEEN)
    left = fresh.values.astype(np.float64) - fallback.predict(known)
    tables = []
    for n, table in enumerate(fallback.tables):
        column = fresh.indices[:, n]
        labels, rows = np.unique(column[column >= starts[n]], return_inverse=True)
        effects = np.bincount(rows, left[column >= starts[n]], minlength=len(labels))
        effects = effects / (np.bincount(rows, minlength=len(labels)) + DEFAULT_SHRINKAGE)
        tables.append(
            Table(
                (n,),
                (fresh.shape[n],),
                np.concatenate([table.keys, labels.astype(np.int64)]),
                np.concatenate([table.effects[:-1], effects, np.zeros(1)]),
            )
        )
    return replace(fallback, tables=tuple(tables))
