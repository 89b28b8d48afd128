"""The contract of f as checks, for parts of your own.

>>> from jointensor.testing import check_nonlinear
>>> check_nonlinear("julia,gate=sigmoid")

One test per check, under its own name, in pytest::

    @pytest.mark.parametrize("check", [*nonlinear_checks(MyPart), *joint_checks(MyPart)])
    def test_my_part(check):
        check()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from jointensor.testing.contract import PROMISES, Case, Part, sum_of_halves

__all__ = ["Check", "check_joint_model", "check_nonlinear", "joint_checks", "nonlinear_checks"]


def check_nonlinear(part: Part, widths: Sequence[int] = (1, 4), modes: Sequence[int] = (2, 3, 4, 5)) -> None:
    """Run :func:`nonlinear_checks`; the first promise that is broken is an AssertionError.

    Parameters
    ----------
    part
        f as a name with options, a class, or a function of the number of modes and the width.
    widths, modes
        Which widths F and numbers of modes are checked, every combination of them.
    """
    for check in nonlinear_checks(part, widths, modes):
        check()


def check_joint_model(part: Part, rank: tuple[int, int] = (2, 3), modes: Sequence[int] = (2, 3, 4, 5)) -> None:
    """Run :func:`joint_checks`; the first promise that is broken is an AssertionError.

    Parameters
    ----------
    part
        As in :func:`check_nonlinear`.
    rank
        R and F of the joint models.
    modes
        Which numbers of modes are checked.
    """
    for check in joint_checks(part, rank, modes):
        check()


def nonlinear_checks(part: Part, widths: Sequence[int] = (1, 4), modes: Sequence[int] = (2, 3, 4, 5)) -> list[Check]:
    """Every promise of f, for rows of every width and number of modes."""
    cases = [Case(part, n_modes, (0, width), alone=True) for n_modes in modes for width in widths]
    return [Check(promise, case) for case in cases for promise in PROMISES]


def joint_checks(part: Part, rank: tuple[int, int] = (2, 3), modes: Sequence[int] = (2, 3, 4, 5)) -> list[Check]:
    """The same promises of the joint model with this f, and that its value is g + f."""
    cases = [Case(part, n_modes, rank, alone=False) for n_modes in modes]
    return [Check(promise, case) for case in cases for promise in (*PROMISES, sum_of_halves)]


class Check:
    """One promise for one case; call it to see it kept."""

    def __init__(self, promise: Callable[[Case], None], case: Case) -> None:
        self.promise = promise
        self.case = case
        self.__name__ = f"{promise.__name__}: {case}"  # what pytest shows

    def __call__(self) -> None:
        """Raise AssertionError, with what to do about it, where the promise is broken."""
        with torch.random.fork_rng([]):  # the user's random state is not touched; nothing is drawn on a GPU
            torch.default_generator.manual_seed(0)
            try:
                self.promise(self.case)
            except Exception as error:
                found = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                contract = " ".join(str(self.promise.__doc__).split())
                raise AssertionError(f"{self.__name__}: {found}\nThe contract: {contract}") from error
