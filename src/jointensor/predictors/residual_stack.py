"""Models of residuals, stacked on a fitted model: kriging along ordered modes, k nearest neighbours, tables.

They are fitted to residuals of held-out entries: training residuals of a model that overfits are too small, and have
another structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import groups_of
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.axes import axes_of
from jointensor.predictors.base import Predictor
from jointensor.predictors.fibers import can_be_numbered
from jointensor.predictors.knn import KnnResiduals, fit_knn
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.tables import Tables, fit_tables, refit_tables
from jointensor.threads import in_threads

MIN_GAIN = 0.002
"""Share of the held-out squared error that a model must remove to be kept: less is found in noise by chance."""

CHANCE_GAIN = 4.0
"""Share of the squared error of validation entries, times their number, that scaled kriging removes by chance: a scale
and the choice of a mode are fitted to them."""

MAX_SCALE = 2.0
"""Bound of the scale of kriging that is fitted to training residuals."""

MAX_JUDGED_ENTRIES = 200_000
"""Entries by whose leave-one-out error an axis is judged."""

CROSS_FIT_FOLDS = 3
"""Folds that neighbours and tables are judged by, where there are no more or more would cost time."""


@dataclass(frozen=True)
class ResidualStack:
    """The models that are kept, and the residuals that they leave of the entries they were fitted to."""

    models: tuple[Predictor, ...]
    residuals: NDArray[np.float64]
    """What all models together leave, each predicting an entry without having seen it, ``(entries,)``."""
    notes: tuple[tuple[str, float], ...]
    """Names of the models that were tried, and the share of the squared error each removed; kept ones come first."""
    predictions: tuple[NDArray[np.float64], ...] = ()
    """Cross-fitted predictions of each model for the entries, ``(entries,)`` each."""

    @property
    def names(self) -> list[str]:
        """Of the models that are kept."""
        return [name for name, _ in self.notes[: len(self.models)]]

    @property
    def uses_kriging(self) -> bool:
        """Whether one of the models is kriging along a mode."""
        return any(isinstance(model, Kriging) for model in self.models)

    def first(self, count: int) -> ResidualStack:
        """The first models alone."""
        residuals = self.residuals + sum(self.predictions[count:], np.zeros_like(self.residuals))
        return ResidualStack(self.models[:count], residuals, self.notes[:count], self.predictions[:count])

    def at(self, where: NDArray[np.integer]) -> ResidualStack:
        """The same models, with the residuals of some of the entries."""
        predictions = tuple(one[where] for one in self.predictions)
        return ResidualStack(self.models, self.residuals[where], self.notes, predictions)


NO_MODELS = ResidualStack((), np.zeros(0), ())
"""Of entries whose residuals nobody asks for."""


def fit_residual_stack(
    tensor: SparseTensor,
    residuals: NDArray[np.floating],
    folds: NDArray[np.integer],
    *,
    tables: bool = True,
    along: Sequence[tuple[int, ...]] | None = None,
    beside: Sequence[int] = (),
    groups: Sequence[int] = (),
) -> ResidualStack:
    """Kriging along every ordered mode, then neighbours, then tables, as far as they remove some of the error.

    Parameters
    ----------
    tensor
        The entries.
    residuals
        Of models that did not see them, ``(entries,)``.
    folds
        Which entries are held out together when tables are judged, ``(entries,)``.
    tables
        Whether tables are tried at all.
    along
        Modes of every axis along which kriging is tried; all axes of the tensor where it is ``None``.
    beside
        Modes along which nearest neighbours are tried.
    groups
        Modes whose labels, taken together, will be new in the queries.
    """
    draft = _Draft(residuals.astype(np.float64))
    untried = axes_of(tensor.modes) if along is None else list(along) if can_be_numbered(tensor.shape) else []

    def judged(model: Kriging) -> tuple[Kriging, NDArray[np.float64]]:
        return model, model.leave_one_out(tensor.indices)

    _offer_kriging(draft, tensor, untried, draft.residuals, judged, least=MIN_GAIN)
    if len(beside) and can_be_numbered(tensor.shape):
        _offer_knn(draft, tensor, beside, _few_folds(tensor, folds, groups))
    if tables and tensor.n_modes > 2:
        draft.offer("tables", *_cross_fit_tables(tensor, draft.residuals, folds, groups))
    draft.notes.sort(key=lambda note: note[1] < MIN_GAIN)
    return ResidualStack(tuple(draft.models), draft.residuals, tuple(draft.notes), tuple(draft.predictions))


def fit_kriging(
    tensor: SparseTensor,
    residuals: NDArray[np.floating],
    *,
    along: Sequence[tuple[int, ...]],
    in_time: Callable[[], bool] = lambda: True,
) -> tuple[Kriging, ...]:
    """Kriging along some axes, as far as it removes some of the leave-one-out error of a sample of the entries.

    Parameters
    ----------
    tensor
        The entries.
    residuals
        Of models that did not see them, ``(entries,)``.
    along
        Modes of every axis along which kriging is tried.
    in_time
        Asked before every axis; those that are kept by then are returned if it says no.
    """
    places = _some(len(tensor), MAX_JUDGED_ENTRIES)
    draft, sample = _Draft(residuals[places].astype(np.float64)), tensor.take(places)
    untried = list(along) if can_be_numbered(tensor.shape) and len(tensor) else []

    def judged(model: Kriging) -> tuple[Kriging, NDArray[np.float64]]:
        return model, model.leave_one_out(sample.indices)

    _offer_kriging(draft, tensor, untried, residuals.astype(np.float64), judged, least=MIN_GAIN, in_time=in_time)
    return tuple(one for one in draft.models if isinstance(one, Kriging))


def fit_validated_kriging(
    train: SparseTensor,
    residuals: NDArray[np.floating],
    valid: SparseTensor,
    valid_residuals: NDArray[np.floating],
    *,
    along: Sequence[tuple[int, ...]],
    in_time: Callable[[], bool] = lambda: True,
) -> ResidualStack:
    """Kriging of training residuals along some axes, as far as it predicts the residuals of validation entries.

    Training residuals are smaller than those of other entries, so their predictions are scaled.

    Parameters
    ----------
    train
        The entries that the model was fitted to.
    residuals
        Their residuals, ``(entries,)``.
    valid, valid_residuals
        Entries that it was not fitted to, and their residuals.
    along
        Modes of every axis along which kriging is tried.
    in_time
        Asked before every axis; those that are kept by then are returned if it says no.
    """
    draft = _Draft(valid_residuals.astype(np.float64))
    untried = list(along) if can_be_numbered(train.shape) and len(train) and len(valid) else []
    least = MIN_GAIN + CHANCE_GAIN / max(len(valid), 1)

    def judged(model: Kriging) -> tuple[Kriging, NDArray[np.float64]]:
        return _scaled(model, valid, draft.residuals)

    _offer_kriging(draft, train, untried, residuals.astype(np.float64), judged, least=least, in_time=in_time)
    return ResidualStack(tuple(draft.models), draft.residuals, tuple(draft.notes), tuple(draft.predictions))


def _offer_kriging(
    draft: _Draft,
    tensor: SparseTensor,
    axes: Sequence[tuple[int, ...]],
    residuals: NDArray[np.float64],
    judged: Callable[[Kriging], tuple[Kriging, NDArray[np.float64]]],
    *,
    least: float,
    in_time: Callable[[], bool] = lambda: True,
) -> None:
    """Kriging along one axis after the other, the best first; an axis that gains too little is not tried again.

    Parameters
    ----------
    draft
        Its residuals judge.
    tensor, axes
        Entries, and the axes along which kriging is tried.
    residuals
        Of these entries.
    judged
        A model as it may be kept, and its predictions for the entries of the draft's residuals.
    least
        Share of the squared error that a model must remove.
    in_time
        Asked before every axis.
    """
    while axes:
        found = {}
        for axis, model in zip(axes, in_threads(partial(_untuned, tensor, residuals), axes), strict=True):
            if not in_time():
                break
            found[axis] = judged(model.tuned())
        if not found:
            return
        gains = {axis: draft.gain(predictions) for axis, (_, predictions) in found.items()}
        best = max(gains, key=lambda axis: gains[axis])
        if not draft.offer(_name_of(tensor, best), *found[best], least=least):
            return
        del gains[best]
        draft.notes += [(_name_of(tensor, axis), gain) for axis, gain in gains.items() if gain < least]
        axes = [axis for axis, gain in gains.items() if gain >= least]
        if axes and in_time():
            residuals = residuals - found[best][0].leave_one_out(tensor.indices)


def _untuned(tensor: SparseTensor, residuals: NDArray[np.float64], axis: tuple[int, ...]) -> Kriging:
    """Kriging along an axis, with a covariance of zero."""
    return Kriging.of(tensor.indices, residuals, tensor.modes, axis)


def _some(count: int, most: int) -> NDArray[np.int64]:
    """Places of some of so many entries, in their order; of all where they are no more than ``most``."""
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).permutation(count)[:most])


def _scaled(model: Kriging, valid: SparseTensor, wanted: NDArray[np.float64]) -> tuple[Kriging, NDArray[np.float64]]:
    """Kriging, scaled so that it predicts residuals of validation entries best; and its predictions."""
    predictions = model.predict(valid.indices)
    squares = float(predictions @ predictions)
    scale = min(max(float(predictions @ wanted) / squares, 0.0), MAX_SCALE) if squares else 0.0
    return replace(model, scale=scale), scale * predictions


def refit_kriging(
    models: Sequence[Predictor], tensor: SparseTensor, residuals: NDArray[np.floating]
) -> tuple[Kriging, ...]:
    """Kriging of one kind of residuals, with those of other entries in their place.

    Parameters
    ----------
    models
        One after the other, each of what those before leave.
    tensor
        The entries.
    residuals
        Theirs, ``(entries,)``.
    """
    found: list[Kriging] = []
    remaining = residuals.astype(np.float64)
    for model in models:
        assert isinstance(model, Kriging)  # see fit_validated_kriging
        found.append(model.with_residuals(tensor.indices, remaining))
        if len(found) < len(models):
            remaining = remaining - found[-1].leave_one_out(tensor.indices)
    return tuple(found)


@dataclass
class _Draft:
    """A stack while it is fitted."""

    residuals: NDArray[np.float64]
    """That the models kept so far leave."""
    models: list[Predictor] = field(default_factory=list)
    predictions: list[NDArray[np.float64]] = field(default_factory=list)
    notes: list[tuple[str, float]] = field(default_factory=list)

    def gain(self, predictions: NDArray[np.float64]) -> float:
        """Share of the squared error that these predictions remove."""
        size = float(np.mean(self.residuals**2))
        return 1 - float(np.mean((self.residuals - predictions) ** 2)) / size if size else 0.0

    def offer(self, name: str, model: Predictor, predictions: NDArray[np.float64], least: float = MIN_GAIN) -> bool:
        """Keep a model if it removes enough of the error; returns whether it did."""
        gain = self.gain(predictions)
        self.notes.append((name, gain))
        if gain < least:
            return False
        self.models.append(model)
        self.predictions.append(predictions)
        self.residuals = self.residuals - predictions
        return True


def _name_of(tensor: SparseTensor, axis: tuple[int, ...]) -> str:
    """Of kriging along an axis, as messages and records have it."""
    return f"local:{'+'.join(tensor.modes[n].name for n in axis)}"


def _offer_knn(draft: _Draft, tensor: SparseTensor, modes: Sequence[int], folds: NDArray[np.integer]) -> None:
    """Nearest neighbours along modes, in the order of what they gain by themselves."""

    def fitted(mode: int) -> tuple[KnnResiduals, NDArray[np.float64]] | None:
        return fit_knn(tensor.indices, draft.residuals, folds, mode, tensor.shape)

    first = {n: one for n in modes if (one := fitted(n)) is not None}
    before = draft.residuals
    for n in sorted(first, key=lambda n: -draft.gain(first[n][1])):
        # fitted once more to the residuals of the models that were kept since
        again = first[n] if draft.residuals is before or draft.gain(first[n][1]) < MIN_GAIN else fitted(n)
        if again is not None:
            draft.offer(f"knn:{tensor.modes[n].name}", *again)


def _few_folds(tensor: SparseTensor, folds: NDArray[np.integer], groups: Sequence[int]) -> NDArray[np.integer]:
    """Three folds: the given ones merged, or random ones where there are fewer."""
    names, which = np.unique(folds, return_inverse=True)
    if len(names) >= CROSS_FIT_FOLDS:
        return which % CROSS_FIT_FOLDS
    count, member = groups_of(tensor, tuple(groups))
    return (np.random.default_rng(0).permutation(count) % CROSS_FIT_FOLDS)[member]


def _cross_fit_tables(
    tensor: SparseTensor, residuals: NDArray[np.float64], folds: NDArray[np.integer], groups: Sequence[int]
) -> tuple[Tables, NDArray[np.float64]]:
    """Tables of all entries, and predictions of every entry by tables of the other folds."""
    values = tensor.with_values(residuals)
    predictions = np.zeros(len(residuals))
    if (folds == folds[0]).all():  # all entries were held out at once: any folds will do
        folds = _few_folds(tensor, folds, groups)
    names = np.unique(folds)
    first = folds == names[0]
    tables = fit_tables(values.take(np.flatnonzero(~first)), values.take(np.flatnonzero(first)))
    predictions[first] = tables.predict(tensor.indices[first])
    for name in names[1:]:
        here = folds == name
        refitted = refit_tables(tables, values.take(np.flatnonzero(~here)))
        predictions[here] = refitted.predict(tensor.indices[here])
    return refit_tables(tables, values), predictions
