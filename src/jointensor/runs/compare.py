"""Data × models × seeds → one table. Same split, same validation rule and same budget for every model.

config.json        what was asked
cells/*.json       one fit each; a cell that is there is not run again
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
from jointensor.runs.compare_cells import Cell, CompareConfig, cells_of, run_cell
from jointensor.runs.compare_table import as_csv, as_markdown, draw, rows_of
from jointensor.runs.config import Listener
from jointensor.runs.dataset import read_source
from jointensor.runs.folder import CELLS, CONFIG, environment, new_folder
from jointensor.runs.model_specs import parse_models
from jointensor.runs.report import write_comparison_report
from jointensor.runs.workers import end_with_parent
from jointensor.training.fit import check_fit, pick_device

OnCell = Callable[[dict[str, Any], int, int], None]
"""Called with a finished cell, how many are finished, and how many there are."""


def compare(
    config: CompareConfig,
    out: Path,
    *,
    jobs: int = 1,
    listener: Listener | None = None,
    on_cell: OnCell | None = None,
) -> list[dict[str, Any]]:
    """Fit every model with every seed and write the comparison; returns the rows of ``results.csv``.

    A folder that holds cells of the same configuration is continued. A nonlinear part that was registered in
    this process only is known to no other one: compare it with ``jobs=1``.

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
            (path / "checkpoints").rmdir()  # cells are the checkpoints here
            (path / CELLS).mkdir()
            write_json(path / CONFIG, asked)
            write_json(path / "environment.json", environment())
    _fill(out, config, jobs, listener, on_cell)  # outside: whatever happens now, finished cells stay
    return _write_results(out, config, listener)


def finished_rows(config: CompareConfig, out: Path) -> list[dict[str, Any]]:
    """Rows of what a comparison has so far; nothing is fitted. A model without a fit has a row without figures."""
    cells = [_stored(_cell_file(out, config, cell)) for cell in cells_of(config)]
    return rows_of(config.models, [cell for cell in cells if cell is not None])


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


def _fill(path: Path, config: CompareConfig, jobs: int, listener: Listener, on_cell: OnCell | None) -> None:
    cells = cells_of(config)
    left = [cell for cell in cells if _finished(_cell_file(path, config, cell)) is None]
    if len(left) < len(cells):
        listener.on_note(f"{len(cells) - len(left)} of {len(cells)} cells are there already")
    for done, (cell, result) in enumerate(_run_all(config, left, min(jobs, len(left) or 1)), 1):
        write_json(_cell_file(path, config, cell), result)
        if on_cell is not None:
            on_cell(result, len(cells) - len(left) + done, len(cells))


def _run_all(config: CompareConfig, cells: list[Cell], jobs: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if jobs == 1:
        _warm_up()
        for cell in cells:
            yield cell, try_cell(config, cell)
        return
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)  # threads of two jobs on one core wait for each other
    context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's threads
    with ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(threads,)) as pool:
        running: dict[Future[dict[str, Any]], Cell] = {pool.submit(try_cell, config, cell): cell for cell in cells}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker died, perhaps for lack of memory (or, called from a script, for lack of "
                "`if __name__ == '__main__':`); finished cells are kept: run the same again, with fewer jobs"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(threads: int) -> None:
    end_with_parent()
    torch.set_num_threads(threads)
    _warm_up()


def _warm_up() -> None:
    """One step of nothing: what torch loads at its first step must not count against the first model."""
    weight = torch.zeros(1, requires_grad=True)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.Adam([weight]).step()


def try_cell(config: CompareConfig, cell: Cell) -> dict[str, Any]:
    """A cell, or why there is none: one model that fails must not take the others along."""
    try:
        return run_cell(config, cell)
    except JointensorError as error:
        if not isinstance(error, MemoryError):
            raise  # the user's to mend
        reason = str(error)
    except (RuntimeError, ValueError, MemoryError, ArithmeticError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    same = {"model": config.models[cell.number], "split_seed": cell.split_seed, "seed": cell.seed}
    return same | {"error": reason, "test": None, "success": False}


def _cell_file(path: Path, config: CompareConfig, cell: Cell) -> Path:
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", config.models[cell.number])[:80]
    return path / CELLS / f"{cell.number:02d}-{name}-split{cell.split_seed}-seed{cell.seed}.json"


def _stored(file: Path) -> dict[str, Any] | None:
    """What a cell's file holds, be it why it failed."""
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result


def _finished(file: Path) -> dict[str, Any] | None:
    """The same; ``None`` where the cell has to be run (again)."""
    result = _stored(file)
    return None if result is None or "error" in result else result


def _write_results(path: Path, config: CompareConfig, listener: Listener) -> list[dict[str, Any]]:
    files = [_cell_file(path, config, cell) for cell in cells_of(config)]
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
