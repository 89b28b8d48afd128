"""One fit of a comparison: one model on one split with one seed, recorded as plain data."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from jointensor.data.split import Split, split
from jointensor.evaluation.evaluate import evaluate_entries
from jointensor.metrics import measure
from jointensor.predictors import Tables, fit_baseline, fit_bias
from jointensor.runs.dataset import read_source
from jointensor.runs.model_specs import ModelSpec, parse_model
from jointensor.training.fit import fit, pick_device
from jointensor.training.history import Epoch


@dataclass(frozen=True)
class CompareConfig:
    """Everything that decides the figures of a comparison; ``config.json`` holds it."""

    source: str
    models: tuple[str, ...]
    """As they were typed, see :mod:`jointensor.runs.model_specs`."""
    seeds: int = 3
    split_seeds: int = 1
    table: dict[str, Any] | None = None
    orders: dict[str, str] = field(default_factory=dict)
    recipe: str = "paper"
    recipe_changes: dict[str, Any] = field(default_factory=dict)
    split: str = "standard"
    test: float = 0.2
    valid: float = 0.1
    device: str = "auto"
    budget: float | None = None
    """Seconds for one fit, the same for every model."""


@dataclass(frozen=True)
class ComparedFit:
    """Which model, which split, which seed."""

    number: int
    """Place of the model in the configuration."""
    split_seed: int
    seed: int


def planned_fits(config: CompareConfig) -> list[ComparedFit]:
    """All fits, seeds outermost, so that every model has figures early. A baseline does not depend on the seed."""
    fixed = [parse_model(text).baseline is not None for text in config.models]
    return [
        ComparedFit(number, split_seed, seed)
        for split_seed in range(config.split_seeds)
        for seed in range(config.seeds)
        for number in range(len(config.models))
        if seed == 0 or not fixed[number]
    ]


def run_fit(config: CompareConfig, planned: ComparedFit) -> dict[str, Any]:
    """Fit one model and evaluate it on the test entries; returns what ``cells/*.json`` holds."""
    changed = Path(config.source).stat().st_mtime_ns
    parts, bias = _split_of(json.dumps(asdict(config)), changed, planned.split_seed)
    spec = parse_model(config.models[planned.number])
    begin = time.perf_counter()
    made = _baseline(spec.baseline, parts) if spec.baseline else _joint(config, spec, planned.seed, parts, bias)
    return {
        "model": spec.text,
        "split_seed": planned.split_seed,
        "seed": planned.seed,
        **made,
        "seconds": time.perf_counter() - begin if spec.baseline else made["seconds"],
        "mean_rmse": measure(fit_baseline("mean", parts).predict(parts.test.indices), parts.test.values).rmse,
        "threads": torch.get_num_threads(),
    }


@lru_cache(maxsize=1)
def _split_of(config: str, changed: int, split_seed: int) -> tuple[Split, Tables]:
    """The split of a seed and its bias predictor; kept, because a worker runs many fits of one split."""
    asked = json.loads(config)
    tensor = read_source(asked["source"], asked["table"], asked["orders"]).tensor
    parts = split(tensor, rule=asked["split"], test=asked["test"], valid=asked["valid"], seed=split_seed)
    return parts, fit_bias(parts.train, parts.valid)


def _baseline(name: str, parts: Split) -> dict[str, Any]:
    baseline = fit_baseline(name, parts)
    figures = {
        on: measure(baseline.predict(part.indices), part.values).to_dict() if len(part) else None
        for on, part in (("test", parts.test), ("valid", parts.valid))
    }
    rfe = (figures["test"] or {}).get("rfe")
    return figures | {"parameters": baseline.n_parameters(), "epochs": 0, "success": rfe is not None and rfe < 1}


def pace(history: Sequence[Epoch]) -> float:
    """Seconds per epoch: medians of the phases, weighted, so that what is compiled once does not count."""
    phases: dict[str, list[float]] = {}
    for row in history:
        phases.setdefault(row.phase, []).append(row.seconds)
    return sum(len(seconds) * median(seconds) for seconds in phases.values()) / max(len(history), 1)


def _joint(config: CompareConfig, spec: ModelSpec, seed: int, parts: Split, bias: Tables) -> dict[str, Any]:
    recipe = spec.recipe(config.recipe, **config.recipe_changes)
    budget = math.inf if config.budget is None else config.budget
    fitted = fit(
        spec.make(parts.train.shape, recipe),
        parts,
        recipe,
        seed=seed,
        device=config.device,
        fallback=bias,
        budget=budget,
    )
    test = evaluate_entries(fitted.predictor, parts.test.indices, parts.test.values)
    valid = evaluate_entries(fitted.predictor, parts.valid.indices, parts.valid.values) if len(parts.valid) else None
    learnt = fitted.outcome not in ("dead", "diverged")
    return {
        "test": test,
        "valid": valid,
        "parameters": fitted.model.n_parameters(),
        "epochs": len(fitted.history),
        "seconds": fitted.seconds,
        "seconds_per_epoch": pace(fitted.history),
        "success": learnt and test["rfe"] is not None and test["rfe"] < 1,
        "outcome": fitted.outcome,
        "restarts": fitted.restarts,
        "attempts": fitted.attempts,
        "nonlinear_dead": fitted.nonlinear_dead,
        "device": pick_device(config.device).type,
    }
