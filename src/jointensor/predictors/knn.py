"""k-nearest-neighbour model of residuals: those of the same fiber, at labels whose residuals were similar elsewhere.

Words that appear together, people who get the same letters, shops of one chain: the neighbours of an entry along a mode
need not be adjacent labels, but those that its label has much in common with. For every label a some neighbours b are
kept, those whose residuals explain most of a's where both were observed, and their weights in

    r_a(fiber) ≈ Σ_b ω_ab r_b(fiber),   r_b(fiber) = 0 where b was not observed in the fiber,

by ridge regression. Fibers with large residuals are weighted down: one of them would deterused all its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from jointensor.predictors.base import PREDICTORS, Packed, Predictor, is_array, require
from jointensor.predictors.fibers import check_fibers, fiber_keys, inside

MAX_NEIGHBOURS = 12
"""Neighbours of a label: each costs a lookup per prediction, and further ones hardly add."""

RIDGE_GRID = (3.0, 10.0, 30.0, 100.0)
"""Ridges of the weights, in squared residuals of average size; the one with the lowest held-out error is kept."""

SELECTION_RIDGE = 10.0
"""The same where neighbours are selected."""

MAX_PAIRS, MAX_LABELS = 2e8, 20_000
"""Pairs of entries that share a fiber, and labels of a mode, above which the model would take too long and is not
fitted."""

SECONDS_PER_ENTRY = 6e-6
"""Seconds that a fit along one mode takes on one core, per entry; a search plans by it."""

CHUNK = 1 << 17
"""Entries that are predicted at a time: bounds memory."""

ARRAYS = ("keys", "residuals", "neighbours", "weights")


@dataclass(frozen=True)
class Fibers:
    """Residuals in the order of their cells, the mode varying fastest."""

    keys: NDArray[np.int64]
    residuals: NDArray[np.floating]
    size: int
    """Labels of the mode."""

    def of_neighbours(self, cells: NDArray[np.int64], neighbours: NDArray[np.int32]) -> NDArray[np.float64]:
        """Residuals of neighbours in the fibers of cells, ``(cells, MAX_NEIGHBOURS)``; zero where not observed."""
        labels = neighbours[cells % self.size]  # (cells, MAX_NEIGHBOURS)
        wanted = (cells // self.size * self.size)[:, None] + labels
        rows = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((self.keys[rows] == wanted) & (labels >= 0), self.residuals[rows], 0.0)

    def select(self, used: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Of every label the others that explain most of it, each by itself: S²/(Q + λ), S = Σ r_a r_b, Q = Σ r_b².

        Over fibers in which both were observed, the label itself among the entries that are ``used``.
        """
        fiber, label = self.numbers(), self.keys % self.size
        shape = (int(fiber[-1]) + 1, self.size)
        every = csr_array((self.residuals, (fiber, label)), shape=shape)
        own = csr_array((self.residuals[used], (fiber[used], label[used])), shape=shape)
        there = csr_array((np.ones(int(used.sum())), (fiber[used], label[used])), shape=shape)
        both = csr_array(own.T @ every)  # S, (labels, labels)
        energy = csr_array(there.T @ every.multiply(every))  # Q
        energy.data = 1 / (energy.data + SELECTION_RIDGE)
        gains = csr_array(both.multiply(both).multiply(energy))
        found = np.full((self.size, MAX_NEIGHBOURS), -1, dtype=np.int32)
        for name, (start, end) in enumerate(pairwise(gains.indptr)):
            others = gains.indices[start:end]
            gain = np.where(others == name, 0.0, gains.data[start:end])
            best = np.argsort(-gain, kind="stable")[:MAX_NEIGHBOURS]
            best = best[gain[best] > 0]
            found[name, : len(best)] = others[best]
        return found

    def weigh(self, used: NDArray[np.bool_], neighbours: NDArray[np.int32]) -> NDArray[np.float64]:
        """Weights ω from the entries that are ``used``, for every ridge, ``(ridges, labels, MAX_NEIGHBOURS)``."""
        label = self.keys[used] % self.size
        order = np.argsort(label, kind="stable")
        beside, truth = self.of_neighbours(self.keys[used], neighbours)[order], self.residuals[used][order]
        systems, sides = np.zeros((self.size, MAX_NEIGHBOURS, MAX_NEIGHBOURS)), np.zeros((self.size, MAX_NEIGHBOURS, 1))
        for name, (start, end) in enumerate(pairwise([0, *np.cumsum(np.bincount(label, minlength=self.size))])):
            systems[name] = beside[start:end].T @ beside[start:end]
            sides[name, :, 0] = beside[start:end].T @ truth[start:end]
        return np.stack(
            [np.linalg.solve(systems + ridge * np.eye(MAX_NEIGHBOURS), sides)[:, :, 0] for ridge in RIDGE_GRID]
        )

    def numbers(self) -> NDArray[np.int64]:
        """Which fiber every entry is in, counted from 0."""
        fiber = self.keys // self.size
        return np.cumsum(np.diff(fiber, prepend=fiber[:1]) > 0)

    def normalised(self) -> Fibers:
        """The same with residuals divided by their size, that of all and of their fiber together."""
        fiber, squares = self.numbers(), self.residuals.astype(np.float64) ** 2
        spread = np.bincount(fiber, squares) / np.bincount(fiber)  # mean square, (fibers,)
        return replace(self, residuals=self.residuals / np.sqrt(squares.mean() + spread)[fiber])


@PREDICTORS.register("knn")
@dataclass(frozen=True)
class KnnResiduals(Predictor):
    """Residuals, and the neighbours and weights by which those of a label are predicted."""

    mode: int
    shape: tuple[int, ...]
    keys: NDArray[np.int64]
    """Cells as numbers, the mode varying fastest; sorted."""
    residuals: NDArray[np.float32]
    neighbours: NDArray[np.int32]
    """Labels, ``(labels, MAX_NEIGHBOURS)``; -1 where there are fewer."""
    weights: NDArray[np.float32]
    """ω, ``(labels, MAX_NEIGHBOURS)``."""

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Residuals predicted from the neighbours; zero where none was observed."""
        known = inside(indices, self.shape)
        cells, predictions = np.where(known[:, None], indices, 0), np.zeros(len(indices))
        fibers = Fibers(self.keys, self.residuals, self.shape[self.mode])
        for start in range(0, len(cells), CHUNK):
            chunk = cells[start : start + CHUNK]
            beside = fibers.of_neighbours(fiber_keys(chunk, self.shape, self.mode), self.neighbours)
            predictions[start : start + CHUNK] = np.einsum("ek,ek->e", beside, self.weights[chunk[:, self.mode]])
        return np.where(known, predictions, 0.0)

    def n_parameters(self) -> int:
        """All residuals, and two numbers per neighbour."""
        return len(self.residuals) + 2 * int((self.neighbours >= 0).sum())

    def supports(self, n_modes: int) -> bool:
        """As many modes as the entries had."""
        return len(self.shape) == n_modes

    def explain(self) -> dict[str, Any]:
        """Along which mode."""
        return super().explain() | {"mode": self.mode}

    def pack(self) -> Packed:
        """Residuals, neighbours and weights."""
        config = {"mode": self.mode, "shape": list(self.shape)}
        return Packed(config, {name: torch.as_tensor(getattr(self, name)) for name in ARRAYS})

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored residuals, if their neighbours are labels of the mode."""
        mode, (keys, residuals, neighbours, weights) = packed.config["mode"], map(packed.array, ARRAYS)
        shape = check_fibers(mode, packed.config["shape"], keys, residuals)
        size = (shape[mode], MAX_NEIGHBOURS)
        require(len(keys), "keys of fibers")
        require(is_array(neighbours, np.int32, *size), "neighbours")
        require(((neighbours >= -1) & (neighbours < size[0])).all(), "neighbours")
        require(is_array(weights, np.float32, *size), "weights of neighbours")
        return cls(mode, shape, keys, residuals, neighbours, weights)


def fit_knn(
    indices: NDArray[np.integer],
    residuals: NDArray[np.floating],
    folds: NDArray[np.integer],
    mode: int,
    shape: Sequence[int],
) -> tuple[KnnResiduals, NDArray[np.float64]] | None:
    """A model along a mode, and cross-fitted predictions of its entries: selected and weighed by other folds.

    ``None`` where no entries share a fiber, or too many do.
    """
    shape, keys = tuple(shape), fiber_keys(indices, tuple(shape), mode)
    order = np.argsort(keys)
    fibers = Fibers(keys[order], residuals[order].astype(np.float64), shape[mode])
    pairs = float((np.bincount(fibers.numbers()).astype(np.float64) ** 2).sum()) - len(keys)
    if not 0 < pairs <= MAX_PAIRS or shape[mode] > MAX_LABELS or not fibers.residuals.any():
        return None
    normalised, fold_of = fibers.normalised(), folds[order]
    predictions = np.zeros((len(RIDGE_GRID), len(keys)))
    for fold in np.unique(folds):
        here = fold_of == fold
        neighbours = normalised.select(~here)
        weights = normalised.weigh(~here, neighbours)
        beside, labels = fibers.of_neighbours(fibers.keys[here], neighbours), fibers.keys[here] % fibers.size
        predictions[:, here] = [np.einsum("ek,ek->e", beside, one[labels]) for one in weights]
    best = int(np.argmin(((fibers.residuals - predictions) ** 2).sum(axis=1)))
    everything = np.ones(len(keys), dtype=np.bool_)
    neighbours = normalised.select(everything)
    weights = normalised.weigh(everything, neighbours)[best].astype(np.float32)
    cross_fitted = np.empty(len(keys))
    cross_fitted[order] = predictions[best]
    model = KnnResiduals(mode, shape, fibers.keys, fibers.residuals.astype(np.float32), neighbours, weights)
    return model, cross_fitted
