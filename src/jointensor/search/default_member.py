"""The default fit as a member of a search: it is made first, and mixed with what the folds lead to.

Whatever the budget, the result is then about as good as the better of both, and mostly better. While there is time it
is made again, with other validation entries: the mean of such fits is better than each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS, Split
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

    fits: tuple[Ensemble, ...]
    """Their mean predicts. Each but the first was validated by entries of another fold."""
    positions: NDArray[np.int64]
    """Of the validation entries of the first fit in the tensor, ``(entries,)``."""
    predictions: NDArray[np.float32]
    """For them by the first fit, ``(entries,)``, each by the members with weights that other validation entries decide.
    The mean of several fits is at least about as good."""
    seconds: float
    """Of all fits."""
    error_over_bias: float = 1.0
    """Squared error of the first fit over that of additive biases, on its validation entries."""
    made: int = 1
    """Fits that were made, those that were left out included."""
    costs: tuple[tuple[Candidate, float], ...] = ()
    """Candidates of the first fit with their seconds: what fits of their families cost on this machine."""

    def as_member(self, weight: float) -> Member:
        """Of an ensemble."""
        return Member(NAME, weight, self.fits)


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
        members = (self.member.as_member(self.share), Member(OTHERS, 1 - self.share, (found,)))
        return replace(found, members=tuple(one for one in members if one.weight), residual_models=())


@dataclass(frozen=True)
class DefaultFitter:
    """Makes default fits of the entries of a search, or loads them from its store."""

    data: Folds
    budget: Budget
    options: FitOptions
    store: FitStore
    """Where they are kept once they are finished."""
    on_note: Callable[[str], None] = lambda _: None
    """Called with a line for the user."""
    clock: Clock = time.monotonic
    workers: Workers = ONE_WORKER

    def first(self) -> DefaultMember | None:
        """Fitted to all entries but its validation entries, whatever the budget.

        Baselines are members of it in any case; candidates are as far as the budget lasts. ``None`` if there are so few
        entries that none are left out.
        """
        data, options = self.data, self.options
        parts, positions = data.default_split(options.seed)
        if not len(positions):
            return None
        candidates = _affordable(default_candidates(parts.train, options.settings), self.budget)
        found = self._fitted(parts, candidates, 0)
        predictions = _cross_weighted(found.validated, parts.valid, options.seed, options.settings)
        error = math.sqrt(squared_error(predictions, parts.valid.values))
        self.on_note(f"{NAME}: RMSE {error:.4g} on its validation entries, {found.seconds:.1f} s")
        own = DefaultMember((found.predictor,), positions, predictions, found.seconds, found.error_over_bias(parts))
        return replace(own, costs=tuple((one, found.costs[one.name]) for one in candidates if one.name in found.costs))

    def repeated(self, member: DefaultMember) -> DefaultMember:
        """With further fits, each validated by entries of another fold, as far as the budget lasts.

        A fit that ends before it converges is left out, and is the last one. So is one whose validation entries it
        predicts, beside biases, much worse than the first one did; others may follow it.
        """
        settings, expected = self.options.settings, member.seconds / member.made
        most = settings.max_fold_error_ratio * member.error_over_bias
        for fold in range(member.made, FOLDS):
            parts, positions = self.data.default_split(self.options.seed, fold)
            candidates = default_candidates(parts.train, settings)
            cost = self.budget.cost_of_fits(candidates, expected)
            if not len(positions) or self.options.stopping() or not self.budget.admit(cost, reserve=True)():
                break
            found = self._fitted(parts, candidates, fold)
            near = found.error_over_bias(parts) <= most
            fits = (*member.fits, found.predictor) if found.converged and near else member.fits
            member = replace(member, fits=fits, seconds=member.seconds + found.seconds, made=fold + 1)
            self.on_note(f"{NAME} {fold + 1} of {FOLDS}: {found.seconds:.1f} s" + ("" if near else ", far off"))
            if not found.converged:
                break
        return member

    def _fitted(self, parts: Split, candidates: Sequence[Candidate], fold: int) -> _Made:
        keys = [f"default-fit.{fold}.{len(self.data.tensor)}.{len(candidates)}{end}" for end in ("", ".validated")]
        stored = [one for one in map(self.store.load, keys) if one is not None]
        if len(stored) == len(keys):
            (predictor, seconds), (validated, _) = stored
            if isinstance(predictor, Ensemble) and isinstance(validated, Ensemble):
                return _Made(predictor, validated, seconds)
        begin = self.clock()
        limits = replace(self.options, seed=self.options.seed + fold, seconds=self.budget.time_limit())
        found = default_fit(
            parts, fit_baselines(parts), limits, candidates=candidates,
            on_note=self.on_note, clock=self.clock, workers=self.workers,
        )  # fmt: skip
        seconds = self.clock() - begin
        for joint in found.predictor.joint_predictors + found.validated.joint_predictors:
            joint.model.cpu()  # the memory of a GPU is for the fits that follow
        if found.outcome == "converged" or (found.outcome == "budget" and not fold):
            for key, one in zip(keys, (found.predictor, found.validated), strict=True):
                self.store.save(key, one, seconds)
        costs = {row["name"]: row["seconds"] for row in found.trials if not row["failure"]}
        return _Made(found.predictor, found.validated, seconds, found.outcome == "converged", costs)


@dataclass(frozen=True)
class _Made:
    """A default fit, with all entries and before its refit."""

    predictor: Ensemble
    validated: Ensemble
    seconds: float
    converged: bool = True
    costs: Mapping[str, float] = field(default_factory=dict)
    """Seconds of its members by name; none of a fit that was loaded."""

    def error_over_bias(self, parts: Split) -> float:
        """Squared error over that of additive biases, on validation entries that neither has learnt from."""
        cells, truth = parts.valid.indices, parts.valid.values
        errors = [squared_error(one.predict(cells), truth) for one in (self.validated, self.validated.fallback)]
        return errors[0] / max(errors[1], np.finfo(np.float64).tiny)


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
        share = _share(member.as_member(1.0).predict(cells), found.predict(cells), data.untouched.values, settings)
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
    default: NDArray[np.floating], rest: NDArray[np.floating], truth: NDArray[np.float32], settings: SearchSettings
) -> float:
    """Weight of the default fit by predictions for the same entries, ``(entries,)`` each."""

    def errors(share: float) -> NDArray[np.float64]:
        mixed: NDArray[np.float64] = share * default.astype(np.float64) + (1 - share) * rest.astype(np.float64)
        return (mixed - truth) ** 2

    best = ErrorProducts.of({NAME: default, OTHERS: rest}, truth).best_weights(settings).get(NAME, 0.0)
    even, least = errors(0.5), errors(best)
    near = within_standard_errors(even - least, settings.even_mix_tolerance)
    loss = settings.max_even_mix_loss + settings.chance_gain / len(truth)
    return 0.5 if near and even.mean() <= (1 + loss) * least.mean() else best
