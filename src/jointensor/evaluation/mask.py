"""A picture of which cells are seen, missing, and left out to validate, in two modes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.split import places_of
from jointensor.data.tensor import SparseTensor, join

MAX_ROWS, MAX_COLUMNS = 40, 80
"""Labels that are drawn of either mode."""
MIN_DENSITY = 0.05
"""Share of the cells with entries from which one slice is drawn; of sparser ones all slices, one over the other."""

MISSING, SEEN, VALIDATES = 0, 1, 2


@dataclass(frozen=True)
class Picture:
    """Cells of two modes."""

    modes: tuple[int, int]
    """Of rows and columns."""
    rows: list[int]
    """Labels by position."""
    columns: list[int]
    at: dict[int, int]
    """The label of every other mode; none where all slices are drawn one over the other."""
    cells: NDArray[np.int8]
    """``MISSING``, ``SEEN`` or ``VALIDATES``, ``(rows, columns)``; the more frequent one of the last two."""


@dataclass(frozen=True)
class Mask:
    """Entries that are learnt from, and entries that validate."""

    train: SparseTensor
    valid: SparseTensor
    together: tuple[int, ...] = ()
    """Modes by whose labels entries are left out together."""

    def picture(self) -> Picture:
        """Of the two most telling modes: those of the groups, then those with an order, then the largest."""
        modes, entries = self.train.modes, join(self.train, self.valid)
        ranked = sorted(
            range(len(modes)),
            key=lambda n: (n not in self.together, modes[n].order == "none", -modes[n].size),
        )
        rows, columns = sorted(ranked[:2], key=lambda n: (modes[n].order != "none", modes[n].size))
        labels = [_labels(entries, rows, MAX_ROWS), _labels(entries, columns, MAX_COLUMNS)]
        frequent = {n: int(np.bincount(entries.indices[:, n]).argmax()) for n in ranked[2:]}
        for at in (frequent, {}):
            seen, validates = (self._counts(one, (rows, columns), labels, at) for one in (self.train, self.valid))
            if (seen + validates > 0).mean() >= MIN_DENSITY:
                break
        cells = np.where(validates > seen, VALIDATES, np.where(seen > 0, SEEN, MISSING)).astype(np.int8)
        return Picture((rows, columns), labels[0], labels[1], at, cells)

    @staticmethod
    def _counts(
        part: SparseTensor, modes: tuple[int, int], labels: list[list[int]], at: dict[int, int]
    ) -> NDArray[np.int64]:
        """Entries of every cell of the picture, ``(rows, columns)``."""
        inside = np.all([part.indices[:, n] == label for n, label in at.items()], axis=0) if at else slice(None)
        places = []
        for n, chosen in zip(modes, labels, strict=True):
            place = np.full(part.shape[n], -1)
            place[chosen] = np.arange(len(chosen))
            places.append(place[part.indices[inside, n]])
        there = (places[0] >= 0) & (places[1] >= 0)
        counts = np.zeros([len(chosen) for chosen in labels], dtype=np.int64)
        np.add.at(counts, (places[0][there], places[1][there]), 1)
        return counts


def _labels(entries: SparseTensor, n: int, most: int) -> list[int]:
    """The last labels of a mode with an order, in this order; the most frequent ones of others."""
    mode: Mode = entries.modes[n]
    if mode.order != "none":
        return np.argsort(places_of(mode), kind="stable")[-most:].tolist()
    counts = np.bincount(entries.indices[:, n], minlength=mode.size)
    return sorted(np.argsort(-counts, kind="stable")[:most].tolist())
