"""How the missing cells of a tensor lie: at random, as whole fibers, or as blocks of neighbouring labels.

Entries that are left out to choose and to judge a model have to look like the cells that will be asked for. Patterns of
hiding are tried on the seen cells, and compared by what is left around the cells they hide:

shares     of the cells that share their labels of some modes, how many are left, over the share of all cells
distances  to the nearest cell that is left along an ordered mode, in powers of two
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.split.folds import Groups, blocks_of, groups_of, places_of
from jointensor.data.tensor import SparseTensor

Seen = NDArray[np.bool_]
"""Whether a cell has an entry, one axis per mode."""

MAX_CELLS = 1 << 18
"""Cells that are looked at: fewer labels of the modes without an order are drawn where there are more."""
MAX_MODES = 6
"""Patterns are twice as many, and take twice as long each, with every further mode."""
MIN_SHARE = 0.02
"""Share of the cells with entries from which missing ones count as gaps: in sparser tensors, cells without an entry
mean that nothing happened, and nobody asks for all of them."""
MIN_MISSING = 100
"""Missing cells from which their pattern can be told from chance."""
HIDDEN_SHARE = 0.2
"""Share of the groups that a trial hides, as a fold does."""
MAX_RATIO = 0.7
"""Groups are preferred to single cells if they differ from the missing cells by at most this share of what those do."""
MAX_BLOCK_RATIO = 0.9
"""The same for blocks, beside single labels."""
MIN_GROUPS = 50
"""Groups with entries from which they can be divided into folds."""
LEVELS = np.linspace(0.005, 0.995, 100)
"""Of the quantiles by which distributions are compared."""
BLOCKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of neighbouring labels that are tried as a block."""


def like_gaps(tensor: SparseTensor, seed: int = 0) -> Groups:
    """Which entries are to be left out together, so that what is left out looks most like the missing cells.

    Combinations of unordered labels that never occur are no gaps: nothing is known of them at any time. No groups where
    single cells look most like the missing ones, or these are no gaps at all.
    """
    seen = _seen(tensor, seed) if tensor.n_modes <= MAX_MODES else None
    if seen is None:
        return ()
    ordered = tuple(n for n, mode in enumerate(tensor.modes) if mode.order != "none")
    missing = np.argwhere(~seen & seen.any(axis=ordered, keepdims=True))
    if len(missing) < MIN_MISSING:
        return ()
    modes = tuple(range(seen.ndim))
    asked = [np.quantile(one, LEVELS) for one in _surroundings(seen, missing, ordered)]
    whole = [subset for size in modes for subset in combinations(modes, size) if set(subset) & set(ordered)]
    found: dict[Groups, float] = {groups: _difference(seen, groups, asked, ordered, seed) for groups in (modes, *whole)}
    for base in sorted(found, key=lambda groups: found[groups])[:2]:
        for n, size in product([n for n, _ in blocks_of(base)], BLOCKS):
            if n in ordered and 3 * size <= seen.shape[n]:
                blocked: Groups = tuple((m, size) if m == n else m for m in base)
                found[blocked] = _difference(seen, blocked, asked, ordered, seed) / MAX_BLOCK_RATIO
    best = min(found, key=lambda groups: found[groups])
    if best == modes or found[best] > MAX_RATIO * found[modes]:
        return ()
    # a block counts labels without entries, too
    spread = [tensor.shape[n] / len(np.unique(tensor.indices[:, n])) for n in modes]
    best = tuple(one if isinstance(one, int) else (one[0], round(one[1] * spread[one[0]])) for one in best)
    return best if groups_of(tensor, best)[0] >= MIN_GROUPS else ()


def in_words(groups: Groups, modes: Sequence[Mode]) -> str:
    """What is left out, for a person.

    >>> in_words((0, (1, 24)), [Mode("station", 80), Mode("hour", 2000, order="ordered")])
    'station × 24 neighbouring hour'
    """
    if not groups:
        return "single cells"
    names = [
        modes[one].name if isinstance(one, int) else f"{one[1]} neighbouring {modes[one[0]].name}" for one in groups
    ]
    return " × ".join(names)


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


def _surroundings(seen: Seen, cells: NDArray[np.integer], ordered: Sequence[int]) -> list[NDArray[np.float64]]:
    """What is left around some cells, ``(cells,)`` each."""
    where = tuple(cells.T)
    density = seen.mean()
    found = []
    for size in range(1, seen.ndim):
        for fixed in combinations(range(seen.ndim), size):
            others = tuple(n for n in range(seen.ndim) if n not in fixed)
            share = np.broadcast_to(seen.mean(axis=others, keepdims=True), seen.shape)[where]
            found.append(np.minimum(share / density, 2.0))
    return [*found, *(np.log2(_distance(seen, n)[where]) for n in ordered)]


def _distance(seen: Seen, n: int) -> NDArray[np.float64]:
    """Steps to the nearest seen cell along a mode, other than the cell itself; twice its size where there is none."""
    moved = np.moveaxis(seen, n, -1)
    size = moved.shape[-1]
    place = np.arange(size)
    before = np.maximum.accumulate(np.where(moved, place, -2 * size), axis=-1)
    after = np.minimum.accumulate(np.where(moved, place, 3 * size)[..., ::-1], axis=-1)[..., ::-1]
    nearest = np.minimum(place - before, after - place)
    return np.moveaxis(np.clip(nearest, 1, 2 * size).astype(np.float64), -1, n)


def _group_numbers(seen: Seen, groups: Groups) -> tuple[NDArray[np.integer], int]:
    """The group of every cell, and how many there are."""
    number, count = np.zeros((1,) * seen.ndim, dtype=np.int64), 1
    for n, size in blocks_of(groups):
        place = (np.arange(seen.shape[n]) // size).reshape([-1 if m == n else 1 for m in range(seen.ndim)])
        number, count = number * (place.max() + 1) + place, count * (int(place.max()) + 1)
    return np.broadcast_to(number, seen.shape), count


def _difference(
    seen: Seen, groups: Groups, asked: list[NDArray[np.float64]], ordered: Sequence[int], seed: int
) -> float:
    """How much the surroundings of cells that are hidden by groups differ from those of the missing cells.

    Of these, quantiles are given. Mean differences of quantiles are summed.
    """
    number, count = _group_numbers(seen, groups)
    hidden = (np.random.default_rng([seed, 22]).random(count) < HIDDEN_SHARE)[number] & seen
    if not hidden.any() or (hidden == seen).all():
        return math.inf
    found = _surroundings(seen & ~hidden, np.argwhere(hidden), ordered)
    return sum(float(np.abs(np.quantile(one, LEVELS) - other).mean()) for one, other in zip(found, asked, strict=True))
