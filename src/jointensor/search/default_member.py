"""The default fit as a member of a search: it is made first, and mixed with what the folds lead to.

Whatever the budget, the result is then about as good as the better of both, and mostly better.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jointensor.predictors import fit_baselines
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.search.budget import Budget, Clock
from jointensor.search.default_fit import default_fit
from jointensor.search.ensemble_selection import ErrorProducts, within_standard_errors
from jointensor.search.families import FitOptions
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import Folds
from jointensor.search.portfolio import default_candidates
from jointensor.search.settings import SETTINGS, SearchSettings
from jointensor.search.workers import ONE_WORKER, Workers

NAME, OTHERS = "default fit", "search"
"""The default fit, and everything else that a search found, as members of one ensemble."""

LeftOut = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions of entries in the tensor, and predictions for them by models that did not see them."""


@dataclass(frozen=True)
class DefaultMember:
    """The default fit, and its predictions for its validation entries."""

    predictor: Ensemble
    positions: NDArray[np.int64]
    """Of the validation entries in the tensor, ``(entries,)``."""
    predictions: NDArray[np.float32]
    """For them, ``(entries,)``."""
    seconds: float
    """That it took."""


@dataclass(frozen=True)
class Mixture:
    """The default fit and the rest of a search, weighted by the validation entries of the default fit."""

    member: DefaultMember | None
    """``None`` if there is no default fit, or no weight for it."""
    share: float
    """Weight of the default fit."""
    left_out: LeftOut
    """Out-of-fold predictions of the search, those of the mixture for the validation entries."""

    def around(self, found: Ensemble) -> Ensemble:
        """The ensemble of both; what the search found as it is, if the default fit has no weight."""
        if self.member is None:
            return found
        members = (Member(NAME, self.share, (self.member.predictor,)), Member(OTHERS, 1 - self.share, (found,)))
        return replace(found, members=tuple(one for one in members if one.weight), residual_models=())


def fit_default_member(
    data: Folds,
    budget: Budget,
    options: FitOptions,
    store: FitStore,
    on_note: Callable[[str], None] = lambda _: None,
    clock: Clock = time.monotonic,
    workers: Workers = ONE_WORKER,
) -> DefaultMember | None:
    """Fit it to all entries but its validation entries, or load it from the store; ``None`` if it costs too much.

    Parameters
    ----------
    data
        The entries in folds.
    budget
        Of the search.
    options
        Of all fits.
    store
        Where it is kept once it is finished.
    on_note
        Called with a line for the user.
    clock
        Returns seconds.
    workers
        Make its fits side by side.
    """
    parts, positions = data.default_split(options.seed)
    candidates = default_candidates(parts.train, options.settings)
    cost = sum(budget.expected_cost(one, []) for one in candidates)
    if not len(positions) or not budget.affords(cost):
        return None
    for one in candidates:
        budget.spend(one)
    loaded = store.load(_key(len(data.tensor)))
    if loaded is not None:
        predictor, seconds = loaded
    else:
        begin = clock()
        limits = replace(options, seconds=budget.time_limit())
        found = default_fit(
            parts, fit_baselines(parts), limits, candidates=candidates, on_note=on_note, clock=clock, workers=workers
        )
        predictor, seconds = found.predictor, clock() - begin
        for joint in found.predictor.joint_predictors:
            joint.model.cpu()  # the memory of a GPU is for the fits that follow
        if found.outcome != "interrupted":
            store.save(_key(len(data.tensor)), predictor, seconds)
    assert isinstance(predictor, Ensemble)  # stored under a key of its own
    predictions = data.clip(predictor.predict(data.tensor.indices[positions]))
    error = np.sqrt(np.mean((predictions.astype(np.float64) - data.tensor.values[positions]) ** 2))
    on_note(f"{NAME}: RMSE {error:.4g} on its validation entries, {seconds:.1f} s")
    return DefaultMember(predictor, positions, predictions, seconds)


def mix(
    data: Folds,
    member: DefaultMember | None,
    found: Ensemble,
    left_out: LeftOut,
    settings: SearchSettings = SETTINGS,
) -> Mixture:
    """The mean of the default fit and of the rest; weighted where that predicts other entries clearly better.

    Parameters
    ----------
    data
        The entries in folds. Untouched ones decide, where there are some; else the validation entries of the default
        fit.
    member
        The default fit.
    found
        The rest.
    left_out
        Positions of entries in the tensor, and out-of-fold predictions of the rest for them.
    settings
        Numbers of the search.
    """
    if member is None:
        return Mixture(None, 0.0, left_out)
    where, predictions = left_out
    place = np.full(len(data.tensor), -1)
    place[where] = np.arange(len(where))
    rows = place[member.positions]  # entries of the first fold always have out-of-fold predictions
    if len(data.untouched):
        cells, truth = data.untouched.indices, data.untouched.values
        share = _share(member.predictor.predict(cells), found.predict(cells), truth, settings)
    else:
        share = _share(member.predictions, predictions[rows], data.tensor.values[member.positions], settings)
    if not share:
        return Mixture(None, 0.0, left_out)
    predictions = predictions.copy()
    predictions[rows] = share * member.predictions + (1 - share) * predictions[rows]
    return Mixture(member, share, (where, predictions))


def _share(
    default: NDArray[np.float32], rest: NDArray[np.float32], truth: NDArray[np.float32], settings: SearchSettings
) -> float:
    """Weight of the default fit by predictions for the same entries, ``(entries,)`` each."""

    def errors(share: float) -> NDArray[np.float64]:
        mixed: NDArray[np.float64] = share * default.astype(np.float64) + (1 - share) * rest.astype(np.float64)
        return (mixed - truth) ** 2

    best = ErrorProducts.of({NAME: default, OTHERS: rest}, truth).best_weights(settings).get(NAME, 0.0)
    return 0.5 if within_standard_errors(errors(0.5) - errors(best), settings.even_mix_tolerance) else best


def _key(entries: int) -> str:
    return f"default-fit.{entries}"
