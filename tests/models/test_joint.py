"""x̂ = g + f: the halves, their sum, and how a model is described and built again."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.models.nonlinear import Julia, Nonlinear

SHAPES = [(4, 3), (3, 4, 2), (2, 3, 2, 3), (2, 2, 3, 2, 2)]


class Plain(nn.Module):
    """A network of the user's own, not registered, not derived from anything of ours."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.layer = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        return self.layer(rows.flatten(1)).tanh().squeeze(-1)


def randomise(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def all_cells(shape):
    return torch.as_tensor(np.argwhere(np.ones(shape)))


def gathered(tables, indices):
    return torch.stack([table[indices[:, n]] for n, table in enumerate(tables)], dim=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_value_is_the_einsum_of_a_plus_the_network_of_b(shape):
    model = randomise(JointModel(shape, (3, 2))).double()
    cells = all_cells(shape)
    letters = "abcde"[: len(shape)]
    terms = ",".join(f"{letter}r" for letter in letters)
    g = torch.einsum(f"{terms}->{letters}", *model.linear_factors).flatten()
    f = model.nonlinear.part(gathered(model.nonlinear_factors, cells))
    assert f.abs().max() > 0
    torch.testing.assert_close(model(cells), g + f, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_both_halves_agree_with_finite_differences(shape):
    model = randomise(JointModel(shape, (2, 2), nonlinear="julia,output=softplus,activation=tanh,mixed=tanh")).double()
    names, parameters = zip(*model.named_parameters(), strict=True)
    cells = all_cells(shape)[::2]

    def value(*given_parameters):
        return torch.func.functional_call(model, dict(zip(names, given_parameters, strict=True)), (cells,))

    assert torch.autograd.gradcheck(value, parameters)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_nonlinear_components_the_model_is_cp_bit_for_bit(shape):
    model = randomise(JointModel(shape, (3, 0)))
    cells = all_cells(shape)
    alone = Multilinear(shape, "cp:3")
    alone.load_state_dict(model.multilinear.state_dict())
    assert model.nonlinear is None
    assert model.nonlinear_parameters() == []
    assert model.nonlinear_factors == []
    assert torch.equal(model(cells), alone(cells))
    assert torch.equal(model(cells), gathered(model.linear_factors, cells).prod(dim=1).sum(dim=1))


@pytest.mark.parametrize("shape", SHAPES)
def test_without_linear_components_the_model_is_f_bit_for_bit(shape):
    model = randomise(JointModel(shape, (0, 3)))
    cells = all_cells(shape)
    alone = Julia(len(shape), 3)
    alone.load_state_dict(model.nonlinear.part.state_dict())
    assert model.multilinear is None
    assert model.linear_parameters() == []
    assert model.linear_factors == []
    assert torch.equal(model(cells), alone(gathered(model.nonlinear_factors, cells)))


def test_a_batch_of_one_and_indices_of_32_bits():
    model = randomise(JointModel((3, 4, 2), (2, 2)))
    cells = all_cells((3, 4, 2))
    assert model(cells[7:8]).shape == (1,)
    torch.testing.assert_close(model(cells[7:8]), model(cells)[7:8])
    assert torch.equal(model(cells.int()), model(cells))


def test_the_two_halves_share_no_parameter_and_leave_none_out():
    model = JointModel((3, 4, 2), (2, 3), linear="mean+bias+cp:2")
    linear, nonlinear = ({id(p) for p in half} for half in (model.linear_parameters(), model.nonlinear_parameters()))
    assert not linear & nonlinear
    assert linear | nonlinear == {id(p) for p in model.parameters()}
    # mean, biases, A; B; MLP 9 → 9 → 3, gate, head
    assert model.n_parameters() == 1 + 9 + 18 + 27 + (9 * 9 + 9) + (9 * 3 + 3) + 3 + (3 + 1)


def test_factors_have_a_row_per_label_and_a_column_per_component():
    model = JointModel((3, 4, 2), (5, 6))
    assert [tuple(table.shape) for table in model.linear_factors] == [(3, 5), (4, 5), (2, 5)]
    assert [tuple(table.shape) for table in model.nonlinear_factors] == [(3, 6), (4, 6), (2, 6)]


def test_spelled_out_blocks_replace_r():
    model = JointModel((3, 4, 2), (5, 6), linear="mean+bias+cp:2")
    assert model.linear_factors[0].shape == (3, 2)
    assert JointModel((3, 4), (5, 0), linear="mean+bias").linear_factors == []


def test_the_softplus_link_makes_values_positive():
    model = randomise(JointModel((3, 4, 2), (2, 2)))
    cells = all_cells((3, 4, 2))
    score = model(cells).detach().double().numpy()
    assert score.min() < 0
    model.link = "softplus"
    found = model(cells).detach().numpy()
    assert found.min() > 0
    np.testing.assert_allclose(found, np.log1p(np.exp(score)), rtol=1e-5)
    torch.testing.assert_close(model.score(cells).double().detach(), torch.as_tensor(score))


@pytest.mark.parametrize(
    ("nonlinear", "options"),
    [
        ("julia", {}),
        ("julia,gate=sigmoid,hidden=5", {"gate": "sigmoid", "hidden": 5}),
        (Julia, {}),
        (Julia(3, 4, activation="tanh"), {"activation": "tanh"}),
    ],
)
def test_f_is_given_as_a_name_with_options_a_class_or_an_instance(nonlinear, options):
    part = JointModel((3, 4, 2), (2, 4), nonlinear=nonlinear).nonlinear.part
    assert isinstance(part, Julia)
    assert (part.n_modes, part.width) == (3, 4)
    assert part.options == Julia(3, 4, **options).options
    if isinstance(nonlinear, nn.Module):
        assert part is nonlinear


@pytest.mark.parametrize("given", ["class", "instance"])
def test_f_may_be_any_torch_module(given):
    model = randomise(JointModel((3, 4, 2), (0, 4), nonlinear=Plain if given == "class" else Plain(3, 4)))
    cells = all_cells((3, 4, 2))
    rows = gathered(model.nonlinear_factors, cells).flatten(1)
    weight, bias = model.nonlinear.part.layer.weight, model.nonlinear.part.layer.bias
    torch.testing.assert_close(model(cells), torch.tanh(rows @ weight[0] + bias))


@pytest.mark.parametrize(
    ("rank", "options", "link"),
    [
        ((2, 3), {}, "identity"),
        ((2, 0), {}, "identity"),
        ((0, 3), {"nonlinear": "julia,gate=sigmoid,activation=leaky_relu,hidden=6"}, "softplus"),
        ((2, 3), {"linear": "mean+bias+cp:4", "nonlinear": "julia,output=identity"}, "softplus"),
    ],
)
def test_a_model_built_from_its_configuration_with_its_weights_predicts_the_same(rank, options, link):
    model = randomise(JointModel((3, 4, 2), rank, **options))
    model.link = link
    config = json.loads(json.dumps(model.config()))
    again = JointModel.from_config(config)
    assert again.config() == model.config()
    again.load_state_dict(model.state_dict())
    cells = all_cells((3, 4, 2))
    assert torch.equal(again(cells), model(cells))


def test_a_model_with_a_class_of_the_users_is_built_again_when_given_the_class():
    model = randomise(JointModel((3, 4, 2), (2, 4), nonlinear=Plain))
    with pytest.raises(ConfigError, match="Plain"):
        JointModel.from_config(model.config())
    again = JointModel.from_config(model.config(), Plain)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(all_cells((3, 4, 2))), model(all_cells((3, 4, 2))))


def test_a_configuration_with_an_unknown_link_is_refused():
    config = JointModel((3, 4), (2, 0)).config() | {"link": "cube"}
    with pytest.raises(ConfigError, match="link 'cube' is not one of identity, softplus"):
        JointModel.from_config(config)


@pytest.mark.parametrize(
    "rank", [(-1, 2), (2, -1), (2.5, 1), (1, 2, 3), (4,), 4, "4/16", ("a", "b"), (float("nan"), 1), (1, float("inf"))]
)
def test_ranks_that_are_not_two_whole_numbers_are_refused_as_given(rank):
    with pytest.raises(ConfigError, match="two whole numbers") as caught:
        JointModel((3, 4), rank)
    assert repr(rank) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": (0, 0)}, "rank 0/0 leaves nothing to fit"),
        ({"linear": "biass"}, "did you mean 'bias'"),
        ({"nonlinear": "jula"}, "did you mean 'julia'"),
        ({"nonlinear": "julia,gat=free"}, "nonlinear part 'julia' has no option 'gat'; did you mean 'gate'"),
        ({"nonlinear": "julia,activation=rellu"}, "did you mean 'relu'"),
        ({"nonlinear": "julia,gate"}, "'gate' in 'julia,gate' is not an option"),
        ({"nonlinear": "julia,width=3"}, "has no option 'width'"),
        ({"nonlinear": 7}, "not 7"),
        ({"nonlinear": int}, "a torch module or a class of one"),
    ],
)
def test_bad_arguments_are_refused_with_the_nearest_word(arguments, message):
    with pytest.raises(ConfigError, match=message):
        JointModel((3, 4), **arguments)


def test_a_tensor_of_one_mode_is_refused():
    with pytest.raises(ConfigError, match="at least two modes"):
        JointModel((3,), (2, 2))


def test_the_contract_of_f_says_when_forward_is_missing():
    with pytest.raises(NotImplementedError):
        Nonlinear(3, 2)(torch.zeros(1, 3, 2))


@pytest.mark.parametrize("batch", [1, 5, 24, 100])
def test_evaluation_in_batches_is_evaluation_at_once_without_gradients(batch):
    model = randomise(JointModel((3, 4, 2), (2, 2)))
    cells = all_cells((3, 4, 2))
    found = evaluate_in_batches(model, cells, batch)
    assert not found.requires_grad
    torch.testing.assert_close(found, model(cells).detach())
    assert evaluate_in_batches(model, cells[:0], batch).shape == (0,)


def test_evaluation_in_batches_asks_for_no_gradients_even_of_a_view_of_a_parameter():
    level = nn.Parameter(torch.tensor(7.0))
    found = evaluate_in_batches(lambda indices: level.expand(len(indices)), all_cells((3, 4)), 5)
    assert not found.requires_grad
    assert found.tolist() == [7.0] * 12


def test_repr_names_shape_blocks_and_size():
    assert repr(JointModel((10, 8), (2, 0), linear="mean+cp:2")) == "JointModel 10 x 8: mean+cp:2, 37 parameters"
    assert repr(JointModel((10, 8), (0, 1))).startswith("JointModel 10 x 8: julia of width 1, ")
