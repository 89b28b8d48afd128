"""Which entries are hidden together so that they look like the cells that are asked for.

Patterns of hiding are tried on the entries, and compared by what is left around the entries they hide
(:mod:`jointensor.data.split.surroundings`): single entries, those that share labels of some modes, blocks of
neighbouring labels, and the last labels of an ordered mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.split.folds import FOLDS, Groups, Tail, blocks_of, tail_of
from jointensor.data.split.surroundings import Surroundings
from jointensor.data.tensor import cell_keys, distinct_keys

HIDDEN_SHARE = 1 / FOLDS
"""Share of the groups that a trial hides, as a fold does."""
MAX_RATIO = 0.7
"""Groups are preferred to single cells if they differ from the asked cells by at most this share of what those do."""
MIN_DIFFERENCE = 0.1
"""Difference of single cells from which they are different at all: two random draws may differ by as much."""
MIN_BLOCK_GAIN = 0.1
"""Share of the difference of single cells by which blocks have to be more alike than the best of other patterns: there
are many lengths of blocks, and one of them may be alike by chance."""
MANY_GROUPS, TRIALS = 500, 4
"""Groups up to which a pattern is tried several times, and how often: which of few groups are hidden matters."""
MIN_WHOLE_SHARE = 0.3
"""Share of the asked cells that lie in whole groups, for such groups to be hidden: rare labels are not new ones."""
LEVELS = np.linspace(0.005, 0.995, 100)
"""Of the quantiles by which distributions are compared."""
BLOCKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of neighbouring labels that are tried as a block."""
TAIL_LEVEL = 0.02
"""Share of the asked cells that may lie before a tail."""
MIN_TAIL_PLACES = 2 * FOLDS
"""Labels of a mode from which its last ones are tried."""


@dataclass(frozen=True)
class Pattern:
    """How asked cells lie, and what is hidden so that it looks like them."""

    groups: Groups = ()
    """Which entries are hidden together."""
    share: float = 0.0
    """Share of the asked cells that lie in whole groups, of which no cell has an entry."""
    cells: str = "missing cells"
    """Which cells these are, in words."""
    difference: float = 0.0
    """How much surroundings of hidden entries differ from those of asked cells."""
    difference_of_single: float = 0.0
    """The same of single hidden entries."""

    def to_dict(self, modes: Sequence[Mode]) -> dict[str, Any]:
        """For ``metrics.json``."""
        return {
            "cells": self.cells,
            "share_in_groups": self.share,
            "difference": self.difference,
            "difference_of_single_entries": self.difference_of_single,
            "reason": self.in_words(modes),
        }

    def in_words(self, modes: Sequence[Mode]) -> str:
        """How the asked cells lie, and what is hidden, in a sentence."""
        if not self.groups:
            hidden = "single entries"
        elif tail_of(self.groups) is None:
            hidden = "such groups"
        else:
            hidden = in_words(self.groups, modes)
        return f"{self.how_cells_lie(modes)}: validated by leaving out {hidden}"

    def how_cells_lie(self, modes: Sequence[Mode]) -> str:
        """What the asked cells look like."""
        if not self.groups:
            return f"the {self.cells} look most like single cells"
        share = f"{math.floor(100 * self.share + 0.5)} %"  # halves upwards, as readers round
        if (tail := tail_of(self.groups)) is not None:
            return f"{share} of the {self.cells} lie at the end of {modes[tail.mode].name}"
        return f"{share} of the {self.cells} lie in whole groups ({in_words(self.groups, modes)})"


def in_words(groups: Groups, modes: Sequence[Mode]) -> str:
    """What is left out, for a person.

    >>> in_words((0, (1, 24)), [Mode("station", 80), Mode("hour", 2000, order="ordered")])
    'station × 24 neighbouring hour'
    >>> in_words((Tail(1, 7),), [Mode("shop", 80), Mode("day", 200, order="ordered")])
    'the last 7 labels of day'
    """
    if not groups:
        return "single cells"
    return " × ".join(_words_of(one, modes) for one in groups)


def _words_of(one: int | tuple[int, int] | Tail, modes: Sequence[Mode]) -> str:
    if isinstance(one, int):
        return modes[one].name
    if isinstance(one, Tail):
        name = modes[one.mode].name
        return f"the last {one.size} labels of {name}" if one.size > 1 else f"the last label of {name}"
    return f"{one[1]} neighbouring {modes[one[0]].name}"


def most_alike(
    around: Surroundings, whole: Sequence[tuple[int, ...]], timed: Sequence[int], min_groups: int, seed: int
) -> Pattern:
    """The pattern whose hidden entries look most like the asked cells; no groups where single entries do.

    Parameters
    ----------
    around
        Entries and asked cells, by the places of their labels.
    whole
        Combinations of modes whose groups are tried.
    timed
        Modes whose last labels are tried.
    min_groups
        Groups with entries that there have to be.
    seed
        Of the groups that a trial hides.
    """
    asked = [np.quantile(one, LEVELS) for one in around.of_asked]
    single: Groups = tuple(range(around.n_modes))
    found: dict[Groups, float] = {single: _difference(around, single, asked, seed)}
    if found[single] < MIN_DIFFERENCE:
        return Pattern(difference=found[single], difference_of_single=found[single])
    for groups in whole:
        if around.share_without(groups) >= MIN_WHOLE_SHARE:
            found[groups] = _difference(around, groups, asked, seed)
    for last in _tails(around, timed):
        found[last,] = _difference(around, (last,), asked, seed)
    bases = sorted(found, key=lambda groups: found[groups])[:2]
    if found[bases[0]] > MIN_BLOCK_GAIN * found[single]:  # else no block can be so much more alike
        for blocked in _blocks(around, bases):
            found[blocked] = _difference(around, blocked, asked, seed)
    score = {groups: one + _handicap(groups) * found[single] for groups, one in found.items()}
    enough = [groups for groups in found if groups == single or tail_of(groups) or _count(around, groups) >= min_groups]
    best = min(enough, key=lambda groups: score[groups])
    if best == single or score[best] > MAX_RATIO * found[single]:
        return Pattern(difference=found[single], difference_of_single=found[single])
    share, difference, tail = _share_in(around, best), found[best], tail_of(best)
    if tail is not None:
        best = (tail.fitting(len(np.unique(around.entries[:, tail.mode]))),)
    return Pattern(best, share, difference=difference, difference_of_single=found[single])


def _handicap(groups: Groups) -> float:
    """What is added to the difference of a pattern, as a share of that of single cells."""
    return MIN_BLOCK_GAIN if any(size > 1 for _, size in blocks_of(groups)) else 0.0


def _tails(around: Surroundings, timed: Sequence[int]) -> Iterator[Tail]:
    """The last labels of modes, as many as the asked cells lie in."""
    for n in timed:
        places = np.unique(around.entries[:, n])
        first = np.quantile(around.asked[:, n], TAIL_LEVEL)
        size = around.sizes[n] - math.floor(first)
        if len(places) >= MIN_TAIL_PLACES and 2 * size <= around.sizes[n]:
            yield Tail(n, size)


def _blocks(around: Surroundings, bases: Sequence[Groups]) -> Iterator[Groups]:
    """The same groups with neighbouring labels of an ordered mode as one."""
    for base in bases:
        if tail_of(base):
            continue
        for n, size in product([n for n, _ in blocks_of(base)], BLOCKS):
            if n in around.ordered and 3 * size <= around.sizes[n]:
                yield tuple((m, size) if m == n else m for m, _ in blocks_of(base))


def _numbers(around: Surroundings, groups: Groups) -> tuple[NDArray[np.integer], int]:
    """The group of every entry, and how many there are."""
    columns, sizes = [], []
    for n, size in blocks_of(groups):
        columns.append(around.entries[:, n] // size)
        sizes.append(-(-around.sizes[n] // size))
    found, member = distinct_keys(cell_keys(np.column_stack(columns), sizes), math.prod(sizes))
    return member, len(found)


def _count(around: Surroundings, groups: Groups) -> int:
    return _numbers(around, groups)[1]


def _share_in(around: Surroundings, groups: Groups) -> float:
    """Share of the asked cells that lie in whole groups; for a tail, in the hidden labels or beyond."""
    tail = tail_of(groups)
    if tail is None:
        modes = tuple(n for n, _ in blocks_of(groups))
        return around.share_without(modes) if len(modes) < around.n_modes else 1.0
    return float((around.asked[:, tail.mode] >= around.sizes[tail.mode] - tail.size).mean())


def _difference(around: Surroundings, groups: Groups, asked: list[NDArray[np.float64]], seed: int) -> float:
    """How much surroundings of entries that are hidden by groups differ from those of the asked cells.

    Of these, quantiles are given. Mean differences of quantiles are summed.
    """
    tail = tail_of(groups)
    if tail is not None:
        places = np.unique(around.entries[:, tail.mode])
        return _difference_of(around, around.entries[:, tail.mode] >= places[-min(tail.size, len(places))], asked)
    (member, count), rng = _numbers(around, groups), np.random.default_rng([seed, 22])
    most = max(1, round(HIDDEN_SHARE * count))
    draws = [rng.permutation(count) < most for _ in range(TRIALS if count <= MANY_GROUPS else 1)]
    return float(np.mean([_difference_of(around, draw[member], asked) for draw in draws]))


def _difference_of(around: Surroundings, hidden: NDArray[np.bool_], asked: list[NDArray[np.float64]]) -> float:
    """The same of entries that are marked, ``(entries,)``; infinite where all or none are."""
    if not hidden.any() or hidden.all():
        return math.inf
    found = around.of_hidden(hidden)
    return sum(float(np.abs(np.quantile(one, LEVELS) - other).mean()) for one, other in zip(found, asked, strict=True))
