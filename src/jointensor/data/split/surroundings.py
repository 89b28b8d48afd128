"""What is left around cells: how many entries share their labels, how near the nearest one is, what comes after them.

Cells that are asked for and entries that are hidden for a trial look alike, to a model, if these are alike:

shares     of the cells that share labels of some modes, how many have an entry, over the share of all cells
distances  to the nearest entry of the same fiber along an ordered mode, in powers of two
later      share of the entries that lie after the cell along an ordered mode

Only entries and cells are listed, so that it costs as much in a large sparse tensor as in a dense one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import cell_keys, distinct_keys

MAX_SHARE = 2.0
"""Shares above it do not differ: nothing is missing there. All sparse combinations of labels with an entry are."""
MAX_CELLS = 20_000
"""Cells whose surroundings are compared, drawn from all: their quantiles differ by less than patterns do."""


class Surroundings:
    """Entries, and cells without one, by the places of their labels.

    Parameters
    ----------
    entries
        Places of the labels of every entry, ``(entries, modes)``, from 0 in the order of the mode.
    asked
        The same of cells without an entry, ``(cells, modes)``.
    sizes
        Places of every mode.
    ordered
        Modes along which distances mean something.
    seed
        Of the cells that are drawn.
    """

    def __init__(
        self,
        entries: NDArray[np.integer],
        asked: NDArray[np.integer],
        sizes: Sequence[int],
        ordered: Sequence[int],
        seed: int,
    ) -> None:
        self.sizes, self.ordered = tuple(map(int, sizes)), tuple(ordered)
        self.entries = entries[np.argsort(cell_keys(entries, self.sizes), kind="stable")]  # whatever their order
        asked = asked[np.argsort(cell_keys(asked, self.sizes), kind="stable")]
        rng = np.random.default_rng([seed, 23])
        self.asked = asked[_drawn(len(asked), rng)]
        self._rng_seed = seed
        self._points = np.concatenate([self.entries, self.asked])  # (points, modes)
        n_modes = len(self.sizes)
        self.combinations = [modes for size in range(1, n_modes) for modes in combinations(range(n_modes), size)]
        """Of modes: each alone, pairs, and so on, but not all."""
        self._numbers = {modes: self._numbered(modes) for modes in self.combinations}

    @property
    def n_modes(self) -> int:
        """Number of modes."""
        return len(self.sizes)

    @cached_property
    def of_asked(self) -> list[NDArray[np.float64]]:
        """Surroundings of the cells that are asked for, one array of ``(cells,)`` each."""
        every = np.ones(len(self.entries), dtype=np.bool_)
        return self._around(np.arange(len(self.entries), len(self._points)), every)

    def of_hidden(self, hidden: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
        """Surroundings of entries, ``(entries,)`` are marked, when all of these are hidden."""
        rng = np.random.default_rng([self._rng_seed, 24])
        cells = np.flatnonzero(hidden)
        return self._around(cells[_drawn(len(cells), rng)], ~hidden)

    def share_without(self, modes: Sequence[int]) -> float:
        """Share of the asked cells whose labels of these modes, taken together, no entry has."""
        member, count = self._numbers[tuple(sorted(modes))]
        seen = np.zeros(count, dtype=np.bool_)
        seen[member[: len(self.entries)]] = True
        return float(1 - seen[member[len(self.entries) :]].mean())

    def _numbered(self, modes: tuple[int, ...]) -> tuple[NDArray[np.intp], int]:
        """Combination of labels of every point, and how many combinations occur."""
        sizes = [self.sizes[n] for n in modes]
        found, member = distinct_keys(cell_keys(self._points[:, modes], sizes), math.prod(sizes))
        return member.astype(np.intp, copy=False), len(found)

    def _around(self, cells: NDArray[np.integer], left: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
        """Surroundings of points with those entries that are left, ``(cells,)`` each."""
        n_left = int(left.sum())
        found = []
        for modes, (member, count) in self._numbers.items():
            counts = np.bincount(member[: len(left)][left], minlength=count)
            cells_per_entry = math.prod(self.sizes[n] for n in modes) / n_left
            found.append(np.minimum(counts[member[cells]] * cells_per_entry, MAX_SHARE))
        found += [np.log2(self._distances(n, cells, left)) for n in self.ordered]
        return [*found, *(self._later(n, cells, left) for n in self.ordered)]

    def _later(self, n: int, cells: NDArray[np.integer], left: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Share of the entries that lie after cells."""
        per_place = np.bincount(self.entries[left, n], minlength=self.sizes[n])
        after: NDArray[np.float64] = 1 - np.cumsum(per_place) / left.sum()
        return after[self._points[cells, n]]

    @cached_property
    def _lines(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.intp]]]:
        """By ordered mode: where all points lie on a line with all fibers, far apart, and the order of the entries."""
        found = {}
        for n in self.ordered:
            at = _line(self._points, n, self.sizes)
            found[n] = at, np.argsort(at[: len(self.entries)], kind="stable")
        return found

    def _distances(self, n: int, cells: NDArray[np.integer], left: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Steps from cells to the nearest entry of their fiber, ``(cells,)``; twice the size at most."""
        at, order = self._lines[n]
        kept = order[left[order]]
        return np.clip(_gaps(at[kept], at[cells]), 1, 2 * self.sizes[n])


def steps_to_nearest(
    entries: NDArray[np.integer], cells: NDArray[np.integer], n: int, sizes: Sequence[int]
) -> NDArray[np.float64]:
    """Places to the nearest entry that differs from a cell in mode ``n`` only, ``(cells,)``; infinite if none does.

    Parameters
    ----------
    entries, cells
        By place in the order of that mode, ``(…, modes)``.
    n
        The mode.
    sizes
        Places of every mode.
    """
    at = _line(np.concatenate([entries, cells]), n, sizes)
    found = _gaps(np.sort(at[: len(entries)]), at[len(entries) :])
    return np.where(found < 2 * sizes[n], found, np.inf)


def _line(points: NDArray[np.integer], n: int, sizes: Sequence[int]) -> NDArray[np.int64]:
    """Positions on a line on which fibers of a mode follow each other, farther apart than they are long."""
    others = [m for m in range(len(sizes)) if m != n]
    lengths = [sizes[m] for m in others]
    fiber = distinct_keys(cell_keys(points[:, others], lengths), math.prod(lengths))[1]
    return fiber.astype(np.int64) * (4 * sizes[n]) + points[:, n]


def _gaps(entries: NDArray[np.int64], cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """From positions to the nearest of others, which are in order."""
    far = np.iinfo(np.int64).max // 4
    line = np.concatenate([[-far], entries, [far]])
    after = np.searchsorted(line, cells)
    return np.minimum(line[after] - cells, cells - line[after - 1]).astype(np.float64)


def _drawn(count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Some of so many, in order."""
    return np.arange(count) if count <= MAX_CELLS else np.sort(rng.permutation(count)[:MAX_CELLS])
