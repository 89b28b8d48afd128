"""The default fit as a member of a search: it is made first, and mixed with what the folds lead to.

Whatever the budget, the result is then about as good as the better of both, and mostly better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import fit_baselines
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.search.budget import Budget, Clock
from jointensor.search.default_fit import default_fit
from jointensor.search.ensemble_selection import ErrorProducts, squared_error, within_standard_errors
from jointensor.search.families import FitOptions
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import Folds, LeftOut
from jointensor.search.portfolio import Candidate, default_candidates
from jointensor.search.settings import SETTINGS, SearchSettings
from jointensor.search.workers import ONE_WORKER, Workers

NAME, OTHERS = "default fit", "search"
"""The default fit, and everything else that a search found, as members of one ensemble."""


@dataclass(frozen=True)
class DefaultMember:
    """The default fit, and predictions for its validation entries that are as good as for new ones."""

    predictor: Ensemble
    positions: NDArray[np.int64]
    """Of the validation entries in the tensor, ``(entries,)``."""
    predictions: NDArray[np.float32]
    """For them, ``(entries,)``, each by the members with weights that other validation entries decide."""
    seconds: float
    """That it took."""


@dataclass(frozen=True)
class Mixture:
    """The default fit and the rest of a search, weighted by entries that neither learnt from."""

    member: DefaultMember | None
    """``None`` if there is no default fit."""
    share: float
    """Weight of the default fit."""
    rest: LeftOut
    """Out-of-fold predictions, those of the rest of the search for all entries but the validation entries."""
    own: LeftOut | None = None
    """Predictions of the mixture for the validation entries; ``None`` if those of the rest stand for them, since the
    default fit has no weight or the errors of both are about as large."""

    @property
    def left_out(self) -> LeftOut:
        """Predictions with errors as large as those of the mixture on new entries."""
        return self.rest if self.own is None else self.own

    def around(self, found: Ensemble) -> Ensemble:
        """The ensemble of both; what the search found as it is, if the default fit has no weight."""
        if self.member is None or not self.share:
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
    """Fit it to all entries but its validation entries, or load it from the store.

    Baselines are members of it whatever the budget; candidates are as far as the budget lasts. ``None`` if there are
    so few entries that none are left out.

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
    if not len(positions):
        return None
    candidates = _affordable(default_candidates(parts.train, options.settings), budget)
    keys = [f"default-fit.{len(data.tensor)}.{len(candidates)}{end}" for end in ("", ".validated")]
    stored = [(one[0], one[1]) for one in map(store.load, keys) if one is not None and isinstance(one[0], Ensemble)]
    if len(stored) == len(keys):
        (predictor, seconds), (validated, _) = stored
    else:
        begin = clock()
        limits = replace(options, seconds=budget.time_limit())
        found = default_fit(
            parts, fit_baselines(parts), limits, candidates=candidates, on_note=on_note, clock=clock, workers=workers
        )
        predictor, validated, seconds = found.predictor, found.validated, clock() - begin
        for joint in predictor.joint_predictors + validated.joint_predictors:
            joint.model.cpu()  # the memory of a GPU is for the fits that follow
        if found.outcome != "interrupted":
            for key, one in zip(keys, (predictor, validated), strict=True):
                store.save(key, one, seconds)
    predictions = _cross_weighted(validated, data.tensor.take(positions), options.seed, options.settings)
    error = math.sqrt(squared_error(predictions, data.tensor.values[positions]))
    on_note(f"{NAME}: RMSE {error:.4g} on its validation entries, {seconds:.1f} s")
    return DefaultMember(predictor, positions, predictions, seconds)


def _cross_weighted(
    predictor: Ensemble, entries: SparseTensor, seed: int, settings: SearchSettings
) -> NDArray[np.float32]:
    """Predictions for validation entries, in parts: the others decide the weights of a part, ``(entries,)``.

    With weights that these entries themselves decide, few of them look a tenth or more better than new ones.
    """
    cells, truth = entries.indices, entries.values
    part = np.random.default_rng([seed, 14]).permutation(len(truth)) % FOLDS  # (entries,)
    members = {one.name: one.predict(cells).astype(np.float32) for one in predictor.members}
    total = np.zeros(len(truth))
    for model in predictor.residual_models:
        total += model.predict(cells)
    for k in range(FOLDS):
        here = part == k
        others = ErrorProducts.of({name: one[~here] for name, one in members.items()}, truth[~here])
        for name, weight in others.best_weights(settings).items():
            total[here] += weight * members[name][here]
    return np.clip(total, predictor.low, predictor.high).astype(np.float32)


def _affordable(candidates: Sequence[Candidate], budget: Budget) -> list[Candidate]:
    """The first candidates, as many as a budget in fits has fits for; they are booked."""
    found = []
    for one in candidates:
        if not budget.affords(budget.expected_cost(one, [])):
            break
        budget.spend(one)
        found.append(one)
    return found


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
    rest, truth = predictions[rows], data.tensor.values[member.positions]
    if len(data.untouched):
        cells = data.untouched.indices
        share = _share(member.predictor.predict(cells), found.predict(cells), data.untouched.values, settings)
    else:
        share = _share(member.predictions, rest, truth, settings)
    if not share:
        return Mixture(member, 0.0, left_out)
    mixed = (share * member.predictions.astype(np.float64) + (1 - share) * rest).astype(np.float32)
    predictions = predictions.copy()
    predictions[rows] = mixed
    if _similar_errors(mixed, rest, truth, settings):
        return Mixture(member, share, (where, predictions))
    given = np.flatnonzero(data.dependent & (data.fold == 0))[::2]  # as many as there are of half a fold
    own = np.append(member.positions, given), np.append(mixed, data.tensor.values[given])
    return Mixture(member, share, (where, predictions), own)


def _similar_errors(
    mixed: NDArray[np.float32], rest: NDArray[np.float32], truth: NDArray[np.float32], settings: SearchSettings
) -> bool:
    """Whether errors of the rest, of which there are many more, say as much about errors of the mixture.

    They do if both are about as large: if the sizes differ by less than quantiles of these few entries vary by chance.
    """
    if len(truth) < settings.min_calibration_entries:
        return True
    sizes = [float(np.mean(np.abs(one.astype(np.float64) - truth))) for one in (mixed, rest)]
    return abs(sizes[0] - sizes[1]) <= sizes[1] / math.sqrt(len(truth))


def _share(
    default: NDArray[np.float32], rest: NDArray[np.float32], truth: NDArray[np.float32], settings: SearchSettings
) -> float:
    """Weight of the default fit by predictions for the same entries, ``(entries,)`` each."""

    def errors(share: float) -> NDArray[np.float64]:
        mixed: NDArray[np.float64] = share * default.astype(np.float64) + (1 - share) * rest.astype(np.float64)
        return (mixed - truth) ** 2

    best = ErrorProducts.of({NAME: default, OTHERS: rest}, truth).best_weights(settings).get(NAME, 0.0)
    return 0.5 if within_standard_errors(errors(0.5) - errors(best), settings.even_mix_tolerance) else best
