"""Labels of an ordered mode as steps of a regular grid, and the labels that come after the last one.

A missing weekend is three days: dates are placed by their distance. A calendar mode and a clock mode (day and slot)
make one timeline, on which the first slot of a day follows the last one of the day before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.calendars import EPOCH_MONDAY, Calendar, calendar_of
from jointensor.data.modes import Mode, find_mode
from jointensor.errors import ConfigError
from jointensor.predictors.axes import axes_of, time_unit

MAX_STEPS = 1 << 20
"""Steps of a timeline: a dense array is made of them. Finer labels than that are real-valued, or Unix times."""

MIN_WEEKS = 4
"""Weeks after which a day of the week that never occurred is taken for one that never will."""

COMMON_SHARE = 0.5
"""Share of all gaps that are equal, from which on they are the step; otherwise the median gap is."""


@dataclass(frozen=True)
class Grid:
    """The labels of one mode as steps."""

    mode: Mode
    calendar: Calendar
    first: float
    """Number of the first label."""
    step: float
    """Difference of the numbers of neighbours."""
    steps: NDArray[np.int64]
    """Step of every label, ``(labels,)``."""
    weekdays: frozenset[int]
    """Days of the week that occur, Monday is 0; empty unless labels are days, and some days of the week never occur."""

    @classmethod
    def of(cls, mode: Mode) -> Grid:
        """The grid of an ordered mode."""
        labels = mode.labels if mode.labels is not None else tuple(map(str, range(mode.size)))
        calendar = calendar_of(labels)
        if calendar is None:  # neither dates nor numbers: their places
            raise ConfigError(
                f"mode '{mode.name}' cannot be continued: its labels, such as '{labels[-1]}', are neither numbers nor "
                "ISO dates"
            )
        numbers = np.array(calendar.read(labels))  # (labels,)
        step = _step_of(numbers)
        steps = np.round((numbers - numbers.min()) / step).astype(np.int64)
        if steps.max() >= MAX_STEPS:
            raise ConfigError(
                f"mode '{mode.name}' has {steps.max() + 1:,} steps of {step:g}, more than {MAX_STEPS:,}; round its "
                "labels, such as day(time)"
            )
        weekdays: frozenset[int] = frozenset()
        if calendar.name == "day" and step == 1 and steps.max() >= 7 * MIN_WEEKS:
            seen = frozenset(int(number - EPOCH_MONDAY) % 7 for number in numbers)
            weekdays = seen if len(seen) < 7 else weekdays
        return cls(mode, calendar, float(numbers.min()), step, steps, weekdays)

    def label(self, step: int) -> str:
        """The label of a step."""
        like = self.mode.label(int(np.argmax(self.steps)))
        return self.calendar.label(self.first + self.step * step, like)

    def occurs(self, step: int) -> bool:
        """Whether there is a label at a step: none on days of the week without any."""
        return not self.weekdays or int(self.first + step - EPOCH_MONDAY) % 7 in self.weekdays

    def places(self, labels: Sequence[str]) -> NDArray[np.int64]:
        """Steps of labels, -1 for those that are not of this kind, or before the first one."""
        numbers = [self.calendar.read([label]) for label in labels]
        found = [-1.0 if one is None else (one[0] - self.first) / self.step for one in numbers]
        return np.array([round(one) if -0.5 <= one < MAX_STEPS else -1 for one in found], dtype=np.int64)


def _step_of(numbers: NDArray[np.float64]) -> float:
    """The most common gap; the median one where there is no common one.

    Gaps are rounded to the digits that these numbers have: tenths of a second of today are off by up to 10⁻⁷ s.
    """
    largest = float(np.abs(numbers).max()) or 1.0
    digits = math.floor(-math.log10(2 * np.spacing(largest)))
    gaps = np.round(np.diff(np.sort(numbers)), digits)
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return 1.0
    sizes, counts = np.unique(gaps, return_counts=True)
    at = int(np.argmax(counts))
    return float(sizes[at] if counts[at] >= COMMON_SHARE * len(gaps) else np.median(gaps))


@dataclass(frozen=True)
class Timeline:
    """Steps along an ordered mode, or along a calendar mode and a clock mode."""

    modes: tuple[int, ...]
    """The coarser one first."""
    grid: Grid
    """Of the calendar."""
    ranks: NDArray[np.int64]
    """Place of every label of the clock, ``(labels,)``; one label at 0 without a clock."""
    clock: Mode | None = None

    @classmethod
    def of(cls, modes: Sequence[Mode], by: Sequence[int]) -> Timeline:
        """The timeline of some modes."""
        for n in by:
            if modes[n].order == "none":
                raise ConfigError(
                    f"mode '{modes[n].name}' is not ordered, nothing comes after its last label; give an ordered mode, "
                    f"or declare it with --order {modes[n].name}=ordered"
                )
        if modes[by[0]].order == "cyclic":
            raise ConfigError(f"mode '{modes[by[0]].name}' is cyclic: it begins again, and has no next label")
        grid = Grid.of(modes[by[0]])
        if len(by) == 1:
            return cls(tuple(by), grid, np.zeros(1, dtype=np.int64))
        clock = modes[by[1]]
        ranks = np.argsort(np.argsort(clock.coordinates(), kind="stable"), kind="stable")
        if (int(grid.steps.max()) + 1) * clock.size > MAX_STEPS:
            raise ConfigError(f"{grid.mode.name} and {clock.name} have more than {MAX_STEPS:,} steps together")
        return cls(tuple(by), grid, ranks, clock)

    @property
    def clock_size(self) -> int:
        """Steps of one label of the calendar."""
        return 1 if self.clock is None else self.clock.size

    @property
    def name(self) -> str:
        """Names of the modes."""
        return "+".join([self.grid.mode.name] + ([] if self.clock is None else [self.clock.name]))

    @property
    def size(self) -> int:
        """Steps up to the last label."""
        return (int(self.grid.steps.max()) + 1) * self.clock_size

    def steps_of(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Step of every entry, ``(entries, modes)`` → ``(entries,)``."""
        steps = self.grid.steps[indices[:, self.modes[0]]]
        return steps if self.clock is None else steps * self.clock_size + self.ranks[indices[:, self.modes[1]]]

    def following(self, step: int, count: int) -> NDArray[np.int64]:
        """The first ``count`` steps from ``step`` on that have a label."""
        found: list[int] = []
        while len(found) < count:
            if self.grid.occurs(step // self.clock_size):
                found.append(step)
            step += 1
        return np.array(found, dtype=np.int64)

    def labels_at(self, step: int) -> tuple[str, ...]:
        """Labels of a step, one per mode of the timeline."""
        calendar = self.grid.label(step // self.clock_size)
        if self.clock is None:
            return (calendar,)
        return calendar, self.clock.label(int(np.flatnonzero(self.ranks == step % self.clock_size)[0]))


def choose_modes(modes: Sequence[Mode], by: str | None, declared: Sequence[str] = ()) -> tuple[int, ...]:
    """The mode, or the calendar mode and the clock mode, along which is forecast.

    Parameters
    ----------
    modes
        Of the tensor.
    by
        A name, or two with ``+`` between; ``None``: what tells the time by name or by dates, both modes where a
        calendar and a clock do together, or the only ordered mode.
    declared
        Names of modes that a person has said to be ordered.
    """
    if by is not None:
        chosen = tuple(find_mode(modes, name.strip()) for name in by.split("+"))
        if len(chosen) > 2 or len(set(chosen)) != len(chosen):
            raise ConfigError(f"'{by}': give one ordered mode, or a calendar mode and a clock mode, such as day+hour")
        return chosen
    timely = time_modes(modes, declared)
    pairs = [pair for pair in axes_of(modes) if len(pair) == 2]
    if len(pairs) == 1:
        return pairs[0]
    ordered = timely or [n for n, mode in enumerate(modes) if mode.order == "ordered"]
    if len(ordered) == 1:
        return (ordered[0],)
    names = ", ".join(modes[n].name for n in ordered)
    if ordered:
        raise ConfigError(f"several modes are ordered: {names}; choose one with --by")
    raise ConfigError(
        f"no mode is ordered ({', '.join(mode.name for mode in modes)}), so there is nothing to forecast; fit with "
        "--order MODE=ordered"
    )


def time_modes(modes: Sequence[Mode], declared: Sequence[str] = ()) -> list[int]:
    """Ordered modes that tell the time by their names or labels, or that were said to be ordered.

    Numbers alone are not enough: users may have numbers, too.
    """
    return [
        n
        for n, mode in enumerate(modes)
        if mode.order == "ordered" and (mode.name in declared or time_unit(mode) is not None)
    ]
