"""Exact sweeps: planted truth, a falling objective, invariances, and agreement with dense least squares."""

import numpy as np
import pytest
import torch

from jointensor.kernels import pick_engine
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als, rebalance
from jointensor.solvers.systems import SystemsInMemory

SHAPE = (12, 10, 8)


def cells(entries=700, shape=SHAPE, seed=0):
    chosen = np.random.default_rng(seed).permutation(int(np.prod(shape)))[:entries]
    return torch.as_tensor(np.stack(np.unravel_index(chosen, shape), axis=1))


def started(spec, shape=SHAPE, seed=0, scale=1.0):
    g = Multilinear(shape, spec)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in g.named_parameters():
            if ".cp." in f".{name}":
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return g


def make(g, indices, targets, *, ridge=0.0, pull=0.0, engine="reference"):
    als = Als(g, SystemsInMemory(g, indices, pick_engine(engine, "cpu")), spread=float(targets.std()))
    als.ridge, als.pull = ridge, pull
    return als


def penalised(als, targets):
    """What a sweep minimises block by block: squared error plus the ridges, at tables of any balance."""
    total = (targets - als.total()).square().sum()
    for block in als.blocks.values():
        many = len(block.modes)
        unit = als.spread ** (2 - 2 / max(many, 1))
        for k, table in enumerate(block.tables):
            counts = als.systems.counts(block, k)
            weight = als.ridge * counts if many > 1 else torch.full_like(counts, als.pull, dtype=torch.float32)
            total = total + unit * (weight[:, None] * table.detach().square()).sum()
    return float(total)


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_a_planted_cp_is_found_exactly(engine):
    indices = cells()
    truth = started("cp:2", seed=5)
    targets = truth(indices).detach()
    als = make(started("cp:2", seed=1), indices, targets, engine=engine)
    for _ in range(150):
        als.sweep(targets)
    assert float((als.total() - targets).norm() / targets.norm()) < 1e-3


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_biases_are_the_ridge_regression(engine):
    indices = cells()
    rng = np.random.default_rng(1)
    targets = torch.as_tensor(rng.standard_normal(len(indices)), dtype=torch.float32)
    als = make(Multilinear(SHAPE, "bias"), indices, targets, pull=2.0, engine=engine)
    for _ in range(200):
        als.sweep(targets)
    columns = np.concatenate([np.eye(size)[indices[:, n].numpy()] for n, size in enumerate(SHAPE)], axis=1)
    system = columns.T @ columns + 2.0 * np.eye(columns.shape[1])  # one mode: the unit of the ridge is 1
    expected = columns @ np.linalg.solve(system, columns.T @ targets.double().numpy())
    np.testing.assert_allclose(als.total().numpy(), expected, atol=2e-5)


def test_no_sweep_raises_the_penalised_error():
    indices = cells()
    targets = torch.randn(len(indices), generator=torch.Generator().manual_seed(3)) + 2
    als = make(started("mean+bias+cp:3"), indices, targets, ridge=0.05, pull=3.0)
    last = penalised(als, targets)
    for _ in range(15):
        als.sweep(targets)
        now = penalised(als, targets)
        assert now <= last * (1 + 1e-5)
        last = now


@pytest.mark.parametrize("spec", ["mean", "bias", "cp:2", "mean+bias+cp:2"])
def test_kept_values_are_those_of_the_tables(spec):
    indices = cells()
    targets = torch.randn(len(indices), generator=torch.Generator().manual_seed(4))
    g = started(spec)
    als = make(g, indices, targets, ridge=0.1, pull=1.0, engine="numba")
    als.sweep(targets)
    torch.testing.assert_close(als.total(), g(indices).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [1e-3, 40.0])
def test_values_of_another_scale_give_the_same_fit_on_that_scale(factor):
    indices = cells()
    targets = torch.randn(len(indices), generator=torch.Generator().manual_seed(6)) + 1
    found = []
    for scale in (1.0, factor):
        g = started("mean+bias+cp:2", scale=scale ** (1 / 3))
        als = make(g, indices, scale * targets, ridge=0.1, pull=2.0)
        for _ in range(5):
            als.sweep(scale * targets)
        found.append(als.total() / scale)
    torch.testing.assert_close(found[0], found[1], rtol=2e-3, atol=2e-4)


def test_the_order_of_entries_does_not_matter():
    indices = cells()
    targets = torch.randn(len(indices), generator=torch.Generator().manual_seed(7))
    order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(8))
    found = []
    for which in (torch.arange(len(indices)), order):
        als = make(started("bias+cp:2"), indices[which], targets[which], ridge=0.1, pull=1.0, engine="numba")
        for _ in range(3):
            als.sweep(targets[which])
        found.append(als.total()[which.argsort()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_an_entry_of_weight_two_is_an_entry_twice():
    indices = cells(300)
    targets = torch.randn(300, generator=torch.Generator().manual_seed(9))
    weights = torch.ones(300)
    weights[:100] = 2.0
    once = make(started("mean+bias"), indices, targets, pull=1.5, engine="numba")
    twice = make(started("mean+bias"), torch.cat([indices, indices[:100]]), targets, pull=1.5, engine="numba")
    for _ in range(30):
        once.sweep(targets, weights)
        twice.sweep(torch.cat([targets, targets[:100]]))
    torch.testing.assert_close(once.total(), twice.total()[:300], rtol=1e-4, atol=1e-5)


def test_rebalancing_keeps_products_and_evens_out_sizes():
    tables = [
        torch.randn(size, 3, generator=torch.Generator().manual_seed(n)) * 10.0**n for n, size in enumerate(SHAPE)
    ]
    before = torch.einsum("ir,jr,kr->ijk", *tables)
    rebalance(tables)
    torch.testing.assert_close(torch.einsum("ir,jr,kr->ijk", *tables), before, rtol=1e-4, atol=1e-3)
    sizes = torch.stack([table.square().mean(dim=0) for table in tables])
    torch.testing.assert_close(sizes, sizes[:1].expand_as(sizes), rtol=1e-3, atol=0)


def test_a_component_of_zeros_stays_one():
    tables = [torch.randn(4, 2), torch.randn(5, 2)]
    tables[0][:, 1] = 0.0
    rebalance(tables)
    assert all(torch.isfinite(table).all() for table in tables)
    assert not tables[0][:, 1].any()
