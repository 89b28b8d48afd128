"""Where training starts: moments against samples, levels against the values."""

import numpy as np
import pytest
import torch
from torch import nn

from jointensor.models.blocks.product import product_scales
from jointensor.models.joint import JointModel
from jointensor.training.init import LIFT, SPREAD, Levels, initialise


class Headless(nn.Module):
    """A network whose level cannot be set."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.layer = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        return self.layer(rows.flatten(1)).squeeze(-1)


def values_of(mean, spread, entries=2000):
    values = np.random.default_rng(0).standard_normal(entries)
    return torch.as_tensor(mean + spread * (values - values.mean()) / values.std(), dtype=torch.float32)


def random_cells(shape, entries, seed=0):
    rng = np.random.default_rng(seed)
    return torch.as_tensor(np.stack([rng.integers(size, size=entries) for size in shape], axis=1))


def start(model, values, kind="data", seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return initialise(model, (float(values.mean()), float(values.std(correction=0))), start=kind)


@pytest.mark.parametrize("modes", [2, 3, 4])
@pytest.mark.parametrize(("level", "spread"), [(0.0, 1.0), (3.0, 0.5), (1.0, 2.0)])
def test_products_of_factors_have_the_mean_and_spread_asked_for(modes, level, spread):
    rank = 3
    centre, scale = product_scales(level, spread, rank, modes)
    rng = np.random.default_rng(modes)
    samples = rng.normal(centre, scale, (400_000, modes, rank)).prod(axis=1).sum(axis=1)
    assert samples.mean() == pytest.approx(level, abs=5 * spread / np.sqrt(400_000))
    assert samples.std() == pytest.approx(spread, rel=0.02)


@pytest.mark.parametrize("mean", [5.0, 0.0, -5.0])
def test_pure_cp_starts_around_the_mean_with_a_share_of_the_spread(mean):
    model = JointModel((300, 300, 300), (4, 0))
    levels = start(model, values_of(mean, 2.0))
    assert levels.linear == pytest.approx(mean, abs=1e-5)
    assert levels.nonlinear == 0
    found = model(random_cells(model.shape, 20_000)).detach()
    assert found.mean().item() == pytest.approx(mean, abs=0.1)
    assert found.std().item() == pytest.approx(SPREAD * 2.0, rel=0.1)


@pytest.mark.parametrize(("mean", "lifted"), [(5.0, 5.0), (0.0, LIFT * 2.0), (-5.0, LIFT * 2.0)])
def test_the_output_of_the_network_starts_at_the_mean_or_just_above_zero(mean, lifted):
    model = JointModel((30, 20, 10), (2, 4))
    levels = start(model, values_of(mean, 2.0))
    assert levels.nonlinear == pytest.approx(lifted, abs=1e-5)
    assert levels.linear + levels.nonlinear == pytest.approx(mean, abs=1e-5)
    found = model.nonlinear.part(torch.zeros(1, 3, 4)).item()
    assert found == pytest.approx(lifted, abs=1e-5)


def test_what_the_network_does_not_hold_of_the_mean_is_in_the_mean_block():
    model = JointModel((30, 20, 10), (2, 4), linear="mean+bias+cp:2")
    levels = start(model, values_of(-5.0, 2.0))
    assert model.multilinear.blocks["mean"].constant.item() == pytest.approx(levels.linear)
    assert all(not model.multilinear.blocks[f"bias_{n}"].factors.tables[0].any() for n in range(3))
    cp = model.multilinear.blocks["cp"](random_cells(model.shape, 20_000)).detach()
    assert cp.mean().item() == pytest.approx(0.0, abs=0.3)


def test_a_network_without_a_head_leaves_the_mean_to_the_multilinear_half():
    levels = start(JointModel((30, 20, 10), (2, 4), nonlinear=Headless), values_of(5.0, 2.0))
    assert levels.nonlinear == 0.0
    assert levels.linear == pytest.approx(5.0, abs=1e-5)


@pytest.mark.parametrize("mean", [0.05, 3.0, 100.0])
def test_with_the_softplus_link_the_starting_score_becomes_the_mean(mean):
    model = JointModel((30, 20, 10), (2, 4))
    model.link = "softplus"
    levels = start(model, values_of(mean, 0.01))
    assert np.logaddexp(0.0, levels.linear + levels.nonlinear) == pytest.approx(mean, rel=1e-4)


def test_a_raw_start_has_standard_normal_factors_and_no_level():
    model = JointModel((300, 300, 300), (4, 4))
    assert start(model, values_of(5.0, 2.0), "raw") == Levels(0.0, 0.0)
    for table in (*model.linear_factors, *model.nonlinear_factors):
        assert table.mean().item() == pytest.approx(0.0, abs=0.15)
        assert table.std().item() == pytest.approx(1.0, rel=0.1)
    assert abs(model.nonlinear.part.head.bias.item()) <= 0.5  # torch's own range for a width of 4


@pytest.mark.parametrize("kind", ["data", "raw"])
def test_nothing_of_the_former_weights_is_left(kind):
    one, other = JointModel((6, 5, 4), (2, 3)), JointModel((6, 5, 4), (2, 3))
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.fill_(1e6)
    values = values_of(1.0, 1.0)
    assert start(one, values, kind) == start(other, values, kind)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    start(other, values, kind, seed=1)
    assert not torch.equal(one.nonlinear_factors[0], other.nonlinear_factors[0])
    assert not torch.equal(one.linear_factors[0], other.linear_factors[0])
    assert not torch.equal(one.nonlinear.part.mlp[0].weight, other.nonlinear.part.mlp[0].weight)


def test_a_bounded_output_is_not_pushed_to_where_it_saturates():
    model = JointModel((5, 6), (1, 4), nonlinear="julia,output=tanh")
    levels = initialise(model, (50.5, 0.3), start="data")
    assert levels.nonlinear == 0.0
    assert float(model.nonlinear.part.head.bias.detach().abs()) < 1
