"""f against the paper's formulas written in NumPy, and its gradients against finite differences."""

import math

import numpy as np
import pytest
import torch

from jointensor.errors import ConfigError
from jointensor.models.nonlinear.activations import ACTIVATIONS
from jointensor.models.nonlinear.julia import Julia

ERF = np.vectorize(math.erf)
FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "gelu": lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log(1 + np.exp(x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "identity": lambda x: x,
}


def random_network(n_modes, width, seed=0, **options):
    network = Julia(n_modes, width, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return network


def random_rows(batch, n_modes, width, seed=1):
    return torch.randn(batch, n_modes, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def formula(name, weights, module):
    """σ by name; a PReLU has a slope of its own wherever it stands."""
    if name == "prelu":
        return lambda x: np.where(x > 0, x, weights[f"{module}.weight"] * x)
    return FORMULAS[name]


def by_hand(network, rows, activation="relu", mixed="relu", output="relu", gate="free"):
    """The four equations of the paper for one entry at a time."""
    weights = {name: value.detach().numpy() for name, value in network.state_dict().items()}
    z = weights["gate"] if gate == "free" else 1 / (1 + np.exp(-weights["gate"]))
    values = []
    for entry in rows.numpy():  # (modes, width)
        first = np.ones(entry.shape[1])
        for row in entry:
            first = first * row
        first = formula(activation, weights, "activation")(first)
        hidden = weights["mlp.0.weight"] @ np.concatenate(list(entry)) + weights["mlp.0.bias"]
        second = weights["mlp.2.weight"] @ formula(activation, weights, "mlp.1")(hidden) + weights["mlp.2.bias"]
        blended = z * first + (1 - z) * formula(mixed, weights, "mlp.3")(second)
        values.append(formula(output, weights, "output")(weights["head.weight"] @ blended + weights["head.bias"]))
    return np.concatenate(values)


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
def test_value_is_the_papers_formula(n_modes):
    network, rows = random_network(n_modes, 3), random_rows(40, n_modes, 3)
    with torch.no_grad():  # the output ReLU cuts off half of the entries
        network.head.bias.sub_(float(np.median(by_hand(network, rows, output="identity"))))
    expected = by_hand(network, rows)
    assert (expected > 0).any()
    assert (expected == 0).any()
    np.testing.assert_allclose(network(rows).detach().numpy(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_is_what_its_name_says(name):
    options = {"activation": name, "mixed": name, "output": name}
    network, rows = random_network(3, 2, **options), random_rows(20, 3, 2)
    np.testing.assert_allclose(network(rows).detach().numpy(), by_hand(network, rows, **options), rtol=1e-10)


def test_activation_mixed_and_output_are_set_apart():
    options = {"activation": "tanh", "mixed": "sigmoid", "output": "identity", "gate": "sigmoid"}
    network, rows = random_network(3, 2, **options), random_rows(20, 3, 2)
    np.testing.assert_allclose(network(rows).detach().numpy(), by_hand(network, rows, **options), rtol=1e-12)


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("gate", ["free", "sigmoid"])
def test_gradients_agree_with_finite_differences(n_modes, gate):
    network = random_network(n_modes, 2, gate=gate, output="identity")
    rows = random_rows(6, n_modes, 2).requires_grad_()
    names, parameters = zip(*network.named_parameters(), strict=True)

    def value(rows, *given_parameters):
        return torch.func.functional_call(network, dict(zip(names, given_parameters, strict=True)), (rows,))

    assert torch.autograd.gradcheck(value, (rows, *parameters))


def test_gradients_through_the_output_relu_agree_with_finite_differences():
    network, rows = random_network(3, 2), random_rows(12, 3, 2).requires_grad_()
    assert 0 < int((network(rows) > 0).sum()) < 12
    assert torch.autograd.gradcheck(network, (rows,))


def test_the_mlp_goes_from_all_rows_through_the_square_of_the_width_to_the_width():
    sizes = {name: tuple(value.shape) for name, value in Julia(4, 5).named_parameters()}
    assert sizes["mlp.0.weight"] == (25, 20)
    assert sizes["mlp.2.weight"] == (5, 25)
    assert sizes["gate"] == (5,)
    assert sizes["head.weight"] == (1, 5)
    assert tuple(Julia(4, 5, hidden=7).mlp[0].weight.shape) == (7, 20)


def test_batch_prediction_is_entry_by_entry_prediction():
    network, rows = random_network(3, 4), random_rows(9, 3, 4)
    one_by_one = torch.cat([network(rows[k : k + 1]) for k in range(9)])
    assert network(rows[:1]).shape == (1,)
    torch.testing.assert_close(one_by_one, network(rows), rtol=1e-13, atol=1e-13)


def test_the_gate_chooses_between_the_flows():
    network, rows = random_network(3, 4, output="identity"), random_rows(9, 3, 4)
    with torch.no_grad():
        network.gate.fill_(1.0)
        alone = network(rows)
        network.mlp[0].weight.mul_(7.0)
        torch.testing.assert_close(network(rows), alone, rtol=0, atol=0)
        network.gate.fill_(0.0)
        shuffled = rows.clone()
        shuffled[:, [0, 1]] = shuffled[:, [1, 0]]  # the product does not see the order of modes, the MLP does
        assert (network(rows) - network(shuffled)).abs().max() > 1e-3
        network.gate.fill_(1.0)
        torch.testing.assert_close(network(shuffled), network(rows))


def test_both_flows_start_with_equal_weight():
    assert Julia(3, 4).gate.tolist() == [0.5] * 4
    assert torch.sigmoid(Julia(3, 4, gate="sigmoid").gate).tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "rellu"}, "activation 'rellu': did you mean 'relu'"),
        ({"mixed": "tanhh"}, "did you mean 'tanh'"),
        ({"output": "sigmoyd"}, "did you mean 'sigmoid'"),
        ({"activation": 3}, "activation '3'"),
        ({"gate": "fre"}, "^julia: gate 'fre'; did you mean 'free'\\? known are free, sigmoid$"),
        ({"gate": 1}, "^julia: gate '1'; known are free, sigmoid$"),
        ({"hidden": -1}, "^julia: hidden is -1, it must be a whole number, not negative$"),
        ({"hidden": "big"}, "^julia: hidden is 'big', it must be a whole number"),
        ({"hidden": 2.0}, "^julia: hidden is 2.0"),
        ({"hidden": True}, "^julia: hidden is True"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        Julia(3, 4, **options)
