"""Data × models × seeds → one table. Same split, same validation rule and same budget for every model.

config.json        every option
cells/*.json       one fit each; a fit whose file is there is not run again
results.csv        a row per model; results.md, report.html and two pictures show the same
environment.json   versions and machine
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from jointensor.atomic import write_json, write_text
from jointensor.data.split import Split, split, with_folds
from jointensor.errors import ConfigError, JointensorError, MissingPackageError, RunError
from jointensor.evaluation.evaluate import evaluate_entries
from jointensor.metrics import measure
from jointensor.predictors import Tables, fit_baseline, fit_bias
from jointensor.predictors.baselines import NO_ORDERED_MODE
from jointensor.predictors.interpolation import modes_to_interpolate
from jointensor.runs.compare_table import as_csv, as_markdown, draw, rows_of
from jointensor.runs.config import Listener
from jointensor.runs.dataset import fold_notes, read_source
from jointensor.runs.folder import (
    CELLS,
    CONFIG,
    ENVIRONMENT,
    environment,
    make_folder,
    options_of,
    read_config,
    read_object,
)
from jointensor.runs.model_specs import ModelSpec, parse_model, parse_models
from jointensor.runs.report import write_comparison_report
from jointensor.training.fit import check_fit, fit, pick_device
from jointensor.training.history import Epoch

OnFit = Callable[[dict[str, Any], int, int], None]
"""Called with the record of a finished fit, how many are finished, and how many there are."""


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
    folds: str = "like-gaps"
    """How validation entries are drawn."""
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


def compare(
    config: CompareConfig,
    out: Path,
    *,
    jobs: int = 1,
    listener: Listener | None = None,
    on_fit: OnFit | None = None,
) -> list[dict[str, Any]]:
    """Fit every model with every seed and write the comparison; returns the rows of ``results.csv``.

    A folder with fits of the same configuration is continued. A nonlinear part that is registered in this process
    only is unknown to workers: compare it with ``jobs=1``.

    Raises
    ------
    ConfigError
        If a model cannot be made for this tensor; nothing has been trained then.
    RunError
        If the folder belongs to another comparison, or a worker died.
    """
    listener = listener or Listener()
    options = options_of(config)
    check_comparison(config, jobs, listener)
    if (out / CONFIG).exists():
        _check_same(out, options)
    else:
        make_folder(out)
        (out / CELLS).mkdir()
        write_json(out / CONFIG, options)
        write_json(out / ENVIRONMENT, environment())
    make_fits(config, out / CELLS, jobs=jobs, listener=listener, on_fit=on_fit)
    return _write_results(out, config, listener)


def make_fits(
    config: CompareConfig,
    folder: Path,
    *,
    jobs: int = 1,
    listener: Listener | None = None,
    on_fit: OnFit | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Make the fits of a comparison that are not in a folder yet, one file each.

    Parameters
    ----------
    facts
        Written with every fit that is made: where it comes from.
    """
    every = planned_fits(config)
    records = [_record(_fit_file(folder, config, planned)) for planned in every]
    to_run = [planned for planned, record in zip(every, records, strict=True) if not record or "error" in record]
    before = len(every) - len(to_run)
    if before and listener is not None:
        listener.on_note(f"{before} of {len(every)} fits are there already")
    for done, (planned, record) in enumerate(_run_all(config, to_run, min(jobs, len(to_run) or 1)), before + 1):
        write_json(_fit_file(folder, config, planned), {**record, **(facts or {})})
        if on_fit is not None:
            on_fit(record, done, len(every))


def _check_same(out: Path, options: dict[str, Any]) -> None:
    stored = read_config(out)
    for key in options | stored:
        if options.get(key) != stored.get(key):
            raise RunError(
                f"{out} holds another comparison: its {key} is {stored.get(key)!r}, not {options.get(key)!r}; "
                "give another --out"
            )


def check_comparison(config: CompareConfig, jobs: int, listener: Listener) -> None:
    """Make every model once, so that one that cannot be made is known before an hour of training."""
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}, it must be at least 1")
    specs = parse_models(config.models)
    for name in ("seeds", "split_seeds"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}, it must be at least 1")
    pick_device(config.device)
    reading = read_source(config.source, config.table, config.orders)
    for note in (*reading.notes, repr(reading.tensor)):
        listener.on_note(note)
    parts = split(reading.tensor, rule=config.split, test=config.test, valid=config.valid, seed=0)
    parts = with_folds(parts, config.folds, config.valid)
    for note in fold_notes(reading.tensor, parts):
        listener.on_note(note)
    if not len(parts.test):
        raise ConfigError("a comparison needs test entries; give a --test share above 0")
    for spec in specs:
        if spec.baseline is None:
            recipe = spec.recipe(config.recipe, **config.recipe_changes)
            check_fit(spec.make(reading.tensor.shape, recipe), parts, recipe)
        elif spec.baseline == "interp" and not modes_to_interpolate(reading.tensor):
            raise ConfigError(NO_ORDERED_MODE)


def _run_all(config: CompareConfig, fits: list[ComparedFit], jobs: int) -> Iterator[tuple[ComparedFit, dict[str, Any]]]:
    if jobs == 1:
        _warm_up()
        for planned in fits:
            yield planned, try_fit(config, planned)
        return
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)  # threads of two jobs on one core wait for each other
    context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads
    with ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(threads,)) as pool:
        running: dict[Future[dict[str, Any]], ComparedFit] = {pool.submit(try_fit, config, one): one for one in fits}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker died, perhaps for lack of memory (or, called from a script, for lack of "
                "`if __name__ == '__main__':`); finished fits are kept: run the same again, with fewer jobs"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, by a signal too.

    A worker that waits for work would notice by itself; one in the middle of a fit would go on for hours.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # this process is not a worker
        return

    def watch() -> None:
        parent.join()  # a pipe that breaks with the parent: true on all systems, and for any way to end
        os._exit(1)  # at once: no process is left that takes a result

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _start_worker(threads: int) -> None:
    end_with_parent()
    torch.set_num_threads(threads)
    _warm_up()


def _warm_up() -> None:
    """Take one empty step: what torch loads at its first step must not count against the first model."""
    weight = torch.zeros(1, requires_grad=True)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.Adam([weight]).step()


def try_fit(config: CompareConfig, planned: ComparedFit) -> dict[str, Any]:
    """Record of a fit, or of its failure: one model that fails must not end the others."""
    try:
        return run_fit(config, planned)
    except JointensorError as error:
        if not isinstance(error, MemoryError):
            raise  # the user can correct it
        reason = str(error)
    except (RuntimeError, ValueError, MemoryError, ArithmeticError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    which = {"model": config.models[planned.number], "split_seed": planned.split_seed, "seed": planned.seed}
    return which | {"error": reason, "test": None, "success": False}


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
    parts = with_folds(parts, asked["folds"], asked["valid"])
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


def _fit_file(folder: Path, config: CompareConfig, planned: ComparedFit) -> Path:
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", config.models[planned.number])[:80]
    return folder / f"{planned.number:02d}-{name}-split{planned.split_seed}-seed{planned.seed}.json"


def _record(file: Path) -> dict[str, Any]:
    """The record of a fit or of its failure; empty if no record can be read."""
    try:
        return read_object(file)
    except RunError:
        return {}


def _write_results(path: Path, config: CompareConfig, listener: Listener) -> list[dict[str, Any]]:
    records = [_record(_fit_file(path / CELLS, config, planned)) for planned in planned_fits(config)]
    rows = rows_of(config.models, [record for record in records if record])
    write_text(path / "results.csv", as_csv(rows))
    write_text(path / "results.md", as_markdown(rows))
    try:
        draw(rows, path)
    except MissingPackageError as error:
        listener.on_note(f"no pictures: {error}")
    write_comparison_report(path)
    return rows
