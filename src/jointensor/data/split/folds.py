"""Groups of entries, the folds of a cross-validation, and the entries that only calibrate intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor, cell_keys, distinct_keys

FOLDS = 5

MIN_ENTRIES_TO_HOLD_OUT = 400_000
"""Tensors with fewer entries hold out none for calibration; their intervals come from the folds."""
CALIBRATION_SHARE, MAX_CALIBRATION_ENTRIES = 0.04, 20_000
"""Share of the entries that only calibrates intervals, and the most entries it may be."""


@dataclass(frozen=True)
class Tail:
    """The last labels of an ordered mode: what is learnt from lies before them."""

    mode: int
    size: int
    """Labels with entries that a fold leaves out."""

    def fitting(self, labels: int) -> Tail:
        """With so few labels that all folds leave half of ``labels`` to learn from."""
        return Tail(self.mode, max(1, min(self.size, labels // (2 * FOLDS))))


Groups = tuple[int | tuple[int, int] | Tail, ...]
"""Entries that stay together: those with the same labels of some modes; ``(mode, n)`` counts n neighbouring labels as
one. Without modes every entry is on its own. A :class:`Tail` is alone: the groups are the labels of its mode."""


def blocks_of(groups: Groups) -> list[tuple[int, int]]:
    """Modes with the number of neighbouring labels that count as one."""
    return [one if isinstance(one, tuple) else (one.mode, 1) if isinstance(one, Tail) else (one, 1) for one in groups]


def tail_of(groups: Groups) -> Tail | None:
    """The tail that is left out, if one is."""
    return next((one for one in groups if isinstance(one, Tail)), None)


def new_modes(groups: Groups) -> tuple[int, ...]:
    """Modes whose labels, taken together, are new where a group is left out; none where blocks have neighbours."""
    return () if any(isinstance(one, tuple) for one in groups) else tuple(n for n, _ in blocks_of(groups))


def places_of(mode: Mode) -> NDArray[np.int64]:
    """Place of every label in the order of its mode, ``(size,)``."""
    return np.argsort(np.argsort(mode.coordinates(), kind="stable"), kind="stable")


def groups_of(tensor: SparseTensor, groups: Groups) -> tuple[int, NDArray[np.integer]]:
    """Number of groups, and the group of every entry."""
    if not groups:
        return len(tensor), np.arange(len(tensor))
    columns, sizes = [], []
    for n, size in blocks_of(groups):
        column = tensor.indices[:, n]
        columns.append(column if size == 1 else places_of(tensor.modes[n])[column] // size)
        sizes.append(-(-tensor.shape[n] // size))
    found, member = distinct_keys(cell_keys(np.column_stack(columns), sizes), math.prod(sizes))
    return len(found), member


def steps_from_end(tensor: SparseTensor, mode: int) -> NDArray[np.int64]:
    """Labels with entries that come after that of an entry, ``(entries,)``."""
    places = places_of(tensor.modes[mode])[tensor.indices[:, mode]]
    found, member = distinct_keys(places, tensor.shape[mode])
    return len(found) - 1 - member.astype(np.int64)


def make_folds(tensor: SparseTensor, groups: Groups, seed: int) -> NDArray[np.int8]:
    """The fold of every entry, ``(entries,)``; entries of a group share their fold.

    Of a tail, fold 0 has the last labels, fold 1 those before, and so on (rolling origins); -1: in none.
    """
    tail = tail_of(groups)
    if tail is not None:
        window = steps_from_end(tensor, tail.mode) // tail.size
        return np.where(window < FOLDS, window, -1).astype(np.int8)
    count, member = groups_of(tensor, groups)
    return (np.random.default_rng([seed, 5]).permutation(count) % FOLDS).astype(np.int8)[member]


def learnt_from(folds: NDArray[np.int8], fold: int, groups: Groups) -> NDArray[np.bool_]:
    """Marks the entries that a fit learns from which a fold is left out of, ``(entries,)``: of tails, none after it."""
    return folds != fold if tail_of(groups) is None else (folds > fold) | (folds < 0)


def held_out(tensor: SparseTensor, groups: Groups, seed: int) -> NDArray[np.bool_]:
    """Marks the entries that only calibrate intervals, ``(entries,)``; whole groups, as in :func:`make_folds`.

    None of a tail: the last entries are needed most.
    """
    enough = len(tensor) >= MIN_ENTRIES_TO_HOLD_OUT and tail_of(groups) is None
    share = min(CALIBRATION_SHARE, MAX_CALIBRATION_ENTRIES / len(tensor)) if enough else 0.0
    count, member = groups_of(tensor, groups)
    held: NDArray[np.bool_] = (np.random.default_rng([seed, 9]).random(count) < share)[member]
    return held
