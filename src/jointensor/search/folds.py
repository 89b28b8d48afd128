"""Which entries are left out together when candidates are scored, and which only calibrate intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import (
    FOLDS,
    Groups,
    Split,
    blocks_of,
    groups_of,
    held_out,
    learnt_from,
    make_folds,
    new_modes,
    tail_of,
)
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.predictors.axes import axes_of
from jointensor.predictors.dependencies import dependency_table, find_dependency, seen_before, seen_elsewhere
from jointensor.predictors.tables import Table
from jointensor.search.settings import SETTINGS, SearchSettings

LeftOut = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions of entries in the tensor of a search, and predictions for them by models that did not see them."""


@dataclass(frozen=True)
class Folds:
    """The entries of a search, in folds."""

    whole: SparseTensor
    """All entries."""
    tensor: SparseTensor
    """The entries that candidates are cross-fitted to."""
    untouched: SparseTensor
    """The other entries, which only calibrate; none of a small tensor."""
    positions: NDArray[np.int64]
    """Positions of the entries of ``tensor`` in ``whole``, ``(entries,)``."""
    fold: NDArray[np.int8]
    """Fold of every entry of ``tensor``, ``(entries,)``; of tails the last labels are fold 0, and entries before all
    folds are in -1."""
    dependent: NDArray[np.bool_]
    """Entries whose value others, which a fit to the other folds learns from, give by a functional dependency,
    ``(entries,)``. They are learnt from in every fold, and score nothing."""
    deciding: tuple[int, ...] | None
    """Modes whose labels decide the value; ``None`` if there is no such dependency."""
    together: Groups
    """Which entries are left out together."""

    @property
    def groups(self) -> tuple[int, ...]:
        """Modes whose labels, taken together, will be new in the entries to predict."""
        return new_modes(self.together)

    @property
    def scored(self) -> NDArray[np.int8]:
        """Fold in which an entry is left out and scored, ``(entries,)``; -1 for those that never are."""
        return np.where(self.dependent, np.int8(-1), self.fold)

    def positions_of(self, folds: Sequence[int]) -> NDArray[np.int64]:
        """Positions in ``tensor`` of the entries that folds score, one fold after the other."""
        scored = self.scored
        return np.concatenate([np.flatnonzero(scored == fold) for fold in folds])

    def truth(self, folds: Sequence[int]) -> NDArray[np.float32]:
        """Values of the entries that folds score, one fold after the other."""
        return self.tensor.values[self.positions_of(folds)]

    @property
    def by_time(self) -> bool:
        """Whether folds follow each other: the fit of one learns from nothing after it."""
        return tail_of(self.together) is not None

    def learnt_from(self, fold: int) -> NDArray[np.bool_]:
        """Entries that a fold's fit learns from, ``(entries,)``."""
        others = learnt_from(self.fold, fold, self.together)
        return others if self.by_time else others | self.dependent

    def split(self, fold: int) -> tuple[SparseTensor, SparseTensor]:
        """Entries that a fold's fit learns from, and those it is scored on."""
        return self.tensor.take(np.flatnonzero(self.learnt_from(fold))), self.left_out(fold)

    def left_out(self, fold: int) -> SparseTensor:
        """Entries that a fold's fit is scored on."""
        return self.tensor.take(np.flatnonzero(self.scored == fold))

    def default_split(self, seed: int, fold: int = 0) -> tuple[Split, NDArray[np.int64]]:
        """Half of the entries that a fold scores as validation entries, the others as training entries.

        Of tails all that the last fold scores, and none of the others: such a fit would not know the last entries.
        Returns the positions of the validation entries in ``tensor``, too.
        """
        if self.by_time:
            chosen = (self.scored == fold) & (fold == 0)
            return self._validated_by(chosen, self.learnt_from(fold), seed), np.flatnonzero(chosen)
        count, member = groups_of(self.tensor, self.together)
        half = (np.random.default_rng([seed, 12]).random(count) < 0.5)[member]
        chosen = half & (self.scored == fold)  # (entries,)
        return self._validated_by(chosen, ~chosen, seed), np.flatnonzero(chosen)

    def _validated_by(self, chosen: NDArray[np.bool_], others: NDArray[np.bool_], seed: int) -> Split:
        """Training and validation entries, ``(entries,)`` are marked."""
        train, valid, none = (self.tensor.take(np.flatnonzero(one)) for one in (others, chosen, chosen & ~chosen))
        return Split(train, valid, none, rule="fold", seed=seed)

    def clip(self, predicted: NDArray[Any]) -> NDArray[np.float32]:
        """Predictions within the range of the values."""
        return np.clip(predicted, self.tensor.values.min(), self.tensor.values.max()).astype(np.float32)

    def kriging_axes(self) -> list[tuple[int, ...]]:
        """Modes of every axis along which an entry to predict can have neighbours.

        Along an axis with any mode that is not one of the groups' the neighbours can be of the entry's own group, and
        new groups have none; so can they along a mode whose labels count in blocks. What follows a tail has neighbours
        on one side, and residuals of all folds have them on both.
        """
        if self.by_time:
            return []
        whole = {n for n, size in blocks_of(self.together) if size == 1}
        return [axis for axis in axes_of(self.tensor.modes) if not self.together or set(axis) <= whole]

    def knn_modes(self) -> list[int]:
        """Modes whose labels can have nearest neighbours, for the same reason."""
        return [n for n in range(self.tensor.n_modes) if n in self.groups or not self.groups]

    def dependent_values(self, tensor: SparseTensor) -> Table | None:
        """Values that the functional dependency gives, by the entries of a tensor."""
        return None if self.deciding is None else dependency_table(tensor, self.deciding)


def fold_entries(tensor: SparseTensor, together: Groups, seed: int, settings: SearchSettings = SETTINGS) -> Folds:
    """Put the entries of a search into folds, those of a group into the same one.

    Raises
    ------
    ConfigError
        If there are too few of them.
    """
    least = 2 * FOLDS
    if len(tensor) < least:
        raise ConfigError(f"--rank auto needs at least {least} entries to learn from, there are {len(tensor)}")
    away = held_out(tensor, together, seed)
    positions = np.flatnonzero(~away)
    kept = tensor.take(positions)
    fold = make_folds(kept, together, seed)
    deciding = find_dependency(kept)
    by_time = tail_of(together) is not None
    dependent = given_by_others(kept, deciding, fold, settings, by_time=by_time)
    return Folds(
        whole=tensor,
        tensor=kept,
        untouched=tensor.take(np.flatnonzero(away)),
        positions=positions,
        fold=fold,
        dependent=dependent,
        deciding=deciding if dependent.any() else None,
        together=together,
    )


def given_by_others(
    tensor: SparseTensor,
    modes: tuple[int, ...] | None,
    fold: NDArray[np.integer],
    settings: SearchSettings = SETTINGS,
    *,
    by_time: bool = False,
) -> NDArray[np.bool_]:
    """Entries whose value entries of other folds give, ``by_time`` earlier ones: leaving them out shows nothing.

    None of them if too few others would be left to score candidates on.
    """
    nothing = np.zeros(len(tensor), dtype=np.bool_)
    if modes is None:
        return nothing
    found = seen_before(tensor, modes, fold) if by_time else seen_elsewhere(tensor, modes, fold)
    in_folds = fold >= 0
    least = np.bincount(fold[~found & in_folds], minlength=FOLDS).min()
    enough = FOLDS * least >= settings.min_open_share * in_folds.sum() and least >= settings.min_open_entries
    return found & in_folds if enough else nothing
