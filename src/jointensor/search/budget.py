"""What a search may spend: seconds of a clock, or a number of fits.

Decisions of the search are made in units of the budget. With seconds, a fit costs what it took. With fits, a fit costs
the effort of its candidate, whatever the clock says: the same search with the same seed ends with the same result on
every machine load.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError
from jointensor.search.settings import SETTINGS, SearchSettings

if TYPE_CHECKING:
    from jointensor.search.portfolio import Candidate

Clock = Callable[[], float]


class Budget(ABC):
    """A budget, and what of it is left."""

    unit: str
    """For messages."""

    def __init__(self, total: float) -> None:
        self.total = total

    @abstractmethod
    def remaining(self, share: float = 1.0) -> float:
        """Units until a share of the budget is used up; the same number in all processes."""

    @abstractmethod
    def remaining_for_fits(self) -> float:
        """The same without the reserve for the stages after the fits."""

    @abstractmethod
    def cost(self, candidate: Candidate, seconds: float) -> float:
        """Units of a fit that took so many seconds."""

    @abstractmethod
    def cost_of_seconds(self, seconds: float) -> float:
        """Units of work other than fits, such as predictions."""

    @abstractmethod
    def cost_of_fits(self, candidates: Sequence[Candidate], seconds: float) -> float:
        """Units of one fit of each, in so many seconds together."""

    @abstractmethod
    def expected_cost(self, candidate: Candidate, others: Iterable[tuple[Candidate, float]]) -> float:
        """Units that a fit will take, by the costs of other candidates of its family."""

    @abstractmethod
    def max_cost(self, candidate: Candidate) -> float:
        """Units that one fit of a candidate may take."""

    @abstractmethod
    def spend(self, candidate: Candidate) -> None:
        """Book a fit of a candidate that is about to be made."""

    @abstractmethod
    def book(self, candidate: Candidate, affordable: Callable[[], bool]) -> Callable[[], bool]:
        """Whether a fit is made, to be called when it is its turn: if ``affordable`` says so, which is asked then.

        A budget of fits asks at once, and books the fit: its answers do not depend on when fits end. So do several
        processes, which have to ask together.
        """

    @abstractmethod
    def affords(self, cost: float) -> bool:
        """Whether optional fits are affordable; the same in all processes."""

    @abstractmethod
    def admit(self, cost: float, *, spare: float = 0.0, reserve: bool = False) -> Callable[[], bool]:
        """Whether one more optional fit is affordable, to be called when it is about to be made.

        Parameters
        ----------
        cost
            Of the fit.
        spare
            Units that are needed afterwards.
        reserve
            Whether the reserve for the stages after the fits is to be kept.
        """

    @abstractmethod
    def time_limit(self, candidate: Candidate | None = None, *, reserve: bool = True) -> float:
        """Seconds after which a fit has to stop, by the clock of this process."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether nothing is left."""


class SecondsBudget(Budget):
    """Seconds of a clock, from now on.

    Parameters
    ----------
    total
        Seconds.
    clock
        Returns seconds since any moment.
    processes
        The clock of the first one decides.
    settings
        Numbers of the search.
    """

    unit = "s"

    def __init__(
        self,
        total: float,
        clock: Clock = time.monotonic,
        processes: ProcessGroup = SINGLE_PROCESS,
        settings: SearchSettings = SETTINGS,
    ) -> None:
        super().__init__(total)
        self._clock, self._processes, self._settings = clock, processes, settings
        self._fit_share = 1 - settings.reserve_share
        self._begin = clock()

    def _remaining_here(self, share: float = 1.0) -> float:
        return share * self.total - (self._clock() - self._begin)

    def remaining(self, share: float = 1.0) -> float:
        """Seconds by the clock of the first process."""
        return self._processes.decide(lambda: self._remaining_here(share))

    def remaining_for_fits(self) -> float:
        """Seconds without the reserve."""
        return self.remaining(self._fit_share)

    def cost(self, candidate: Candidate, seconds: float) -> float:
        """The seconds."""
        del candidate
        return seconds

    def cost_of_seconds(self, seconds: float) -> float:
        """The seconds."""
        return seconds

    def cost_of_fits(self, candidates: Sequence[Candidate], seconds: float) -> float:
        """The seconds."""
        del candidates
        return seconds

    def expected_cost(self, candidate: Candidate, others: Iterable[tuple[Candidate, float]]) -> float:
        """Effort times the most seconds per effort in its family; its least seconds where none was fitted."""
        rates = [cost / other.effort for other, cost in others if other.family == candidate.family]
        return candidate.effort * max(rates) if rates else candidate.min_seconds

    def max_cost(self, candidate: Candidate) -> float:
        """The candidate's share of the budget."""
        return candidate.max_share * self.total

    def spend(self, candidate: Candidate) -> None:
        """Nothing: the clock counts."""

    def book(self, candidate: Candidate, affordable: Callable[[], bool]) -> Callable[[], bool]:
        """Asked when it is the turn of the fit: the clock tells what is left."""
        del candidate
        if not self._processes.shared:
            return affordable
        known = affordable()
        return lambda: known

    def affords(self, cost: float) -> bool:
        """With a margin: durations vary."""
        return self.remaining() > self._settings.refit_margin * cost

    def admit(self, cost: float, *, spare: float = 0.0, reserve: bool = False) -> Callable[[], bool]:
        """By the clock of this process at the time of the call, with the same margin."""
        share = self._fit_share if reserve else 1.0
        return lambda: self._remaining_here(share) - spare > self._settings.refit_margin * cost

    def time_limit(self, candidate: Candidate | None = None, *, reserve: bool = True) -> float:
        """What is left, and not more than the candidate's share; at least a moment."""
        left = self._remaining_here(self._fit_share if reserve else 1.0)
        most = left if candidate is None else min(left, self.max_cost(candidate))
        return max(most, self._settings.min_fit_seconds)

    @property
    def exhausted(self) -> bool:
        """Whether all seconds have passed."""
        return self.remaining() <= 0


class FitBudget(Budget):
    """A number of fits; one of a candidate with an effort of e counts as e. Nothing depends on the clock.

    Every process counts all fits, so that all have the same numbers.
    """

    unit = "fits"

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._spent = 0.0

    def remaining(self, share: float = 1.0) -> float:
        """Fits."""
        return share * self.total - self._spent

    def remaining_for_fits(self) -> float:
        """All that remain: the stages after the fits cost nothing."""
        return self.remaining()

    def cost(self, candidate: Candidate, seconds: float) -> float:
        """The effort."""
        del seconds
        return candidate.effort

    def cost_of_seconds(self, seconds: float) -> float:
        """Nothing: only fits are counted."""
        del seconds
        return 0.0

    def cost_of_fits(self, candidates: Sequence[Candidate], seconds: float) -> float:
        """The sum of their efforts."""
        del seconds
        return sum(one.effort for one in candidates)

    def expected_cost(self, candidate: Candidate, others: Iterable[tuple[Candidate, float]]) -> float:
        """The effort."""
        del others
        return candidate.effort

    def max_cost(self, candidate: Candidate) -> float:
        """The whole budget."""
        del candidate
        return self.total

    def spend(self, candidate: Candidate) -> None:
        """Count its effort."""
        self._spent += candidate.effort

    def book(self, candidate: Candidate, affordable: Callable[[], bool]) -> Callable[[], bool]:
        """Asked and booked at once."""
        known = affordable()
        if known:
            self.spend(candidate)
        return lambda: known

    def affords(self, cost: float) -> bool:
        """Whether as many fits remain."""
        return self.remaining() >= cost

    def admit(self, cost: float, *, spare: float = 0.0, reserve: bool = False) -> Callable[[], bool]:
        """Decided and booked at once: several processes make their fits before they hear of each other's."""
        del spare, reserve
        affordable = self.affords(cost)
        self._spent += cost if affordable else 0.0
        return lambda: affordable

    def time_limit(self, candidate: Candidate | None = None, *, reserve: bool = True) -> float:
        """None."""
        del candidate, reserve
        return math.inf

    @property
    def exhausted(self) -> bool:
        """Whether not even the cheapest fit is left."""
        return self.remaining() < 1


def check_budget(seconds: float | None, fits: int | None) -> None:
    """Refuse a budget that is given twice, or has not even one fit."""
    if fits is None:
        return
    if seconds is not None:
        raise ConfigError(f"give a budget in seconds ({seconds:g}) or in fits ({fits}), not both")
    if fits < 1:
        raise ConfigError(f"a search cannot be made with {fits} fits; give at least 1")


def make_budget(
    seconds: float | None,
    fits: int | None,
    clock: Clock = time.monotonic,
    processes: ProcessGroup = SINGLE_PROCESS,
    settings: SearchSettings = SETTINGS,
) -> Budget:
    """The budget of a search, from one of two numbers; the default number of seconds where there is neither.

    Raises
    ------
    ConfigError
        If both are given, or there is not even one fit.
    """
    check_budget(seconds, fits)
    if fits is not None:
        return FitBudget(fits)
    return SecondsBudget(settings.seconds if seconds is None else seconds, clock, processes, settings)
