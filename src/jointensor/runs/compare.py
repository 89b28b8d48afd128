"""Data × models × seeds → one table. Same split, same validation rule and same budget for every model.

config.json        every option
cells/*.json       one fit each; a fit whose file is there is not run again
results.csv        a row per model; results.md, report.html and two pictures show the same
environment.json   versions and machine
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from jointensor.atomic import sha256, write_json, write_text
from jointensor.data.split import split
from jointensor.errors import ConfigError, DataError, JointensorError, MissingPackageError, RunError
from jointensor.predictors.baselines import NO_ORDERED_MODE
from jointensor.predictors.interpolation import modes_to_interpolate
from jointensor.runs.compare_fits import CompareConfig, ComparedFit, planned_fits, run_fit
from jointensor.runs.compare_table import as_csv, as_markdown, draw, rows_of
from jointensor.runs.config import Listener
from jointensor.runs.dataset import read_source
from jointensor.runs.folder import CELLS, CONFIG, ENVIRONMENT, environment, new_folder
from jointensor.runs.model_specs import parse_models
from jointensor.runs.report import write_comparison_report
from jointensor.runs.workers import end_with_parent
from jointensor.training.fit import check_fit, pick_device

OnFit = Callable[[dict[str, Any], int, int], None]
"""Called with the record of a finished fit, how many are finished, and how many there are."""


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
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}, it must be at least 1")
    asked = _asked(config)
    _check(config, listener)
    if (out / CONFIG).exists():
        _check_same(out, asked)
    else:
        with new_folder(out) as path:
            (path / "checkpoints").rmdir()  # finished fits are the checkpoints here
            (path / CELLS).mkdir()
            write_json(path / CONFIG, asked)
            write_json(path / ENVIRONMENT, environment())
    _fill(out, config, jobs, listener, on_fit)  # outside: whatever happens now, finished fits stay
    return _write_results(out, config, listener)


def finished_rows(config: CompareConfig, out: Path) -> list[dict[str, Any]]:
    """Rows of the fits that a comparison has so far; nothing is fitted. A model without a fit has no figures."""
    records = [_stored(_fit_file(out, config, planned)) for planned in planned_fits(config)]
    return rows_of(config.models, [record for record in records if record is not None])


def _asked(config: CompareConfig) -> dict[str, Any]:
    source = Path(config.source)
    if not source.is_file():
        raise DataError(f"there is no file {source}")
    asked = {"source_sha256": sha256(source), **asdict(config)}
    return json.loads(json.dumps(asked))  # as it will be read again


def _check_same(out: Path, asked: dict[str, Any]) -> None:
    try:
        stored = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{out / CONFIG} is damaged: {error}") from None
    if not isinstance(stored, dict):
        raise RunError(f"{out / CONFIG} is damaged: it holds no options")
    for key in asked | stored:
        if asked.get(key) != stored.get(key):
            raise RunError(
                f"{out} holds another comparison: its {key} is {stored.get(key)!r}, not {asked.get(key)!r}; "
                "give another --out"
            )


def _check(config: CompareConfig, listener: Listener) -> None:
    """Make every model once, so that one that cannot be made is known before an hour of training."""
    specs = parse_models(config.models)
    for name in ("seeds", "split_seeds"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}, it must be at least 1")
    pick_device(config.device)
    reading = read_source(config.source, config.table, config.orders)
    for note in (*reading.notes, repr(reading.tensor)):
        listener.on_note(note)
    parts = split(reading.tensor, rule=config.split, test=config.test, valid=config.valid, seed=0)
    if not len(parts.test):
        raise ConfigError("a comparison needs test entries; give a --test share above 0")
    for spec in specs:
        if spec.baseline is None:
            recipe = spec.recipe(config.recipe, **config.recipe_changes)
            check_fit(spec.make(reading.tensor.shape, recipe), parts, recipe)
        elif spec.baseline == "interp" and not modes_to_interpolate(reading.tensor):
            raise ConfigError(NO_ORDERED_MODE)


def _fill(path: Path, config: CompareConfig, jobs: int, listener: Listener, on_fit: OnFit | None) -> None:
    every = planned_fits(config)
    to_run = [planned for planned in every if _finished(_fit_file(path, config, planned)) is None]
    before = len(every) - len(to_run)
    if before:
        listener.on_note(f"{before} of {len(every)} fits are there already")
    for done, (planned, record) in enumerate(_run_all(config, to_run, min(jobs, len(to_run) or 1)), before + 1):
        write_json(_fit_file(path, config, planned), record)
        if on_fit is not None:
            on_fit(record, done, len(every))


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


def _fit_file(path: Path, config: CompareConfig, planned: ComparedFit) -> Path:
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", config.models[planned.number])[:80]
    return path / CELLS / f"{planned.number:02d}-{name}-split{planned.split_seed}-seed{planned.seed}.json"


def _stored(file: Path) -> dict[str, Any] | None:
    """The record in the file of a fit, failed or not; ``None`` where there is none that can be read."""
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result


def _finished(file: Path) -> dict[str, Any] | None:
    """The same; ``None`` where the fit has to be run (again)."""
    result = _stored(file)
    return None if result is None or "error" in result else result


def _write_results(path: Path, config: CompareConfig, listener: Listener) -> list[dict[str, Any]]:
    files = [_fit_file(path, config, planned) for planned in planned_fits(config)]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rows = rows_of(config.models, results)
    write_text(path / "results.csv", as_csv(rows))
    write_text(path / "results.md", as_markdown(rows))
    try:
        draw(rows, path)
    except MissingPackageError as error:
        listener.on_note(f"no pictures: {error}")
    write_comparison_report(path)
    return rows
