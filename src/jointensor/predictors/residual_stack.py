"""Blocks that memorise, fitted to what the other blocks leave of entries that they did not see.

Fitted to their own training residuals they would find nothing: those are overfitted. So ``local`` and ``tables`` come
last, and learn from residuals of entries that were left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import groups_of
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.ensemble import Memory
from jointensor.predictors.knn import KnnResiduals, fit_knn
from jointensor.predictors.kriging import Kriging, numbered
from jointensor.predictors.tables import Tables, fit_tables, refit_tables

WORTH = 0.002
"""Share of the squared error that a part must take away to be kept."""

THIRDS = 3
"""Parts of the entries that partners and tables are judged by, where there are no more folds or more would cost."""


@dataclass(frozen=True)
class ResidualStack:
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
        return any(isinstance(part, Kriging) for part in self.parts)

    def first(self, count: int) -> ResidualStack:
        """The first parts alone."""
        left = self.left + sum(self.said[count:], np.zeros_like(self.left))
        return ResidualStack(self.parts[:count], left, self.notes[:count], self.said[:count])

    def at(self, where: NDArray[np.integer]) -> ResidualStack:
        """The same parts, and what is left of some of the residuals."""
        return ResidualStack(self.parts, self.left[where], self.notes, tuple(one[where] for one in self.said))


def fit_residual_stack(
    tensor: SparseTensor,
    residuals: NDArray[np.floating],
    folds: NDArray[np.integer],
    *,
    tables: bool = True,
    along: Sequence[int] | None = None,
    beside: Sequence[int] = (),
    groups: Sequence[int] = (),
) -> ResidualStack:
    """Neighbours along every ordered mode, then partners, then tables, as far as they take away some of the error.

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
    beside
        Modes whose labels may have partners.
    groups
        Modes whose labels, taken together, will be new in what is asked.
    """
    kept = _Kept(residuals.astype(np.float64))
    if along is None:
        along = [n for n, mode in enumerate(tensor.modes) if mode.order != "none"]
    tried = [_Along(tensor, n) for n in along if numbered(tensor.shape)]
    while tried:
        found = [(one, *one.fit(kept.left)) for one in tried]
        one, part, said = max(found, key=lambda item: kept.gain(item[2]))
        if not kept.offer(one.name, part, said):
            break
        tried.remove(one)
    if len(beside) and numbered(tensor.shape):
        _offer_knn(kept, tensor, beside, _thirds(tensor, folds, groups))
    if tables and tensor.n_modes > 2:
        kept.offer("tables", *_cross_fit_tables(tensor, kept.left, folds, groups))
    kept.notes.sort(key=lambda note: note[1] < WORTH)
    return ResidualStack(tuple(kept.parts), kept.left, tuple(kept.notes), tuple(kept.said))


@dataclass
class _Kept:
    """What was worth keeping so far."""

    left: NDArray[np.float64]
    """Of the residuals, by the parts that are kept."""
    parts: list[Memory] = field(default_factory=list)
    said: list[NDArray[np.float64]] = field(default_factory=list)
    notes: list[tuple[str, float]] = field(default_factory=list)

    def gain(self, said: NDArray[np.float64]) -> float:
        """Share of the squared error that is taken away."""
        size = float(np.mean(self.left**2))
        return 1 - float(np.mean((self.left - said) ** 2)) / size if size else 0.0

    def offer(self, name: str, part: Memory, said: NDArray[np.float64]) -> bool:
        """Keep a part if it is worth it; whether it was."""
        gain = self.gain(said)
        self.notes.append((name, gain))
        if gain < WORTH:
            return False
        self.parts.append(part)
        self.said.append(said)
        self.left = self.left - said
        return True


def _offer_knn(kept: _Kept, tensor: SparseTensor, modes: Sequence[int], folds: NDArray[np.integer]) -> None:
    """Partners along modes, those first that tell most by themselves."""

    def found(mode: int) -> tuple[KnnResiduals, NDArray[np.float64]] | None:
        return fit_knn(tensor.indices, kept.left, folds, mode, tensor.shape)

    first = {n: one for n in modes if (one := found(n)) is not None}
    before = kept.left
    for n in sorted(first, key=lambda n: -kept.gain(first[n][1])):
        # found once more in what those leave that were kept since
        again = first[n] if kept.left is before or kept.gain(first[n][1]) < WORTH else found(n)
        if again is not None:
            kept.offer(f"partners:{tensor.modes[n].name}", *again)


def _thirds(tensor: SparseTensor, folds: NDArray[np.integer], groups: Sequence[int]) -> NDArray[np.integer]:
    """Three parts, of whole folds where there are as many."""
    names, which = np.unique(folds, return_inverse=True)
    if len(names) >= THIRDS:
        return which % THIRDS
    count, member = groups_of(tensor, groups)
    return (np.random.default_rng(0).permutation(count) % THIRDS)[member]


class _Along:
    """Neighbours along one mode."""

    def __init__(self, tensor: SparseTensor, mode: int) -> None:
        self.tensor, self.mode = tensor, mode
        self.name = f"local:{tensor.modes[mode].name}"

    def fit(self, left: NDArray[np.float64]) -> tuple[Kriging, NDArray[np.float64]]:
        """The part, and what it says of every entry without that entry."""
        tensor = self.tensor
        part = Kriging.of(tensor.indices, left, self.mode, tensor.modes[self.mode], tensor.shape).tuned()
        return part, part.left_out(tensor.indices)


def _cross_fit_tables(
    tensor: SparseTensor, left: NDArray[np.float64], folds: NDArray[np.integer], groups: Sequence[int]
) -> tuple[Tables, NDArray[np.float64]]:
    """Tables of all entries, and what those of the other folds say of every entry."""
    values = tensor.with_values(left)
    said = np.zeros(len(left))
    if (folds == folds[0]).all():  # everything was left out at once: any parts will do
        folds = _thirds(tensor, folds, groups)
    names = np.unique(folds)
    first = folds == names[0]
    shape = fit_tables(values.take(np.flatnonzero(~first)), values.take(np.flatnonzero(first)))
    said[first] = shape.predict(tensor.indices[first])
    for name in names[1:]:
        here = folds == name
        said[here] = refit_tables(shape, values.take(np.flatnonzero(~here))).predict(tensor.indices[here])
    return refit_tables(shape, values), said
