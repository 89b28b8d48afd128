"""g against dense einsum and NumPy broadcasting on tensors small enough to hold whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.errors import ConfigError
from jointensor.models.blocks import linear_spec, parse_blocks
from jointensor.models.multilinear import Multilinear

SHAPES = [(4, 3), (3, 4, 2), (2, 3, 2, 3), (2, 2, 3, 2, 2)]


def all_cells(shape):
    return torch.as_tensor(np.argwhere(np.ones(shape)))


def random_part(shape, spec, seed=0):
    part = Multilinear(shape, spec).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return part


def dense_cp(tables):
    letters = "abcde"[: len(tables)]
    terms = ",".join(f"{letter}r" for letter in letters)
    return np.einsum(f"{terms}->{letters}", *(table.detach().numpy() for table in tables))


def value_of(part, indices):
    """The part as a function of its parameters, for gradient checks."""
    names, parameters = zip(*part.named_parameters(), strict=True)

    def value(*given_parameters):
        return torch.func.functional_call(part, dict(zip(names, given_parameters, strict=True)), (indices,))

    return value, parameters


@pytest.mark.parametrize("shape", SHAPES)
def test_cp_of_every_cell_is_the_dense_einsum(shape):
    part = random_part(shape, "cp:3")
    found = part(all_cells(shape)).detach().numpy().reshape(shape)
    np.testing.assert_allclose(found, dense_cp(part.cp.tables), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_mean_bias_and_cp_add_up(shape):
    part = random_part(shape, "mean+bias+cp:2")
    dense = dense_cp(part.cp.tables) + part.blocks["mean"].constant.item()
    for n, size in enumerate(shape):
        bias = part.blocks[f"bias_{n}"].factors.tables[0].detach().numpy()
        assert bias.shape == (size, 1)
        dense = dense + bias.reshape([size if m == n else 1 for m in range(len(shape))])
    np.testing.assert_allclose(part(all_cells(shape)).detach().numpy().reshape(shape), dense, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tucker_block_stands_beside_the_others(shape):
    part = random_part(shape, "mean+bias+cp:2+tucker:2")
    cells = all_cells(shape)
    tucker = part.blocks["tucker"]
    assert tucker.ranks == (2,) * len(shape)
    assert tucker(cells).abs().max() > 0.1
    without = random_part(shape, "mean+bias+cp:2")
    without.load_state_dict({k: v for k, v in part.state_dict().items() if "tucker" not in k})
    torch.testing.assert_close(part(cells), without(cells) + tucker(cells), rtol=1e-12, atol=1e-12)


def test_a_tucker_block_alone_has_no_cp():
    assert Multilinear((3, 4), "tucker:2x3").cp is None
    assert Multilinear((3, 4), "tucker:2x3").blocks["tucker"].ranks == (2, 3)


def test_the_mean_alone_is_one_number_for_every_entry():
    part = random_part((3, 4), "mean")
    found = part(all_cells((3, 4)))
    assert found.shape == (12,)
    assert set(found.tolist()) == {part.blocks["mean"].constant.item()}


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_agree_with_finite_differences(shape):
    part = random_part(shape, "mean+bias+cp:2")
    indices = all_cells(shape)[::3]
    indices = torch.cat([indices, indices[:2]])  # an entry twice: its gradients add up
    assert torch.autograd.gradcheck(*value_of(part, indices))


def test_gradients_are_right_where_factors_are_zero():
    part = random_part((3, 2, 2), "cp:2")
    with torch.no_grad():
        part.cp.tables[0][0] = 0.0
        part.cp.tables[1][1] = 0.0
    assert torch.autograd.gradcheck(*value_of(part, all_cells((3, 2, 2))))


@given(st.permutations(range(4)), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_permuting_modes_with_their_tables_leaves_g_unchanged(order, seed):
    shape = (2, 3, 4, 2)
    part = random_part(shape, "mean+bias+cp:3", seed)
    moved = Multilinear([shape[n] for n in order], "mean+bias+cp:3").double()
    with torch.no_grad():
        moved.blocks["mean"].constant.copy_(part.blocks["mean"].constant)
        for new, old in enumerate(order):
            moved.cp.tables[new].copy_(part.cp.tables[old])
            moved.blocks[f"bias_{new}"].factors.tables[0].copy_(part.blocks[f"bias_{old}"].factors.tables[0])
    cells = all_cells(shape)
    torch.testing.assert_close(moved(cells[:, order]), part(cells), rtol=1e-12, atol=1e-12)


@given(st.floats(0.01, 100), st.sampled_from([-1, 1]), st.permutations(range(3)), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_scaling_one_table_and_unscaling_another_leaves_g_unchanged(size, sign, modes, seed):
    part = random_part((3, 4, 2), "cp:3", seed)
    cells = all_cells((3, 4, 2))
    before = part(cells).detach()
    with torch.no_grad():
        part.cp.tables[modes[0]].mul_(sign * size)
        torch.testing.assert_close(part(cells), sign * size * before, rtol=1e-11, atol=1e-11)
        part.cp.tables[modes[1]].div_(sign * size)
    torch.testing.assert_close(part(cells), before, rtol=1e-11, atol=1e-11)


def test_permuting_components_leaves_g_unchanged_and_dropping_one_does_not():
    part = random_part((3, 4, 2), "cp:3")
    cells = all_cells((3, 4, 2))
    before = part(cells).detach()
    with torch.no_grad():
        for table in part.cp.tables:
            table.copy_(table[:, [2, 0, 1]])
    torch.testing.assert_close(part(cells), before, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        part.cp.tables[0][:, 0] = 0.0
    assert (part(cells) - before).abs().max() > 1e-3


def test_a_batch_of_one_is_a_batch():
    part = random_part((3, 4, 2), "mean+bias+cp:2")
    cells = all_cells((3, 4, 2))
    one = part(cells[5:6])
    assert one.shape == (1,)
    torch.testing.assert_close(one, part(cells)[5:6], rtol=1e-14, atol=0)


def written(spec):
    return {piece.kind.name: piece.numbers for piece in parse_blocks(spec)}


def test_linear_spec_is_the_cp_of_the_papers_rank():
    assert linear_spec(4) == "cp:4"
    assert linear_spec(0) == ""
    assert written(linear_spec(7)) == {"cp": (7,)}
    assert written("") == {}


def test_blocks_are_names_with_ranks():
    assert written("mean + bias+cp:4 ") == {"mean": (), "bias": (), "cp": (4,)}
    assert written("tucker:5") == {"tucker": (5,)}
    assert written("bias+tucker:20x5x20") == {"bias": (), "tucker": (20, 5, 20)}


@pytest.mark.parametrize(
    "spec",
    [
        *("cp", "cp:", "cp:0", "cp:-1", "cp:two", "cp:2.5", "cp:²", "cp:2x2", "mean:2", "mean:", "bias:1"),
        *("tucker", "tucker:", "tucker:0", "tucker:2x", "tucker:x2", "tucker:2x0", "tucker:2,2", "tucker:-1x2"),
    ],
)
def test_malformed_ranks_are_refused_with_the_piece_as_it_was_written(spec):
    with pytest.raises(ConfigError, match=r"': write (mean|bias|cp:R with R at least 1|tucker:K, or .*)$") as caught:
        Multilinear((2, 3), spec)
    assert f"'{spec}'" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "word"), [("biass", "bias"), ("mean+meen", "mean"), ("cp:2+bia", "bias"), ("tuker:3", "tucker:K")]
)
def test_unknown_blocks_are_refused_with_the_nearest_word(spec, word):
    with pytest.raises(ConfigError, match=f"did you mean '{word}'"):
        Multilinear((2, 3), spec)


def test_a_block_twice_is_refused():
    with pytest.raises(ConfigError, match="block 'cp' occurs twice in 'cp:2\\+cp:3'"):
        Multilinear((2, 3), "cp:2+cp:3")
