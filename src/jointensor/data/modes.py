"""A mode: one axis of the tensor, with the labels a person uses for its positions.

Labels are text exactly as written: ``"01001"`` is not ``"1001"``. A mode without labels is
addressed by the numbers ``0 … size - 1``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from jointensor.data.calendars import calendar_of
from jointensor.errors import ConfigError, DataError

Order = Literal["none", "ordered", "cyclic"]
ORDERS: tuple[str, ...] = get_args(Order)

UNSEEN = -1
"""The index of a label that the tensor does not have."""

_TIME_WORDS = ("date", "day", "time", "hour", "week", "month", "year", "minute", "timestamp")
_ISO_DATE = re.compile(r"\d{4}-(\d{2}(-\d{2}([ T].*)?)?|W\d{2}|Q\d)$")


@dataclass(frozen=True)
class Mode:
    """One axis of a tensor.

    Parameters
    ----------
    name
        What the axis is called, for example ``"user"``.
    size
        Number of positions.
    labels
        One text per position, unique; ``None`` when positions are plain numbers.
    order
        Whether neighbours are alike: ``"none"``, ``"ordered"`` (dates, numbers) or ``"cyclic"``
        (hour of day).
    """

    name: str
    size: int
    labels: tuple[str, ...] | None = None
    order: Order = "none"
    _positions: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"mode '{self.name}' has size {self.size}; a mode has at least one label")
        if self.size > np.iinfo(np.int64).max:
            digits = str(self.size)  # too many of them to be a float, maybe
            size = f"{self.size:g}" if len(digits) < 309 else f"{digits[:9]}… ({len(digits)} digits)"
            raise DataError(f"mode '{self.name}' has size {size}; positions must fit 64 bits")
        if self.order not in ORDERS:
            raise DataError(f"mode '{self.name}': order '{self.order}' is not one of {', '.join(ORDERS)}")
        if self.labels is not None and len(self.labels) != self.size:
            raise DataError(f"mode '{self.name}' has {len(self.labels)} labels for {self.size} positions")
        if self.labels is not None and len(set(self.labels)) != self.size:
            raise DataError(f"mode '{self.name}' has a label that occurs twice: '{_first_repeat(self.labels)}'")

    def label(self, position: int) -> str:
        """Text of a position."""
        return str(position) if self.labels is None else self.labels[position]

    def encode(self, labels: Iterable[object]) -> NDArray[np.int64]:
        """Positions of labels, with :data:`UNSEEN` for those this mode does not have."""
        if self.labels is None:
            return np.array([self._number(str(label)) for label in labels], dtype=np.int64)
        if not self._positions:
            self._positions.update({label: i for i, label in enumerate(self.labels)})
        return np.array([self._positions.get(str(label), UNSEEN) for label in labels], dtype=np.int64)

    def with_more(self, labels: Iterable[str]) -> Mode:
        """The same mode with the labels it does not have yet at its end."""
        known = set(self.labels) if self.labels is not None else set(map(str, range(self.size)))
        more = [label for label in dict.fromkeys(labels) if label not in known]
        if not more:
            return self
        every = (*(self.labels or map(str, range(self.size))), *more)
        return Mode(self.name, len(every), every, self.order)

    def with_numbers(self, labels: Iterable[str]) -> Mode:
        """The same mode without labels, large enough for positions that are written as text."""
        known = [number for label in labels if (number := _as_number(label)) is not None and number == int(number)]
        size = max([self.size, *(int(number) + 1 for number in known)])
        return self if size == self.size else Mode(self.name, size, None, self.order)

    def decode(self, positions: NDArray[np.integer]) -> list[str]:
        """Labels of positions."""
        return [self.label(int(i)) for i in positions]

    def coordinates(self) -> NDArray[np.float64]:
        """Where each position lies along an ordered mode: the label's number, its time, or its rank.

        Dates are measured; weeks, months and quarters are counted: after a missing weekend a Monday is three days after
        its Friday.
        """
        if self.labels is not None:
            numbers = [_as_number(label) for label in self.labels]
            if None not in numbers:
                return np.array(numbers, dtype=np.float64)
            if all(is_date(label) for label in self.labels):
                calendar = calendar_of(self.labels)
                if calendar is not None:
                    return np.array(calendar.read(self.labels), dtype=np.float64)
                return np.argsort(np.argsort(self.labels)).astype(np.float64)
        return np.arange(self.size, dtype=np.float64)

    def _number(self, text: str) -> int:
        number = _as_number(text)
        if number is None or number != int(number) or not 0 <= number < self.size:
            return UNSEEN
        return int(number)


def find_mode(modes: Sequence[Mode], name: str) -> int:
    """Position of the mode called ``name``, which an option gave."""
    names = [mode.name for mode in modes]
    if name not in names:
        raise ConfigError(f"there is no mode '{name}'; the modes are {', '.join(names)}")
    return names.index(name)


def guess_order(name: str, labels: Sequence[str] | None) -> Order:
    """Order of a mode nobody declared: dates and numbers are ordered, and so is time by its name."""
    if labels is None:
        words = re.split(r"[^a-z]+", name.lower())
        return "ordered" if any(word in _TIME_WORDS for word in words) else "none"
    return "ordered" if all(is_date(x) for x in labels) or all(_as_number(x) is not None for x in labels) else "none"


def sort_labels(labels: Iterable[str]) -> list[str]:
    """Labels in the order of their positions: numbers by value, all else as text."""
    labels = list(labels)
    numbers = [_as_number(label) for label in labels]
    if None in numbers:
        return sorted(labels)
    return [label for _, label in sorted(zip(numbers, labels, strict=True))]


def is_date(label: str) -> bool:
    """Whether a label is an ISO date, week, month or quarter."""
    return _ISO_DATE.match(label) is not None


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None  # Python alone reads 1_000


def _first_repeat(labels: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(label for label in labels if label in seen or seen.add(label))  # type: ignore[func-returns-value]
