"""The methods that are built in: baselines, models of the paper, the default fit and the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from jointensor.bench.method import Answer, Method, Problem
from jointensor.bench.seasonal import seasonal_mean
from jointensor.data.split import Split, in_words, like_gaps, new_modes, with_folds
from jointensor.errors import ConfigError
from jointensor.predictors import fit_baselines
from jointensor.registry import nearest
from jointensor.runs.model_specs import parse_model
from jointensor.search.default_fit import default_fit
from jointensor.search.families import FitOptions, family_of
from jointensor.search.portfolio import BASELINES
from jointensor.search.search import search
from jointensor.search.workers import Workers
from jointensor.training.fit import fit, pick_device
from jointensor.training.schedule import schedule_of

RECIPE = "default"
"""Recipe of a model that names none."""

ABOUT = {
    "mean": "the mean of all values",
    "bias": "additive biases of labels, shrunk",
    "tables": "shrunk means of labels and of pairs of labels",
    "interp": "linear interpolation along an ordered mode",
    "seasonal": "the mean of the same place in the season, of the same other labels",
}
"""Baselines, in a line each."""

BASELINE_METHODS = tuple(ABOUT)


def builtin_method(text: str, others: Sequence[str] = ()) -> Method:
    """The method of a name; ``others`` are names that could have been meant, too."""
    chosen = "by validation entries; then fitted to these, too"
    if text == "fit":
        return Method(text, _default, "`jointensor fit` as it is", ensemble=True, chosen=chosen)
    if text == "auto":
        folds = "by five folds of training and validation entries"
        return Method(text, _search, "`jointensor fit --rank auto`", ensemble=True, chosen=folds)
    if text == "seasonal":
        return Method(text, seasonal_mean, ABOUT[text], chosen=chosen)
    if text in BASELINES:
        return Method(text, partial(_baseline, text), ABOUT[text], chosen=chosen)
    model, _, recipe = text.partition("@")
    try:
        parse_model(model).recipe(recipe or RECIPE)
    except ConfigError as error:
        if ":" in model:
            raise
        known = ["fit", "auto", *ABOUT, "cp:20", "julia:4/16", *others]
        raise ConfigError(f"there is no method '{text}'; {nearest(text, known)}") from error
    about = f"one model, by the recipe `{recipe or RECIPE}`"
    return Method(text, partial(_model, model, recipe or RECIPE), about, chosen="epochs " + chosen)


def _options(problem: Problem) -> FitOptions:
    return FitOptions(problem.seed, groups=problem.groups, seconds=problem.seconds)


def _parts(problem: Problem) -> Split:
    return Split(problem.train, problem.valid, problem.train.take(np.zeros(0, dtype=np.int64)), rule="bench")


def _default(problem: Problem) -> Answer:
    parts, options = _parts(problem), _options(problem)
    if not problem.groups:
        share = round(len(problem.valid) / len(problem.everything), 3)  # it was rounded down
        parts = with_folds(replace(parts, rule="standard", seed=problem.seed), "like-gaps", share)
        options = replace(options, groups=new_modes(parts.together))
    with Workers.of(pick_device(options.device), len(parts.train)) as workers:
        found = default_fit(parts, fit_baselines(parts), options, workers=workers)
    weights = {member.name: round(member.weight, 4) for member in found.predictor.members}
    chosen = {"weights": weights, "outcome": found.outcome, "together": in_words(parts.together, parts.train.modes)}
    return Answer(found.predictor.predict(problem.cells), chosen)


def _search(problem: Problem) -> Answer:
    groups = problem.groups or like_gaps(problem.everything, problem.seed)
    found = search(problem.everything, seed=problem.seed, budget=problem.seconds, groups=groups)
    weights = {row["name"]: row["weight"] for row in found.trials if row["weight"]}
    return Answer(found.predictor.predict(problem.cells), {"weights": weights, "outcome": found.outcome})


def _baseline(name: str, problem: Problem) -> Answer:
    """With the shrinkage, or the mode, that validates best."""
    candidate, options = BASELINES[name], _options(problem)
    family = family_of(candidate)
    first = family.fit(candidate, problem.train, problem.valid, options)
    return Answer(family.refit(candidate, [first], problem.everything, options).predict(problem.cells))


def _model(model: str, recipe: str, problem: Problem) -> Answer:
    """Fitted to training entries for as long as it validates better; then as long to all entries."""
    spec = parse_model(model)
    if spec.baseline is not None:
        return _baseline(spec.baseline, problem)
    how, parts = spec.recipe(recipe), _parts(problem)
    shape = problem.train.shape
    first = fit(spec.make(shape, how), parts, how, seed=problem.seed, budget=problem.seconds)
    chosen = {"epochs": len(first.history), "ridge": first.ridge, "outcome": first.outcome}
    everything = Split(problem.everything, parts.test, parts.test, rule="bench")
    again = fit(spec.make(shape, first.recipe), everything, schedule_of(first), seed=problem.seed)
    kept = first if again.failed and not first.failed else again
    return Answer(kept.predict(problem.cells), chosen)
