"""Rows of neighbouring labels that are alike: ``smooth:A`` and ``cyclic:A``."""

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.kernels import pick_engine
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.gibbs import Gibbs, Level
from jointensor.solvers.systems import SystemsInMemory
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

DAYS = 120


def waves(*, sparse=900, seed=0):
    """People whose numbers go up and down over the days, each by a factor of their own; few entries a day."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(30 * DAYS)[:sparse]
    indices = np.stack([cells // DAYS, cells % DAYS], axis=1)
    wave = 2 * np.sin(2 * np.pi * np.arange(DAYS) / 40)
    truth = (1 + rng.random(30))[indices[:, 0]] * wave[indices[:, 1]]
    return split(SparseTensor(indices, truth + 0.7 * rng.standard_normal(sparse), (30, DAYS)), seed=0)


@pytest.mark.parametrize("solver", ["als", "gibbs"])
@pytest.mark.parametrize("blocks", ["mean+bias", "mean+bias+cp:2", "mean+bias+fm:2"])
def test_smooth_rows_predict_better_where_days_are_alike(solver, blocks):
    parts, errors = waves(), {}
    recipe = make_recipe("default", linear_solver=solver, fall_back=False, burn_in=40, draws=50)
    for spec in (blocks, f"{blocks}+smooth:1"):
        found = fit(JointModel(parts.train.shape, (0, 0), linear=spec), parts, recipe, device="cpu")
        errors[spec] = rmse(found.predict(parts.test.indices), parts.test.values)
    assert errors[f"{blocks}+smooth:1"] < 0.98 * errors[blocks]


def started(spec, shape=(4, 7), rank_seed=0):
    torch.manual_seed(rank_seed)
    g = Multilinear(shape, spec)
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter)
    indices = torch.cartesian_prod(*(torch.arange(size) for size in shape))
    return g, indices


@pytest.mark.parametrize(("word", "ends"), [("smooth", (1, 5)), ("cyclic", (6, 0))])
def test_the_ends_of_a_mode_lean_on_what_is_next_to_them(word, ends):
    """An ordered mode ends, and its last row has one neighbour, which counts twice; a cyclic one goes round."""
    g, indices = started(f"cp:2+{word}:1")
    als = Als(g, SystemsInMemory(g, indices, pick_engine("reference", "cpu")), spread=1.0)
    table = g.blocks["cp"].tables[1]
    near = als.neighbour_mean(als.blocks["cp"], 1)
    torch.testing.assert_close(near[3], (table[2] + table[4]) / 2)
    torch.testing.assert_close(near[0], (table[1] + table[ends[0]]) / 2)
    torch.testing.assert_close(near[-1], (table[-2] + table[ends[1]]) / 2)
    assert als.neighbour_mean(als.blocks["cp"], 0) is None


@pytest.mark.parametrize("spec", ["cp:2+smooth:1", "fm:2+cyclic:1", "mean+bias+cp:2+smooth:0+smooth:1"])
def test_values_stay_those_of_the_tables(spec):
    g, indices = started(spec)
    als = Als(g, SystemsInMemory(g, indices, pick_engine("reference", "cpu")), spread=1.0)
    als.ridge, als.pull = 0.1, 1.0
    targets = torch.randn(len(indices))
    for _ in range(3):
        als.sweep(targets)
        torch.testing.assert_close(als.total(), g(indices).detach(), rtol=1e-4, atol=1e-4)


def test_draws_of_smooth_numbers_are_those_of_their_joint_posterior():
    """Numbers along a ring, every other one at a time, against the dense Gaussian posterior."""
    torch.manual_seed(0)
    g = Multilinear((5, 6), "bias+cyclic:1")
    indices = torch.tensor([[0, 0], [0, 1], [1, 1], [2, 3], [3, 3], [4, 3]])
    targets = torch.tensor([1.0, 2.0, 1.5, -1.0, -2.0, -0.5])
    gibbs = Gibbs(g, SystemsInMemory(g, indices, pick_engine("reference", "cpu")), spread=1.0)
    gibbs.noise = 0.5
    zero = torch.zeros(1)
    gibbs.levels["bias_1", 0] = Level(zero, torch.ones(1), 2 * torch.ones(1))
    block, total, squares, draws = gibbs.blocks["bias_1"], torch.zeros(6), torch.zeros(6), 6000
    for _ in range(draws):
        gibbs.systems.begin_sweep(targets, None)
        gibbs.solve_block("bias_1")
        total += block.tables[0][:, 0]
        squares += block.tables[0][:, 0].square()
    around = 2 * torch.eye(6) - torch.eye(6).roll(1, 0) - torch.eye(6).roll(-1, 0)  # Σ of squared steps round the ring
    precision = torch.eye(6) + 2 * around + torch.diag(torch.bincount(indices[:, 1], minlength=6) / 0.5)
    sums = torch.zeros(6).index_add(0, indices[:, 1], targets) / 0.5
    covariance = torch.linalg.inv(precision)
    mean = total / draws
    torch.testing.assert_close(mean, covariance @ sums, atol=0.04, rtol=0)  # neighbouring draws are alike
    torch.testing.assert_close(squares / draws - mean.square(), covariance.diagonal(), atol=0.02, rtol=0.1)


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_every_other_row_is_solved_with_its_own_ridge(monkeypatch, engine):
    """Labels with very different numbers of entries, against the normal equations of every row."""
    monkeypatch.setattr("jointensor.solvers.als.rebalance", lambda tables: None)
    torch.manual_seed(1)
    g = Multilinear((6, 5), "cp:2+smooth:1")
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter)
    indices = torch.tensor([(i % 6, day) for day in range(5) for i in range(3 + 4 * day)])
    targets = torch.randn(len(indices))
    als = Als(g, SystemsInMemory(g, indices, pick_engine(engine, "cpu")), spread=1.0)
    als.ridge, als.smoothness = 0.3, 10.0
    solved = g.blocks["cp"].tables[1].double().clone()
    als.sweep(targets)
    first, days = (table.double() for table in g.blocks["cp"].tables)
    counts = torch.bincount(indices[:, 1]).double()
    stiffness = 10.0 * 0.3 * counts.mean()
    for day in (0, 2, 4, 1, 3):  # even days from the odd ones before the sweep, then odd days from the even ones
        here = indices[:, 1] == day
        rows = first[indices[here, 0]]  # (entries, R)
        near = (solved[day - 1 if day else 1] + solved[day + 1 if day < 4 else 3]) / 2
        system = rows.T @ rows + (0.3 * counts[day] + stiffness) * torch.eye(2, dtype=torch.float64)
        solved[day] = torch.linalg.solve(system, rows.T @ targets[here].double() + stiffness * near)
    torch.testing.assert_close(days, solved, rtol=1e-3, atol=1e-3)
