"""Budgets in seconds follow the clock they are given; budgets in fits follow nothing but fits."""

import math

import pytest

from jointensor.errors import ConfigError
from jointensor.search.budget import FitBudget, SecondsBudget, make_budget
from jointensor.search.portfolio import Candidate
from jointensor.search.settings import SETTINGS, SearchSettings
from tests.search.searches import FakeClock

FM = Candidate("fm", "gibbs", 3, effort=2.0)
WIDE = Candidate("wide", "gibbs", 4, effort=4.0, max_share=0.25, min_seconds=3.0)
JULIA = Candidate("julia", "joint", 5)


@pytest.fixture
def clock():
    return FakeClock()


def test_seconds_pass_as_the_clock_says(clock):
    clock.now = 1000.0
    budget = SecondsBudget(100.0, clock)
    clock.now += 30
    assert budget.remaining() == 70
    assert budget.remaining(0.5) == 20
    assert budget.remaining_for_fits() == pytest.approx(100 * (1 - SETTINGS.reserve_share) - 30)
    assert not budget.exhausted
    clock.now += 70
    assert budget.exhausted


def test_seconds_of_a_fit_are_expected_from_its_family(clock):
    budget = SecondsBudget(100.0, clock)
    assert budget.expected_cost(WIDE, []) == 3.0
    assert budget.expected_cost(WIDE, [(JULIA, 50.0)]) == 3.0
    assert budget.expected_cost(WIDE, [(FM, 10.0), (JULIA, 50.0)]) == 20.0


def test_the_seconds_that_a_fit_may_take_are_its_share_and_never_none(clock):
    budget = SecondsBudget(100.0, clock, settings=SearchSettings(reserve_share=0.1))
    assert budget.time_limit(WIDE) == 25
    assert budget.time_limit(JULIA) == 90
    assert budget.time_limit(reserve=False) == 100
    clock.now = 99.5
    assert budget.time_limit(JULIA) == 1


def test_an_optional_fit_is_admitted_when_its_turn_comes(clock):
    """With a margin, since durations vary, and without what is needed afterwards."""
    budget = SecondsBudget(100.0, clock, settings=SearchSettings(refit_margin=1.5, reserve_share=0.2))
    admitted, spared, reserved = (budget.admit(20.0, **how) for how in ({}, {"spare": 40.0}, {"reserve": True}))
    clock.now = 35
    assert (admitted(), spared(), reserved()) == (True, False, True)
    clock.now = 55
    assert (admitted(), spared(), reserved()) == (True, False, False)
    clock.now = 75
    assert not admitted()


def test_fits_are_counted_by_effort():
    budget = FitBudget(10)
    budget.spend(FM)
    budget.spend(JULIA)
    assert budget.remaining() == pytest.approx(7.0)
    assert budget.remaining(0.6) == pytest.approx(3.0)
    assert budget.cost(WIDE, seconds=1e9) == budget.expected_cost(WIDE, [(FM, 1e9)]) == 4.0
    assert budget.cost_of_seconds(1e9) == 0
    assert budget.time_limit(WIDE) == math.inf


def test_fits_that_are_admitted_are_counted_at_once():
    """Two processes make theirs before they hear of each other's."""
    budget = FitBudget(5)
    first, second, third = (budget.admit(2.0) for _ in range(3))
    assert (first(), second(), third()) == (True, True, False)
    assert budget.remaining() == 1
    assert not budget.exhausted
    assert budget.admit(1.0)()
    assert budget.exhausted


def test_a_budget_is_made_from_one_number():
    assert isinstance(make_budget(5.0, None), SecondsBudget)
    assert make_budget(None, None).total == SETTINGS.seconds
    assert make_budget(None, 7).unit == "fits"
    with pytest.raises(ConfigError, match=r"seconds \(5\) or in fits \(7\)"):
        make_budget(5.0, 7)
    for fits in (0, -3):
        with pytest.raises(ConfigError, match=f"{fits} fits"):
            make_budget(None, fits)
