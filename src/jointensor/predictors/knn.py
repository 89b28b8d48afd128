"""What labels know that go together: residuals of the same fiber, at labels whose residuals were alike before.

Words that come together, people who get the same letters, shops of one chain: the neighbours of an entry along a mode
need not be the next ones, but those that its label has much in common with. Of every label a some partners b are kept,
those whose residuals tell most of its own where both were seen, and their weights in

    r_a(fiber) ≈ Σ_b ω_ab r_b(fiber),   r_b(fiber) = 0 where b was not seen in the fiber,

by ridge regression. Fibers whose residuals are large count less for it: one of them would decide on all its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from jointensor.predictors.interpolation import fiber_keys

MOST = 12
"""Partners of a label, at most."""

RIDGES = (3.0, 10.0, 30.0, 100.0)
"""Residuals of average size that are added to what partners are weighed by; the one that tells most is kept."""

CHOOSING = 10.0
"""The same where partners are chosen."""

PAIRS, LABELS = 2e8, 20_000
"""Pairs of entries that share a fiber, and labels of a mode, above which partners are not looked for."""

SECONDS = 6e-6
"""That it takes on one core to find partners along a mode, per entry."""

CHUNK = 1 << 17
"""Entries that are asked for at a time."""


@dataclass(frozen=True)
class Fibers:
    """Residuals in the order of their cells, the mode varying fastest."""

    keys: NDArray[np.int64]
    residuals: NDArray[np.floating]
    size: int
    """Labels of the mode."""

    def seen(self, cells: NDArray[np.int64], partners: NDArray[np.int32]) -> NDArray[np.float64]:
        """Residuals of partners in the fibers of cells, ``(cells, MOST)``; zero where they were not seen."""
        labels = partners[cells % self.size]  # (cells, MOST)
        wanted = (cells // self.size * self.size)[:, None] + labels
        rows = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((self.keys[rows] == wanted) & (labels >= 0), self.residuals[rows], 0.0)

    def choose(self, mine: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Of every label those that tell most of it, each by itself: S²/(Q + λ), S = Σ r_a r_b and Q = Σ r_b².

        Over fibers in which both were seen, the label itself among the entries that are ``mine``.
        """
        fiber, label = self.numbered(), self.keys % self.size
        shape = (int(fiber[-1]) + 1, self.size)
        every = csr_array((self.residuals, (fiber, label)), shape=shape)
        own = csr_array((self.residuals[mine], (fiber[mine], label[mine])), shape=shape)
        there = csr_array((np.ones(int(mine.sum())), (fiber[mine], label[mine])), shape=shape)
        both = csr_array(own.T @ every)  # S, (labels, labels)
        energy = csr_array(there.T @ every.multiply(every))  # Q
        energy.data = 1 / (energy.data + CHOOSING)
        told = csr_array(both.multiply(both).multiply(energy))
        found = np.full((self.size, MOST), -1, dtype=np.int32)
        for name, (start, end) in enumerate(pairwise(told.indptr)):
            others = told.indices[start:end]
            gain = np.where(others == name, 0.0, told.data[start:end])
            best = np.argsort(-gain, kind="stable")[:MOST]
            best = best[gain[best] > 0]
            found[name, : len(best)] = others[best]
        return found

    def weigh(self, mine: NDArray[np.bool_], partners: NDArray[np.int32]) -> NDArray[np.float64]:
        """Weights by the entries that are ``mine``, for every ridge, ``(ridges, labels, MOST)``."""
        label = self.keys[mine] % self.size
        order = np.argsort(label, kind="stable")
        seen, truth = self.seen(self.keys[mine], partners)[order], self.residuals[mine][order]
        systems, sides = np.zeros((self.size, MOST, MOST)), np.zeros((self.size, MOST, 1))
        for name, (start, end) in enumerate(pairwise([0, *np.cumsum(np.bincount(label, minlength=self.size))])):
            systems[name] = seen[start:end].T @ seen[start:end]
            sides[name, :, 0] = seen[start:end].T @ truth[start:end]
        return np.stack([np.linalg.solve(systems + ridge * np.eye(MOST), sides)[:, :, 0] for ridge in RIDGES])

    def numbered(self) -> NDArray[np.int64]:
        """Which fiber every entry is in, counted from 0."""
        fiber = self.keys // self.size
        return np.cumsum(np.diff(fiber, prepend=fiber[:1]) > 0)

    def even(self) -> Fibers:
        """The same with residuals of one size: divided by that of all and of their fiber together."""
        fiber, squares = self.numbered(), self.residuals.astype(np.float64) ** 2
        spread = np.bincount(fiber, squares) / np.bincount(fiber)  # mean square, (fibers,)
        return replace(self, residuals=self.residuals / np.sqrt(squares.mean() + spread)[fiber])


@dataclass(frozen=True)
class KnnResiduals:
    """Residuals, and by which of them those of a label can be told."""

    mode: int
    shape: tuple[int, ...]
    keys: NDArray[np.int64]
    """Cells as numbers, the mode varying fastest; sorted."""
    residuals: NDArray[np.float32]
    partners: NDArray[np.int32]
    """Of every label, ``(labels, MOST)``; -1 where there are fewer."""
    weights: NDArray[np.float32]
    """ω, ``(labels, MOST)``."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """What partners say of entries; zero where none was seen."""
        known = np.all((indices >= 0) & (indices < np.array(self.shape)), axis=1)
        cells, said = np.where(known[:, None], indices, 0), np.zeros(len(indices))
        fibers = Fibers(self.keys, self.residuals, self.shape[self.mode])
        for start in range(0, len(cells), CHUNK):
            some = cells[start : start + CHUNK]
            seen = fibers.seen(knn_keys(some, self.shape, self.mode), self.partners)
            said[start : start + CHUNK] = np.einsum("ek,ek->e", seen, self.weights[some[:, self.mode]])
        return np.where(known, said, 0.0)

    def n_parameters(self) -> int:
        """All residuals, and two numbers per partner."""
        return len(self.residuals) + 2 * int((self.partners >= 0).sum())


def fit_knn(
    indices: NDArray[np.integer],
    residuals: NDArray[np.floating],
    folds: NDArray[np.integer],
    mode: int,
    shape: Sequence[int],
) -> tuple[KnnResiduals, NDArray[np.float64]] | None:
    """Partners along a mode, and what is said of every entry where entries of other folds chose and weighed them.

    ``None`` where entries share their fibers with nobody, or with too many others.
    """
    shape, keys = tuple(shape), knn_keys(indices, tuple(shape), mode)
    order = np.argsort(keys)
    fibers = Fibers(keys[order], residuals[order].astype(np.float64), shape[mode])
    pairs = float((np.bincount(fibers.numbered()).astype(np.float64) ** 2).sum()) - len(keys)
    if not 0 < pairs <= PAIRS or shape[mode] > LABELS or not fibers.residuals.any():
        return None
    even, parted, said = fibers.even(), folds[order], np.zeros((len(RIDGES), len(keys)))
    for fold in np.unique(folds):
        here = parted == fold
        partners = even.choose(~here)
        weights = even.weigh(~here, partners)
        seen, labels = fibers.seen(fibers.keys[here], partners), fibers.keys[here] % fibers.size
        said[:, here] = [np.einsum("ek,ek->e", seen, one[labels]) for one in weights]
    best = int(np.argmin(((fibers.residuals - said) ** 2).sum(axis=1)))
    partners = even.choose(np.ones(len(keys), dtype=np.bool_))
    weights = even.weigh(np.ones(len(keys), dtype=np.bool_), partners)[best].astype(np.float32)
    back = np.empty(len(keys))
    back[order] = said[best]
    return KnnResiduals(mode, shape, fibers.keys, fibers.residuals.astype(np.float32), partners, weights), back


def knn_keys(indices: NDArray[np.integer], shape: tuple[int, ...], mode: int) -> NDArray[np.int64]:
    """Cells as numbers, the mode varying fastest."""
    return fiber_keys(indices, shape, mode, np.arange(shape[mode]))
