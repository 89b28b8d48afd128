"""Blocks that memorise, fitted to what the other blocks leave of entries that they did not see.

Fitted to their own training residuals they would find nothing: those are overfitted. So ``local`` and ``tables`` come
last, and learn from residuals of entries that were left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.baselines.tables import Tables, fit_tables, refit_tables
from jointensor.data.sparse import SparseTensor
from jointensor.data.split import groups_of
from jointensor.training.ensemble import Memory
from jointensor.training.local import Local, numbered

WORTH = 0.002
"""Share of the squared error that a part must take away to be kept."""


@dataclass(frozen=True)
class Remembered:
    """What is kept, and what it leaves of the residuals it was fitted to, each without itself."""

    parts: tuple[Memory, ...]
    left: NDArray[np.float64]
    notes: tuple[tuple[str, float], ...]
    """What was tried, and the share of the squared error it took away; those that are kept come first."""
    said: tuple[NDArray[np.float64], ...] = ()
    """What each part says of the entries it was fitted to, without them."""

    @property
    def names(self) -> list[str]:
        """Of the parts that are kept."""
        return [name for name, _ in self.notes[: len(self.parts)]]

    @property
    def has_neighbours(self) -> bool:
        """Whether neighbours along a mode are asked."""
        return any(isinstance(part, Local) for part in self.parts)

    def first(self, count: int) -> Remembered:
        """The first parts alone."""
        left = self.left + sum(self.said[count:], np.zeros_like(self.left))
        return Remembered(self.parts[:count], left, self.notes[:count], self.said[:count])

    def at(self, where: NDArray[np.integer]) -> Remembered:
        """The same parts, and what is left of some of the residuals."""
        return Remembered(self.parts, self.left[where], self.notes, tuple(one[where] for one in self.said))


def fit_memory(
    tensor: SparseTensor,
    residuals: NDArray[np.floating],
    folds: NDArray[np.integer],
    *,
    tables: bool = True,
    along: Sequence[int] | None = None,
    groups: Sequence[int] = (),
) -> Remembered:
    """Neighbours along every ordered mode, then tables, as far as they take away some of the error.

    Parameters
    ----------
    tensor
        The entries.
    residuals
        What is left of their values by models that did not see them, ``(entries,)``.
    folds
        Which entries are left out together when tables are judged, ``(entries,)``.
    tables
        Whether tables are tried at all.
    along
        Modes whose neighbours are asked; all ordered ones where it is not said.
    groups
        Modes whose labels, taken together, will be new in what is asked.
    """
    left = residuals.astype(np.float64)
    heard: list[NDArray[np.float64]] = []
    parts: list[Memory] = []
    notes: list[tuple[str, float]] = []
    if along is None:
        along = [n for n, mode in enumerate(tensor.modes) if mode.order != "none"]
    tried = [_Along(tensor, n) for n in along if numbered(tensor.shape)]
    while tried:
        found = [(one, *one.fit(left)) for one in tried]
        gains = [_gain(left, said) for _, _, said in found]
        best = int(np.argmax(gains))
        one, part, said = found[best]
        notes.append((one.name, gains[best]))
        if gains[best] < WORTH:
            break
        parts.append(part)
        heard.append(said)
        left = left - said
        tried = [other for other in tried if other is not one]
    if tables and tensor.n_modes > 2:
        table, said = _cross_fit_tables(tensor, left, folds, groups)
        gain = _gain(left, said)
        notes.append(("tables", gain))
        if gain >= WORTH:
            parts.append(table)
            heard.append(said)
            left = left - said
    notes.sort(key=lambda note: note[1] < WORTH)
    return Remembered(tuple(parts), left, tuple(notes), tuple(heard))


def _gain(left: NDArray[np.float64], said: NDArray[np.float64]) -> float:
    """Share of the squared error that is taken away."""
    size = float(np.mean(left**2))
    return 1 - float(np.mean((left - said) ** 2)) / size if size else 0.0


class _Along:
    """Neighbours along one mode."""

    def __init__(self, tensor: SparseTensor, mode: int) -> None:
        self.tensor, self.mode = tensor, mode
        self.name = f"local:{tensor.modes[mode].name}"

    def fit(self, left: NDArray[np.float64]) -> tuple[Local, NDArray[np.float64]]:
        """The part, and what it says of every entry without that entry."""
        tensor = self.tensor
        part = Local.of(tensor.indices, left, self.mode, tensor.modes[self.mode], tensor.shape).tuned()
        return part, part.left_out(tensor.indices)


def _cross_fit_tables(
    tensor: SparseTensor, left: NDArray[np.float64], folds: NDArray[np.integer], groups: Sequence[int]
) -> tuple[Tables, NDArray[np.float64]]:
    """Tables of all entries, and what those of the other folds say of every entry."""
    values = tensor.with_values(left)
    said = np.zeros(len(left))
    if (folds == folds[0]).all():  # everything was left out at once: any parts will do
        count, member = groups_of(tensor, groups)
        folds = (np.random.default_rng(0).permutation(count) % 3)[member]
    names = np.unique(folds)
    first = folds == names[0]
    shape = fit_tables(values.take(np.flatnonzero(~first)), values.take(np.flatnonzero(first)))
    said[first] = shape.predict(tensor.indices[first])
    for name in names[1:]:
        here = folds == name
        said[here] = refit_tables(shape, values.take(np.flatnonzero(~here))).predict(tensor.indices[here])
    return refit_tables(shape, values), said
