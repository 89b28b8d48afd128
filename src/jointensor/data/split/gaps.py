"""How the cells that are asked for lie: those that are missing inside the observed box, or the cells of queries.

Entries that are left out to choose and to judge a model have to look like them
(:mod:`jointensor.data.split.patterns`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode, guess_order
from jointensor.data.split.folds import FOLDS, Groups, places_of
from jointensor.data.split.patterns import Pattern, most_alike
from jointensor.data.split.surroundings import Surroundings
from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys
from jointensor.errors import ConfigError

Seen = NDArray[np.bool_]
"""Whether a cell has an entry, one axis per mode."""

MAX_CELLS = 1 << 18
"""Cells of the box, and entries, that are looked at: labels of the modes without an order are drawn where there are
more."""
MAX_MODES = 6
"""Patterns are twice as many, and take twice as long each, with every further mode."""
MIN_SHARE = 0.02
"""Share of the cells with entries from which missing ones count as gaps: in sparser tensors, cells without an entry
mean that nothing happened, and nobody asks for all of them."""
MAX_ENTRIES = 1 << 19
"""Entries that are looked at beside queries: fewer labels of the modes without an order where there are more."""
MIN_LABELS = 100
"""Labels of a mode that are looked at in any case."""
MIN_GROUPS, MIN_ASKED_GROUPS = 50, FOLDS
"""Groups with entries from which they can be divided into folds: of gaps, which may be groups by chance; of queries."""
QUERIES = "cells that are asked for"
"""What queries are, in a sentence."""
MISSING_OR_TESTED = "cells that are missing or tested"
"""What is not learnt from, in a sentence, where there are test entries: these look like missing cells to a fit."""
MIN_MISSING = 100
"""Missing cells from which their pattern can be told from chance."""


@dataclass(frozen=True)
class Asked:
    """Cells whose values will be asked for; their labels need not have entries."""

    indices: NDArray[np.integer]
    """Positions in ``modes``, ``(cells, modes)``."""
    modes: tuple[Mode, ...]
    """Those of the tensor, with further labels at their ends."""
    source: str = "queries"
    """Where they are from, for messages."""


def like_gaps(tensor: SparseTensor, seed: int = 0) -> Groups:
    """Which entries are to be left out together, so that what is left out looks most like the missing cells."""
    return pattern_of_gaps(tensor, seed).groups


def pattern_of_gaps(tensor: SparseTensor, seed: int = 0) -> Pattern:
    """How the missing cells lie, and what left-out entries look most like them.

    Combinations of unordered labels that never occur are no gaps: nothing is known of them at any time. No groups where
    single cells look most like the missing ones, or these are no gaps at all.
    """
    seen = _seen(tensor, seed) if tensor.n_modes <= MAX_MODES else None
    if seen is None:
        return Pattern()
    ordered = _ordered(tensor.modes)
    missing = np.argwhere(~seen & seen.any(axis=ordered, keepdims=True))
    if len(missing) < MIN_MISSING:
        return Pattern()
    around = Surroundings(np.argwhere(seen), missing, seen.shape, ordered, seed)
    whole = [modes for modes in around.combinations if set(modes) & set(ordered)]
    return _over(tensor, most_alike(around, whole, _timed(tensor.modes), MIN_GROUPS, seed))


def pattern_of_queries(tensor: SparseTensor, asked: Asked, seed: int = 0) -> Pattern:
    """How cells that will be asked for lie, and what left-out entries look most like them.

    Cells that have an entry do not count.

    Raises
    ------
    ConfigError
        If there are no others.
    """
    shape = [mode.size for mode in asked.modes]
    keys = cell_keys(np.concatenate([tensor.indices, asked.indices]), shape)
    cells = asked.indices[~np.isin(keys[len(tensor) :], keys[: len(tensor)])]
    if not len(cells):
        raise ConfigError(
            f"{asked.source}: every cell has an entry already; give cells whose values are not known, or no queries"
        )
    if tensor.n_modes > MAX_MODES:
        return Pattern(cells=QUERIES)
    modes = tuple(map(_comparable, tensor.modes, asked.modes))
    points = np.concatenate([tensor.indices, cells]).astype(np.int64)  # (entries + cells, modes)
    for n, mode in enumerate(modes):  # labels that occur, numbered in their order
        places = points[:, n] if mode.order == "none" or mode.labels is None else places_of(mode)[points[:, n]]
        points[:, n] = distinct_keys(places, mode.size)[1]
    entries, cells = _fewer(points[: len(tensor)], points[len(tensor) :], modes, seed)
    around = Surroundings(entries, cells, points.max(axis=0) + 1, _ordered(modes), seed)
    found = most_alike(around, around.combinations, _timed(modes), MIN_ASKED_GROUPS, seed)
    return replace(_over(tensor, found), cells=QUERIES)


def _comparable(known: Mode, asked: Mode) -> Mode:
    """A mode with further labels; without an order where known labels are numbers or dates, and others are not."""
    if known.labels is None or asked.labels is None or len(known.labels) == len(asked.labels):
        return asked
    orders = [guess_order(mode.name, mode.labels) for mode in (known, asked)]
    return replace(asked, order="none") if orders == ["ordered", "none"] else asked


def _ordered(modes: Sequence[Mode]) -> tuple[int, ...]:
    return tuple(n for n, mode in enumerate(modes) if mode.order != "none")


def _timed(modes: Sequence[Mode]) -> tuple[int, ...]:
    """Modes that have an end."""
    return tuple(n for n, mode in enumerate(modes) if mode.order == "ordered")


def _over(tensor: SparseTensor, found: Pattern) -> Pattern:
    """A pattern of labels with entries as one of all labels: a block counts labels without entries, too."""
    groups = tuple(
        (one[0], round(one[1] * tensor.shape[one[0]] / len(np.unique(tensor.indices[:, one[0]]))))
        if isinstance(one, tuple)
        else one
        for one in found.groups
    )
    return replace(found, groups=groups)


def _fewer(
    entries: NDArray[np.integer], cells: NDArray[np.integer], modes: Sequence[Mode], seed: int
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Entries and cells of some labels of large modes without an order, where entries are too many.

    Up to half of these labels are such that cells have, where only some have.
    """
    rng = np.random.default_rng([seed, 25])
    sizes = entries.max(axis=0) + 1
    for n in sorted((n for n, mode in enumerate(modes) if mode.order == "none"), key=lambda n: -sizes[n]):
        labels = np.unique(np.concatenate([entries[:, n], cells[:, n]]))
        most = max(MIN_LABELS, len(labels) * MAX_ENTRIES // max(len(entries), 1))
        if len(entries) <= MAX_ENTRIES or most >= len(labels):
            continue
        first = rng.permutation(np.unique(cells[:, n]))[: most // 2]
        others = rng.permutation(np.setdiff1d(labels, first))[: most - len(first)]
        kept = np.concatenate([first, others])
        entries, cells = (one[np.isin(one[:, n], kept)] for one in (entries, cells))
    return entries, cells


def _seen(tensor: SparseTensor, seed: int) -> Seen | None:
    """Which cells have an entry, in the order of the labels; ``None`` where missing cells are no gaps.

    Labels without entries are left out.
    """
    ordered = [n for n, mode in enumerate(tensor.modes) if mode.order != "none"]
    others = [n for n in range(tensor.n_modes) if n not in ordered]
    if not ordered or not len(tensor):
        return None
    rng = np.random.default_rng([seed, 21])
    columns = [
        _numbered(places_of(mode)[column], mode.size)
        for mode, column in zip(tensor.modes, tensor.indices.T, strict=True)
    ]
    kept = np.ones(len(tensor), dtype=np.bool_)
    counts = [int(column.max()) + 1 for column in columns]
    sizes = counts.copy()
    for n in sorted(others, key=lambda n: -sizes[n]):
        most = max(1, MAX_CELLS * sizes[n] // math.prod(sizes))
        if most < sizes[n]:
            chosen = rng.permutation(sizes[n])[:most]
            kept &= np.isin(columns[n], chosen)
            sizes[n] = most
    if math.prod(sizes) > MAX_CELLS or not kept.any():
        return None
    columns = [_numbered(column[kept], size) for column, size in zip(columns, counts, strict=True)]
    seen = np.zeros([int(column.max()) + 1 for column in columns], dtype=np.bool_)
    seen[tuple(columns)] = True
    return seen if seen.mean() >= MIN_SHARE * seen.any(axis=tuple(ordered)).mean() else None


def _numbered(column: NDArray[np.integer], size: int) -> NDArray[np.int64]:
    """Labels that occur, numbered from 0 in their order, ``(entries,)``."""
    occurs = np.zeros(size, dtype=np.bool_)
    occurs[column] = True
    number: NDArray[np.int64] = (np.cumsum(occurs) - 1)[column]
    return number
