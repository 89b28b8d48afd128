"""Kinds of blocks: a kind of one's own is one registration; what every block promises to solvers and to growth."""

import numpy as np
import pytest
import torch

from jointensor.errors import ConfigError
from jointensor.kernels import pick_engine
from jointensor.models.blocks.base import KINDS, Block, Kind, no_argument, register
from jointensor.models.blocks.spec import by_position, parse_blocks, split_residual_blocks
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.systems import SystemsInMemory

SHAPE, LARGER = (5, 4, 3), (7, 4, 6)
SPECS = ["mean", "bias", "cp:2", "pairs:2", "fm:2", "tables", "tucker:4", "mean+bias+cp:2+fm:3+tables:0/2+tucker:2x3x2"]


def all_cells(shape):
    return torch.as_tensor(np.argwhere(np.ones(shape)))


def random_part(spec, shape=SHAPE, seed=0):
    part = Multilinear(shape, spec)
    part.see(all_cells(shape))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in part.state_dict().items():
            if value.is_floating_point() and not name.startswith("draws"):
                value.copy_(torch.randn(value.shape, generator=generator))
    return part


class Slope(Block):
    """a · i_0: a block with one number that is not a constant."""

    modes = (0,)

    def __init__(self):
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(()))

    def forward(self, indices):
        return self.number * indices[:, 0]


@pytest.fixture
def slope():
    register(Kind("slope", ("slope",), "slope", no_argument, lambda *_: {"slope": Slope()}))
    yield
    del KINDS["slope"]


def test_a_kind_that_is_registered_is_part_of_specifications(slope):
    assert by_position("mean + slope", int) == "mean+slope"
    g = Multilinear(SHAPE, "slope")
    g.init(0.0, 1.0)
    with torch.no_grad():
        g.blocks["slope"].number.fill_(2.0)
    assert torch.equal(g(all_cells(SHAPE)), 2.0 * all_cells(SHAPE)[:, 0])
    larger = Multilinear(LARGER, "slope")
    larger.grow_from(g)
    assert larger(torch.tensor([[6, 0, 0]])).tolist() == [12.0]
    with pytest.raises(ConfigError, match="already a multilinear block called 'slope'"):
        register(KINDS["slope"])


def test_a_kind_that_is_not_registered_is_none():
    with pytest.raises(ConfigError, match="there is no multilinear block 'slope'"):
        parse_blocks("slope")


def test_blocks_that_memorise_are_fitted_to_residuals_unless_they_are_sampled():
    spec = "mean+cp:4+tables:0/1+local:2"
    drawn, not_drawn = ("mean+cp:4+tables:0/1", "local:2"), ("mean+cp:4", "tables:0/1", "local:2")
    for sampled, expected in ((True, drawn), (False, not_drawn)):
        trained, later = split_residual_blocks(spec, sampled=sampled)
        assert (trained, *map(str, later)) == expected


@pytest.mark.parametrize("spec", SPECS)
def test_a_larger_model_says_the_same_of_known_cells(spec):
    part, larger = random_part(spec), Multilinear(LARGER, spec)
    larger.grow_from(part)
    cells = all_cells(SHAPE)
    torch.testing.assert_close(larger(cells), part(cells), rtol=1e-5, atol=1e-5)
    assert torch.isfinite(larger(all_cells(LARGER))).all()


def test_new_labels_of_tucker_start_at_the_mean_of_the_known_ones():
    part, larger = random_part("tucker:4"), Multilinear(LARGER, "tucker:4")
    larger.grow_from(part)
    assert larger.blocks["tucker"].ranks == (4, 4, 4)  # one more than the last mode had labels
    cells = all_cells(SHAPE).view(*SHAPE, 3)
    expected = part(cells[:, 1, 2]).mean()  # the model is linear in the rows of the first mode
    torch.testing.assert_close(larger(torch.tensor([[6, 1, 2]]))[0], expected)


@pytest.mark.parametrize("spec", SPECS)
def test_a_draw_of_a_block_gives_its_values_and_grows_with_it(spec):
    part, larger, cells = random_part(spec), Multilinear(LARGER, spec), all_cells(SHAPE)
    larger.see(all_cells(LARGER))
    for name, block in part.named_blocks.items():
        draw = block.draw()
        torch.testing.assert_close(block.values_of_draw(draw, cells), block(cells))
        if block.multiplies and block.solvable:
            grown = larger.named_blocks[name].grow_draw(block, draw)
            torch.testing.assert_close(larger.named_blocks[name].values_of_draw(grown, cells), block(cells))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("level", [0.0, 2.5])
def test_one_block_carries_the_level_and_a_constant_needs_a_mean(spec, level):
    part = random_part(spec)
    constant = part.become(level)
    assert constant == ("mean" in spec or level == 0)
    assert torch.equal(part(all_cells(SHAPE)), torch.full((60,), level if "mean" in spec else 0.0))


@pytest.mark.parametrize("spec", SPECS)
def test_what_solvers_solve_fits_the_targets_better(spec):
    part, cells = random_part(spec), all_cells(SHAPE)
    if not all(block.solvable for block in part.named_blocks.values()):
        return
    targets = torch.randn(60, generator=torch.Generator().manual_seed(1))
    als = Als(part, SystemsInMemory(part, cells, pick_engine("reference", "cpu")), spread=1.0)
    als.ridge, als.pull = 1e-6, 1e-6
    before = float((als.total() - targets).square().mean())
    als.sweep(targets)
    after = float((als.total() - targets).square().mean())
    assert after < min(before, float(targets.square().mean()))
    torch.testing.assert_close(part(cells).detach(), als.total(), rtol=1e-4, atol=1e-4)
