"""The checks that ship with the library: a part that breaks the contract is told which promise and what to do."""

import functools

import pytest
import torch

from jointensor.errors import ConfigError
from jointensor.models.nonlinear import Mlp
from jointensor.testing import check_joint_model, check_nonlinear, joint_checks, nonlinear_checks
from tests.models import own_parts as own


def broken_promises(checks):
    """Names of the promises that are broken, each with its first message."""
    found = {}
    for check in checks:
        try:
            check()
        except AssertionError as error:
            found.setdefault(check.promise.__name__, str(error))
    return found


@pytest.mark.parametrize(
    ("part", "promise", "message"),
    [
        (own.Column, "shape", "the values are ((7, 1), torch.float32), not ((7,), torch.float32)"),
        (own.Pair, "shape", "the values are <class 'tuple'>"),
        (own.NotFinite, "shape", "some values are not finite"),
        (own.ThreeModes, "shape", "IndexError: index 2 is out of bounds"),
        (own.NoWidth, "shape", "TypeError"),
        (own.Squeezed, "batch_of_one", "squeeze the last dimension only"),
        (own.Normalised, "batch_of_one", "Expected more than 1 value per channel when training"),
        (own.Centred, "own_entry_only", "the values of a batch and of a part of it differ"),
        (own.Cumulative, "own_entry_only", "the batch in another order differ"),
        (own.AlwaysDropping, "same_seed", "the values of one batch, asked for twice differ"),
        (own.Counting, "same_seed", "the values of one batch, asked for twice differ"),
        (own.DrawnByNumpy, "same_seed", "the parameters of two modules of one seed differ"),
        (own.Detached, "gradient", "no gradient reaches the rows"),
        (own.Rounded, "gradient", "no gradient reaches the rows"),
        (own.HalfDetached, "gradient", "with respect to input 0"),
        (own.DetachedWeight, "gradient", "(inputs: rows, layer.weight, layer.bias, head.weight, head.bias)"),
        (own.PlainTensor, "moves", "register_buffer"),
        (own.PlainMatrix, "moves", "matmul is given tensors on cpu and meta"),
        (own.MadeOnTheProcessor, "moves", "device=rows.device"),
        (own.Single, "moves", "not ((7,), torch.float64)"),
        (own.LosesProjection, "saved", "the values before and after saving"),
        (own.NeverReset, "fresh_start", "reset_parameters()"),
        (own.Counting, "sum_of_halves", "the values of the model and of g + f differ"),
    ],
)
def test_a_part_that_breaks_a_promise_is_told_which_one_and_what_to_do(part, promise, message):
    checks = joint_checks(part, modes=(2, 3)) if promise == "sum_of_halves" else nonlinear_checks(part, modes=(2, 3))
    told = broken_promises(checks)[promise]
    assert message in told
    assert f"{promise}: {part.__name__}, " in told


@pytest.mark.parametrize(
    ("part", "promises"),
    [
        (own.Normalised, {"batch_of_one"}),
        (own.Cumulative, {"own_entry_only"}),
        (own.DrawnByNumpy, {"same_seed"}),
        (own.HalfDetached, {"gradient"}),
        (own.PlainTensor, {"moves"}),
        (own.NeverReset, {"fresh_start"}),
        (own.LosesProjection, {"saved", "fresh_start"}),
    ],
)
def test_a_fault_breaks_its_own_promise_only_alone_and_inside_julia(part, promises):
    assert set(broken_promises(nonlinear_checks(part, widths=(4,), modes=(3,)))) == promises
    assert set(broken_promises(joint_checks(part, modes=(3,)))) == promises
    with pytest.raises(AssertionError):
        check_nonlinear(part, modes=(3,))
    with pytest.raises(AssertionError):
        check_joint_model(part, modes=(3,))


def test_options_lost_by_saving_are_found(registry):
    registry.register("forgetful")(own.Forgetful)
    registry.register("mindful")(own.Mindful)
    check_nonlinear("forgetful")  # at the default nothing is lost
    found = broken_promises(nonlinear_checks("forgetful,power=3.0"))
    assert set(found) == {"saved"}
    assert "saving as 'forgetful' differ" in found["saved"]
    assert set(broken_promises(joint_checks("forgetful,power=3.0"))) == {"saved"}
    assert broken_promises([*nonlinear_checks("mindful,power=3.0"), *joint_checks("mindful,power=3.0")]) == {}


@pytest.mark.parametrize(
    "part",
    [
        own.Fine,
        own.Distinct,
        "option,power=3.0",
        lambda modes, width: own.Fine(modes, width),
        lambda modes, width: own.WithOption(modes, width, power=2.0),
        functools.partial(Mlp, layers=3),
    ],
    ids=["class", "no meta form", "name", "function", "function with an option", "partial"],
)
def test_a_class_a_name_or_a_function_of_a_users_own_is_checked(part, registry):
    if isinstance(part, str):
        registry.register("option")(own.WithOption)
    check_nonlinear(part)
    check_joint_model(part)


def test_an_instance_is_refused():
    with pytest.raises(ConfigError, match="give its class, or a function of both"):
        nonlinear_checks(own.Fine(3, 2))


def test_a_misspelt_name_is_told():
    with pytest.raises(AssertionError, match="there is no nonlinear part 'costko'; did you mean 'costco'"):
        check_nonlinear("costko")


def test_checks_have_names_for_pytest_and_are_called_for_every_width_and_number_of_modes():
    names = [check.__name__ for check in nonlinear_checks("mlp,layers=1", widths=(2, 3), modes=(2, 5))]
    assert len(names) == len(set(names)) == 4 * 8
    assert names[0] == "shape: mlp,layers=1, 2 modes, width 2"
    assert "moves: mlp,layers=1, 5 modes, width 3" in names
    assert "sum_of_halves: Fine, 4 modes, rank 2 + 3" in [check.__name__ for check in joint_checks(own.Fine)]


def test_checks_leave_the_users_random_state_alone():
    before = torch.random.get_rng_state()
    check_nonlinear(own.Fine, widths=(2,), modes=(2, 7))
    assert broken_promises(nonlinear_checks(own.Column, widths=(2,), modes=(2,)))
    assert torch.equal(torch.random.get_rng_state(), before)
