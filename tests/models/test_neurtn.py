"""NeurTN against its formulas: the interactions, the network over them, its size and its limits."""

import numpy as np
import pytest
import torch

from jointensor.errors import ConfigError
from jointensor.models.nonlinear import Avocado, NeurTN
from jointensor.models.nonlinear.neurtn import outer, product_and_rows
from tests.models.by_hand import assert_values, linear, n_parameters, random_part, random_rows, relu


def features_by_hand(entry, interaction):
    """All products of one number per mode, the last mode fastest; or one product per component, and then the rows; or
    the rows alone.
    """
    n_modes, width = entry.shape
    if interaction == "none":
        return [*entry.flatten()]
    if interaction == "outer":
        return [np.prod([entry[n, k] for n, k in enumerate(which)]) for which in np.ndindex(*(width,) * n_modes)]
    return [*(np.prod([entry[n, k] for n in range(n_modes)]) for k in range(width)), *entry.flatten()]


def one_entry(weights, entry, interaction="none", sigma=relu, output=lambda x: x):
    x = features_by_hand(entry, interaction)
    for name in ("mlp.0", "mlp.2"):
        x = sigma(linear(weights, name, x))
    return output(linear(weights, "head", x)[0])


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
def test_outer_features_are_the_einsum(n_modes):
    rows = random_rows(6, n_modes, 3)
    letters = "abcde"[:n_modes]
    terms = ",".join(f"i{letter}" for letter in letters)
    expected = np.einsum(f"{terms}->i{letters}", *rows.numpy().transpose(1, 0, 2)).reshape(6, -1)
    np.testing.assert_allclose(outer(rows).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
def test_products_beside_the_rows(n_modes):
    rows = random_rows(6, n_modes, 3)
    expected = [features_by_hand(entry, "product") for entry in rows.numpy()]
    np.testing.assert_allclose(product_and_rows(rows).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("interaction", ["none", "outer", "product"])
def test_value_is_the_formula(n_modes, interaction):
    part = random_part(NeurTN, n_modes, 2, interaction=interaction)
    assert_values(part, random_rows(12, n_modes, 2), one_entry, interaction=interaction)


def test_other_activations():
    part = random_part(NeurTN, 3, 2, activation="tanh", output="relu")
    assert_values(part, random_rows(40, 3, 2), one_entry, sigma=np.tanh, output=relu)


def test_without_interactions_it_is_the_network_of_avocado_at_its_own_rank():
    """The paper gives both the same layers, and NeurTN half of the rank."""
    ours, other = NeurTN(3, 4), Avocado(3, 4)
    other.load_state_dict(ours.state_dict())
    rows = random_rows(20, 3, 4).float()
    torch.testing.assert_close(ours(rows), other(rows), rtol=0, atol=0)
    assert (NeurTN.total_rank, Avocado.total_rank) == (10, 20)


@pytest.mark.parametrize(("n", "k"), [(2, 5), (3, 10), (4, 3)])
def test_number_of_parameters(n, k):
    for interaction, features in (("none", n * k), ("outer", k**n), ("product", (n + 1) * k)):
        expected = (features * n**2 * k + n**2 * k) + (n**2 * k * k + k) + (k + 1)
        assert n_parameters(NeurTN(n, k, interaction=interaction)) == expected


@pytest.mark.parametrize(("n_modes", "most"), [(3, 58), (4, 21), (5, 11), (6, 7)])
def test_more_products_than_fit_are_refused_before_they_are_made(n_modes, most):
    with torch.device("meta"):  # shapes without memory
        NeurTN(n_modes, most, interaction="outer")
        NeurTN(n_modes, most + 1, interaction="product")
        NeurTN(n_modes, most + 1)
        with pytest.raises(ConfigError) as caught:
            NeurTN(n_modes, most + 1, interaction="outer")
    assert str(caught.value) == (
        f"neurtn of width {most + 1} makes {(most + 1) ** n_modes:,} products of {n_modes} modes, more than 200,000; "
        f"give at most width {most}, or interaction=none"
    )


@pytest.mark.parametrize(
    ("interaction", "message"),
    [
        ("outr", "neurtn: interaction 'outr'; did you mean 'outer'? known are none, outer, product"),
        (0, "neurtn: interaction '0'; known are none, outer, product"),
    ],
)
def test_an_unknown_interaction_is_refused(interaction, message):
    with pytest.raises(ConfigError) as caught:
        NeurTN(3, 4, interaction=interaction)
    assert str(caught.value) == message
