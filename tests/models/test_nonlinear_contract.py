"""Every registered f keeps the contract, alone and inside JULIA, whatever its options."""

import inspect
import typing

import pytest

from jointensor.models.nonlinear import nonlinear_parts
from jointensor.registry import option_names, parse_spec
from jointensor.testing import check_joint_model, check_nonlinear

VARIANTS = {
    "avocado": ("avocado", "avocado,activation=tanh,output=relu"),
    "costco": ("costco", "costco,layout=official", "costco,layout=official,channels=3,output=identity"),
    "julia": (
        "julia",
        "julia,gate=sigmoid,hidden=5",
        "julia,activation=tanh,mixed=identity,output=softplus",
    ),
    "mlp": ("mlp", "mlp,layers=1,hidden=5", "mlp,layers=4,activation=gelu,output=relu"),
    "neptune": (
        "neptune",
        "neptune,norm=False",
        "neptune,activation=prelu,dropout_first=0.3,dropout_core=0.2,dropout_hidden=0.4",
    ),
    "neurtn": (
        "neurtn",
        "neurtn,interaction=product",
        "neurtn,interaction=outer",
        "neurtn,activation=silu,output=softplus",
    ),
}
"""Options of every part that go through the checks. A new part or option needs a line here."""

EVERY = [variant for variants in VARIANTS.values() for variant in variants]


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("variant", EVERY)
def test_every_part_keeps_the_contract_alone(variant, n_modes):
    check_nonlinear(variant, widths=(1, 3), modes=(n_modes,))


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("variant", EVERY)
def test_every_part_keeps_the_contract_inside_julia(variant, n_modes):
    check_joint_model(variant, rank=(2, 3), modes=(n_modes,))


def test_every_registered_part_is_checked():
    assert sorted(VARIANTS) == nonlinear_parts.names()


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_option_of_a_part_is_checked_and_every_choice_where_they_are_listed(name):
    part = nonlinear_parts.find(name)
    hints = typing.get_type_hints(part.__init__)
    tried = [parse_spec(variant) for variant in VARIANTS[name]]
    assert {spec for spec, _ in tried} == {name}
    for option in option_names(part):
        default = inspect.signature(part).parameters[option].default
        values = {options[option] for _, options in tried if option in options} - {default}
        assert values, f"no variant of {name} sets {option} to anything but {default!r}"
        assert values >= set(typing.get_args(hints[option])) - {default}
