"""AVOCADO and the plain MLP against their formulas, number by number."""

from itertools import pairwise

import numpy as np
import pytest

from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear import Avocado, Mlp
from tests.models.by_hand import assert_values, linear, n_parameters, random_part, random_rows, relu


def through_layers(weights, entry, layers=2, sigma=relu, output=lambda x: x):
    """Concatenated rows through dense layers, σ after each, and an output layer."""
    x = np.concatenate(list(entry))
    for k in range(layers):
        x = sigma(linear(weights, f"mlp.{2 * k}", x))
    return output(linear(weights, "head", x)[0])


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
def test_avocado_is_the_formula(n_modes):
    assert_values(random_part(Avocado, n_modes, 2), random_rows(12, n_modes, 2), through_layers)


def test_avocado_with_other_activations_is_the_formula():
    part = random_part(Avocado, 3, 2, activation="tanh", output="relu", seed=3)
    assert_values(part, random_rows(40, 3, 2), through_layers, sigma=np.tanh, output=relu)


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_mlp_is_the_formula(n_modes, layers):
    part = random_part(Mlp, n_modes, 3, layers=layers, hidden=24, seed=n_modes)
    assert_values(part, random_rows(12, n_modes, 3), through_layers, layers=layers)


def test_mlp_with_other_activations_is_the_formula():
    part = random_part(Mlp, 3, 2, activation="tanh", output="relu", seed=1)
    assert_values(part, random_rows(40, 3, 2), through_layers, sigma=np.tanh, output=relu)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 20), (4, 5)])
def test_number_of_parameters_of_avocado(n, k):
    expected = (n * k * n**2 * k + n**2 * k) + (n**2 * k * k + k) + (k + 1)
    assert n_parameters(Avocado(n, k)) == expected


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({}, [12, 12, 6, 1]),
        ({"layers": 1}, [12, 12, 1]),
        ({"layers": 3, "hidden": 10}, [12, 10, 5, 2, 1]),
        ({"layers": 5, "hidden": 5}, [12, 5, 2, 1, 1, 1, 1]),
    ],
)
def test_layers_of_the_mlp_halve_and_never_vanish(options, widths):
    expected = sum(before * after + after for before, after in pairwise(widths))
    assert n_parameters(Mlp(3, 4, **options)) == expected


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Mlp, {"layers": 0}, "mlp: layers is 0, it must be at least 1"),
        (Mlp, {"layers": -2}, "mlp: layers is -2, it must be a whole number, not negative"),
        (Mlp, {"layers": "two"}, "mlp: layers is 'two', it must be a whole number, not negative"),
        (Mlp, {"hidden": 1.5}, "mlp: hidden is 1.5, it must be a whole number, not negative"),
    ],
)
def test_bad_options_are_refused_by_name(kind, options, message):
    with pytest.raises(ConfigError) as caught:
        kind(3, 4, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("avocado,activation=tan", "activation 'tan': did you mean 'tanh'"),
        ("avocado,outputs=relu", "nonlinear part 'avocado' has no option 'outputs'; did you mean 'output'"),
        ("mlp,layer=2", "nonlinear part 'mlp' has no option 'layer'; did you mean 'layers'"),
        ("mlp,output=identit", "activation 'identit': did you mean 'identity'"),
    ],
)
def test_bad_options_are_refused_with_the_nearest_word(text, message):
    with pytest.raises(ConfigError, match=message):
        JointModel((3, 4), (0, 2), nonlinear=text)
