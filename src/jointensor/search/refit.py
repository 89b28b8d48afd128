"""What answers in the end: members fitted to all entries, and means of several fits where these depend on chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from jointensor.data.split import FOLDS
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.ensemble import Member
from jointensor.search.cross_validation import FAILURES, RESERVE, CrossValidation, Trial
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.executor import Result, deal
from jointensor.search.portfolio import refit_candidate

AGAIN = 1.3
"""Times what a fit took that must be left for it to be made again."""

FAR = 1.5
"""Times the squared error of its other folds that one may have to be averaged with them unseen."""


def members_of(
    search: CrossValidation,
    weights: dict[str, float],
    tensor: SparseTensor,
    before: Sequence[Member] = (),
    spare: float = 0.0,
) -> tuple[Member, ...]:
    """What answers: every structure fitted to all these entries; else what answered before, or the folds' fits.

    A member that is averaged keeps the fit that answered before: others will be added to it. ``spare``: seconds that
    are needed afterwards.
    """
    parts = {name: tuple(one.part for one in search.trials[name].fits.values()) for name in weights}
    parts |= {member.name: member.fits for member in before}
    again = [name for name in weights if not before or search.trials[name].candidate.averaged == 1]
    jobs = [partial(_refitted, search, search.trials[name], tensor, spare=spare) for name in again]
    for name, found in zip(again, deal(search.processes, jobs), strict=True):
        if found.failure is not None:
            search.on_note(f"{name}: the fit to all entries failed ({found.failure}); those of the folds answer")
        parts[name] = parts[name] if found.part is None else (found.part,)
    return tuple(Member(name, weight, parts[name]) for name, weight in weights.items())


def last_fits(search: CrossValidation, weights: dict[str, float], members: Sequence[Member]) -> tuple[Member, ...]:
    """Members once intervals are calibrated: now they may know the entries that did it, and be means of more fits.

    An interrupt keeps the fits that are finished.
    """
    learnt, last = search.tensor, tuple(members)
    try:
        again = sum(search.trials[name].seconds for name in weights if search.trials[name].candidate.refits)
        if len(search.fresh) and search.left() > AGAIN * again:
            last = members_of(search, weights, search.whole, members)
            learnt = search.whole
        return _averaged(search, last, learnt)
    except KeyboardInterrupt:
        search.interrupt()
        return _averaged(search, last, learnt)


def _averaged(search: CrossValidation, members: Sequence[Member], tensor: SparseTensor) -> tuple[Member, ...]:
    """Members whose fits depend on chance, fitted again while there is time: their mean errs less."""
    first = sorted(members, key=lambda member: search.trials[member.name].candidate.refits)  # networks gain most
    jobs = {member.name: _further(search, search.trials[member.name], tensor) for member in first}
    found = deal(search.processes, [job for mine in jobs.values() for job in mine])
    more = {name: [next(found).part for _ in mine] for name, mine in jobs.items()}
    return tuple(
        replace(member, fits=(*member.fits, *(part for part in more[member.name] if part is not None)))
        for member in members
    )


def _further(search: CrossValidation, trial: Trial, tensor: SparseTensor) -> list[Callable[[], Result]]:
    """Fits from other seeds; or to the folds that are left, where it is these that answer."""
    if trial.candidate.refits:
        return [partial(_refitted, search, trial, tensor, seed) for seed in range(1, trial.candidate.averaged)]
    return [partial(_fitted_further, search, trial, fold) for fold in range(FOLDS) if fold not in trial.fits]


def _refitted(search: CrossValidation, trial: Trial, tensor: SparseTensor, seed: int = 0, spare: float = 0.0) -> Result:
    """One fit to all entries; nothing where it is the folds' fits that answer, or there is no time."""
    key = trial.candidate.name, len(tensor), seed
    if key in search.refitted:  # before an interrupt
        return search.refitted[key]
    if not trial.candidate.refits or search.interrupted or search.left_here() - spare <= AGAIN * trial.seconds:
        return Result()
    try:
        fits = list(trial.fits.values())
        how = search.how | {"seed": search.seed + seed, "budget": max(search.left_here(), 1.0)}
        found = refit_candidate(trial.candidate, fits, tensor, **how)
    except FAILURES as error:
        return Result(failure=str(error))
    search.refitted[key] = Result(found.part, found.seconds)
    return search.refitted[key]


def _fitted_further(search: CrossValidation, trial: Trial, fold: int) -> Result:
    """One more fold of a network; nothing where there is no time."""
    key = trial.candidate.name, -1, fold
    if key in search.refitted:
        return search.refitted[key]
    if search.interrupted or search.left_here(1 - RESERVE) <= AGAIN * trial.seconds:
        return Result()
    found = search.fitted(trial.candidate, fold)
    if found.part is None or found.predicted is None:
        search.on_note(f"{trial.candidate.name}: a further fold failed, {found.failure}")
        return Result(failure=found.failure)
    _, valid = search.parts(fold)
    before = max(search.mse(trial, [one]) for one in trial.predicted)
    if not squared_error(found.predicted, valid.values) <= FAR * before:
        search.on_note(f"{trial.candidate.name}: a further fold is far off, and left out")
        return Result()
    search.on_note(f"{trial.candidate.name}: fold {fold + 1} of {FOLDS}, to be averaged")
    search.keep(trial.candidate, fold, found.part)
    search.refitted[key] = Result(found.part, found.seconds)
    return search.refitted[key]
