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
    """Numbers along a ring against the dense Gaussian posterior; the squared steps sum up to 1 per number."""
    torch.manual_seed(0)
    g = Multilinear((5, 6), "bias+cyclic:1")
    indices = torch.tensor([[0, 0], [0, 1], [1, 1], [2, 3], [3, 3], [4, 3]])
    targets = torch.tensor([1.0, 2.0, 1.5, -1.0, -2.0, -0.5])
    gibbs = Gibbs(g, SystemsInMemory(g, indices, pick_engine("reference", "cpu")), spread=1.0)
    gibbs.noise = 0.5
    zero = torch.zeros(1)
    gibbs.levels["bias_1", 0] = Level(zero, torch.ones(1), 4 * torch.ones(1))
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
