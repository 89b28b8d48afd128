"""Exact sweeps over pairs, factorisation machines and tables; implicit labels against a dense least-squares solve."""

import numpy as np
import pytest
import torch

from jointensor.kernels import ModeView, RowEntries, pick_engine
from jointensor.models.blocks.fm import ImplicitFeedback, SharedPairs
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.implicit_feedback import Seen, conjugate_gradients, solve_implicit_feedback
from jointensor.solvers.systems import SystemsInMemory

SHAPE = (12, 10, 8)
ENGINES = ["reference", "numba"]


def cells(entries=700, shape=SHAPE, seed=0):
    chosen = np.random.default_rng(seed).permutation(int(np.prod(shape)))[:entries]
    return torch.as_tensor(np.stack(np.unravel_index(chosen, shape), axis=1))


def started(spec, indices, shape=SHAPE, seed=0, scale=1.0):
    """Random tables where rows are multiplied; numbers start at zero."""
    g = Multilinear(shape, spec)
    g.see(indices)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, block in g.blocks.items():
            if name.startswith(("cp", "pairs", "fm")):
                for parameter in block.parameters():
                    parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return g


def make(g, indices, targets, *, ridge=0.0, pull=0.0, engine="numba"):
    als = Als(g, SystemsInMemory(g, indices, pick_engine(engine, "cpu")), spread=float(targets.std()))
    als.ridge, als.pull = ridge, pull
    return als


def normal(entries, seed):
    return torch.randn(entries, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", ["fm:2", "pairs:1"])
def test_planted_pairs_are_found_exactly(engine, spec):
    indices = cells()
    targets = started(spec, indices, seed=5)(indices).detach()
    als = make(started(spec, indices, seed=1), indices, targets, engine=engine)
    for _ in range(150):
        als.sweep(targets)
    assert float((als.total() - targets).norm() / targets.norm()) < 1e-3


def test_a_planted_factorisation_machine_is_found_at_cells_that_were_not_seen():
    indices = cells(960)
    truth = started("fm:2", indices, seed=5)(indices).detach()
    g = started("fm:2", indices, seed=1)
    als = make(g, indices[:700], truth[:700])
    for _ in range(150):
        als.sweep(truth[:700])
    assert float((g(indices[700:]).detach() - truth[700:]).norm() / truth[700:].norm()) < 1e-3


@pytest.mark.parametrize("spec", ["fm:2", "pairs:2", "tables", "mean+bias+fm:2+tables:0/1", "bias+cp:2+fm:2"])
def test_kept_values_are_those_of_the_blocks(spec):
    indices = cells()
    targets = normal(len(indices), 4)
    g = started(spec, indices)
    als = make(g, indices, targets, ridge=0.1, pull=1.0)
    for _ in range(3):
        als.sweep(targets)
    torch.testing.assert_close(als.total(), g(indices).detach(), rtol=1e-4, atol=1e-5)


def penalised(als, targets):
    """What a sweep minimises block by block: squared error plus the ridges of vectors and of numbers."""
    total = (targets - als.total()).square().sum()
    for block in als.blocks.values():
        for k, table in enumerate(block.tables):
            counts = torch.bincount(block.columns(als.systems.indices)[:, k], minlength=len(table))
            if len(block.tables) == 1:
                total = total + als.pull * table.square().sum()
            else:  # vectors of pairs have the root of the values' scale
                total = total + als.spread * als.ridge * (counts[:, None] * table.square()).sum()
    return float(total)


@pytest.mark.parametrize("spec", ["fm:3", "mean+bias+fm:3", "mean+bias+pairs:2", "mean+bias+tables", "fm:2+tables:0/1"])
def test_no_sweep_raises_the_penalised_error(spec):
    indices = cells()
    targets = normal(len(indices), 3) + 2
    als = make(started(spec, indices), indices, targets, ridge=0.05, pull=3.0)
    last = penalised(als, targets)
    for _ in range(15):
        als.sweep(targets)
        now = penalised(als, targets)
        assert now <= last * (1 + 1e-5)
        last = now


@pytest.mark.parametrize("engine", ENGINES)
def test_vectors_of_one_mode_are_the_ridge_solution_given_the_others(engine):
    """The last table that a sweep solves is optimal for the others as they are then: rows by dense least squares."""
    indices, ridge = cells(), 0.3
    targets = normal(len(indices), 8)
    g = started("fm:3", indices)
    als = make(g, indices, targets, ridge=ridge, engine=engine)
    als.sweep(targets)
    one, two, found = (table.double().numpy() for table in g.blocks["fm"].tables)
    i, j, k = indices.numpy().T
    h, fixed = one[i] + two[j], (one[i] * two[j]).sum(axis=1)
    for row in range(SHAPE[2]):
        mine = k == row
        system = h[mine].T @ h[mine] + als.spread * ridge * mine.sum() * np.eye(3)
        expected = np.linalg.solve(system, h[mine].T @ (targets.double().numpy() - fixed)[mine])
        np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("weighed", [False, True])
def test_numbers_of_a_table_are_shrunk_means(weighed):
    indices = cells(200)
    targets = normal(200, 1)
    weights = torch.rand(200, generator=torch.Generator().manual_seed(2)) if weighed else None
    g = started("tables:0/2", indices)
    make(g, indices, targets, pull=2.5).sweep(targets, weights)
    every = torch.as_tensor(np.argwhere(np.ones(SHAPE)))
    w = np.ones(200) if weights is None else weights.double().numpy()
    for cell, value in zip(every[::7], g(every[::7]).tolist(), strict=True):
        mine = (indices[:, [0, 2]] == cell[[0, 2]]).all(dim=1).numpy()
        expected = (w * targets.double().numpy())[mine].sum() / (w[mine].sum() + 2.5)
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_tables_next_to_biases_are_the_ridge_regression():
    indices = cells(300, (5, 6, 12))
    targets = normal(300, 6) + 1
    als = make(started("bias+tables:0/1", indices, (5, 6, 12)), indices, targets, pull=2.0)
    for _ in range(300):
        als.sweep(targets)
    i, j, k = indices.numpy().T
    columns = np.concatenate([np.eye(5)[i], np.eye(6)[j], np.eye(12)[k], np.eye(30)[6 * i + j]], axis=1)
    system = columns.T @ columns + 2.0 * np.eye(columns.shape[1])
    expected = columns @ np.linalg.solve(system, columns.T @ targets.double().numpy())
    np.testing.assert_allclose(als.total().numpy(), expected, atol=1e-4)


def test_a_planted_table_is_found():
    indices = cells(900)
    planted = normal(SHAPE[0] * SHAPE[1], 2).view(SHAPE[0], SHAPE[1])
    targets = planted[indices[:, 0], indices[:, 1]]
    g = started("tables:0/1", indices)
    make(g, indices, targets).sweep(targets)
    torch.testing.assert_close(g(indices).detach(), targets)


@pytest.mark.parametrize("spec", ["fm:2", "mean+bias+fm:2", "pairs:2", "mean+tables"])
def test_an_entry_of_weight_two_is_an_entry_twice(spec):
    """Without a ridge by counts, which are those of entries and not of weights."""
    indices, targets = cells(), normal(700, 9)
    weights = torch.ones(700)
    weights[:200] = 2.0
    doubled = torch.cat([indices, indices[:200]])
    once = make(started(spec, indices), indices, targets, pull=1.5)
    twice = make(started(spec, indices), doubled, targets, pull=1.5)
    for _ in range(4):
        once.sweep(targets, weights)
        twice.sweep(torch.cat([targets, targets[:200]]))
    torch.testing.assert_close(once.total(), twice.total()[:700], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("factor", [1e-3, 40.0])
def test_values_of_another_scale_give_the_same_fit_on_that_scale(factor):
    indices, targets = cells(), normal(700, 6) + 1
    found = []
    for scale in (1.0, factor):
        g = started("mean+bias+pairs:1+fm:2", indices, scale=scale**0.5)
        als = make(g, indices, scale * targets, ridge=0.1, pull=2.0)
        for _ in range(5):
            als.sweep(scale * targets)
        found.append(als.total() / scale)
    torch.testing.assert_close(found[0], found[1], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("spec", ["pairs:1+tables", "bias+tables:0", "cp:1+tables:0/1/2"])
def test_a_table_over_the_modes_of_another_block_has_rows_of_its_own(spec):
    """A combination of labels is one row of a table, but a row per mode of a product over the same modes."""
    indices, targets = cells(), normal(700, 7)
    g = started(spec, indices)
    als = make(g, indices, targets, ridge=0.1, pull=1.0)
    als.sweep(targets)
    torch.testing.assert_close(als.total(), g(indices).detach(), rtol=1e-4, atol=1e-5)


def company_problem(seed=0, rank=2, entries=60, shape=(6, 5, 4)):
    """A table of implicit labels with everything that its solution depends on."""
    generator = torch.Generator().manual_seed(seed)
    indices = cells(entries, shape, seed)
    block = SharedPairs(shape, rank, [(0, 1)])
    block.see(indices)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    one = block.implicit_feedback[0]
    assert isinstance(one, ImplicitFeedback)
    left, weights = (torch.randn(entries, generator=generator), torch.rand(entries, generator=generator))
    ridge = 0.3 + torch.rand(rank, generator=generator)
    prior = torch.randn(shape[1], rank, generator=generator)
    return indices, block, one, left, weights, ridge, prior


def by_dense_solve(indices, block, one, left, weights, ridge, prior):
    """The table that minimises Σ w (left − change of the value)² + Σ ridge (y − prior)², one column per number."""
    start = one.table.detach().clone()
    before = block(indices).detach().double()
    columns = []
    for number in range(start.numel()):  # the block is linear in the table: moving one number gives its column
        with torch.no_grad():
            one.table.view(-1)[number] += 1
            columns.append((block(indices).detach().double() - before).numpy())
            one.table.copy_(start)
    design, root = np.stack(columns, axis=1), np.sqrt(weights.double().numpy())
    old = start.double().numpy().ravel()
    strength = np.sqrt(np.tile(ridge.double().numpy(), len(start)))
    system = np.vstack([root[:, None] * design, np.diag(strength)])
    right = np.concatenate([root * (left.double().numpy() + design @ old), strength * prior.double().numpy().ravel()])
    return np.linalg.lstsq(system, right, rcond=None)[0].reshape(start.shape)


def solved(indices, block, one, left, weights, ridge, prior, engine="numba"):
    """Solve the table in place, from the systems of an engine; returns by how much the vectors of mode 0 change."""
    view = ModeView.of(indices, 0, [1, 2], one.size)
    others = [table.detach() for table in block.whole_tables()[1:]]
    entries = RowEntries(view, others, left, weights, sums=True)
    systems = pick_engine(engine, "cpu").row_systems(entries, one.table.shape[1])
    return solve_implicit_feedback(one, Seen.of(one), systems, ridge, prior)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_implicit_labels_are_the_dense_least_squares_solution(engine, weighed, seed):
    indices, block, one, left, weights, ridge, prior = company_problem(seed)
    expected = by_dense_solve(indices, block, one, left, weights if weighed else torch.ones(60), ridge, prior)
    before = block.whole_tables()[0].detach()
    moved = solved(indices, block, one, left, weights if weighed else None, ridge, prior, engine)
    np.testing.assert_allclose(one.table.detach().numpy(), expected, atol=2e-3)  # stops at 1e-4 of the residual
    torch.testing.assert_close(moved, block.whole_tables()[0].detach() - before, rtol=1e-4, atol=1e-4)


def test_a_ridge_that_is_huge_leaves_only_what_it_draws_to():
    *problem, ridge, prior = company_problem()
    solved(*problem, 1e6 * ridge, prior)
    torch.testing.assert_close(problem[2].table.detach(), prior, rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_conjugate_gradients_solve_symmetric_positive_systems(seed):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((12, 12))
    system = torch.as_tensor(root @ root.T + 5 * np.eye(12))
    right = torch.as_tensor(rng.standard_normal((12, 1)))
    found = conjugate_gradients(lambda x: system @ x, right)
    assert float((system @ found - right).norm() / right.norm()) <= 1e-4
    np.testing.assert_allclose(found.numpy(), np.linalg.solve(system.numpy(), right.numpy()), atol=1e-3)


@pytest.mark.parametrize(
    "system", [torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 0.0, 1e-30])), torch.full((3, 3), 1e30)]
)
def test_hopeless_systems_give_something_finite(system):
    assert torch.isfinite(conjugate_gradients(lambda x: system @ x, torch.ones(3, 1))).all()


def test_nothing_on_the_right_is_solved_by_nothing():
    assert not conjugate_gradients(lambda x: 2 * x, torch.zeros(4, 2)).any()
