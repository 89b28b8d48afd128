"""One fit from source to run folder: read, split, baselines, train, judge, write."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jointensor.atomic import sha256, write_json
from jointensor.data.formats.entries import read_entries
from jointensor.data.formats.files import read_tensor
from jointensor.data.formats.reading import Reading
from jointensor.data.split import Split, split
from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError, DataError
from jointensor.evaluation.evaluate import evaluate_entries
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import by_position, without_memory
from jointensor.predictors import Baseline, Tables, fit_baselines, fit_bias
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import Predictor
from jointensor.runs.config import AUTO, Listener, RunConfig
from jointensor.runs.disk_run import fill_large, must_stream
from jointensor.runs.folder import CHECKPOINTS, METRICS, read_config, read_json, write_run
from jointensor.runs.memory_plan import memory_record
from jointensor.runs.metadata import fit_record, journal_record, stopped_note
from jointensor.runs.processes import check_same_source, finished_before, run_folder, wire_record
from jointensor.runs.report import write_run_report
from jointensor.runs.residuals import FOLDS, remember
from jointensor.runs.scoring import Entries, calibrate_on, figures_of
from jointensor.runs.search_run import fill_auto
from jointensor.training.checkpoint import Checkpoints
from jointensor.training.fit import Fit, fit, pick_device
from jointensor.training.journal import Journals
from jointensor.training.recipe import Recipe, make_recipe
from jointensor.training.schedule import schedule_of


def run(
    config: RunConfig, out: Path, listener: Listener | None = None, processes: ProcessGroup = SINGLE_PROCESS
) -> dict[str, Any]:
    """Fit as ``config`` says and write the run folder; returns what ``metrics.json`` holds.

    Of several processes only the first one writes; the others train with it and return nothing.

    Raises
    ------
    JointensorError
        If the source, an option or the folder is at fault; the folder is removed then.
    """
    listener = listener or Listener()
    source = Path(config.source)
    if not source.is_file():
        raise DataError(f"there is no file {source}")
    checksum = sha256(source)
    check_same_source(source, checksum, processes)
    asked = {"source_sha256": checksum, **asdict(config)}
    done = finished_before(out, asked, processes)
    if done is not None:
        return done
    with run_folder(out, asked, processes) as path:
        return _fill(path, config, listener, processes)


def resume(path: Path, listener: Listener | None = None, processes: ProcessGroup = SINGLE_PROCESS) -> dict[str, Any]:
    """Finish a run that was interrupted, from its last checkpoint, or from its beginning where there is none.

    A run that somebody stopped with Ctrl-C is finished with what there was; it can be resumed all the same.
    """
    stored = processes.decide(lambda: _unfinished(path) if processes.first else {})
    expected = stored.pop("source_sha256", None)
    config = RunConfig.from_dict(stored)
    source = Path(config.source)
    if not source.is_file() or sha256(source) != expected:
        raise DataError(f"{source} is gone or has changed since the run began; start a new run")
    if processes.first:
        (path / METRICS).unlink(missing_ok=True)
    return _fill(path, config, listener or Listener(), processes)


def _unfinished(path: Path) -> dict[str, Any]:
    """What an unfinished run was asked for."""
    stored = read_config(path)
    if (path / METRICS).exists() and not _read_metrics(path).get("interrupted"):
        raise ConfigError(f"{path} is finished already; there is nothing to resume")
    return stored


def _read_metrics(path: Path) -> dict[str, Any]:
    found = read_json(path / METRICS)
    return found if isinstance(found, dict) else {}


def _fill(path: Path, config: RunConfig, listener: Listener, processes: ProcessGroup) -> dict[str, Any]:
    checkpoints = Checkpoints(path / CHECKPOINTS, config.checkpoint_every) if processes.first else None
    journals = Journals(checkpoints, listener.stopping, listener.on_note, processes)
    begin = time.monotonic() - processes.decide(lambda: checkpoints.elapsed if checkpoints else 0.0)
    if config.memory is not None and checkpoints is not None and _stay_on_disk(config, listener, processes):
        return fill_large(path, config, listener, begin, journals, checkpoints)
    reading = read_source(config.source, config.table, config.orders)
    for note in reading.notes:
        listener.on_note(note)
    tensor = reading.tensor
    parts = split(
        tensor,
        rule=config.split,
        test=0.0 if config.test_file else config.test,
        valid=config.valid,
        seed=config.split_seed,
    )
    test = _test_entries(config, reading, parts)
    listener.on_note(f"{tensor!r}")
    listener.on_note(
        f"{len(parts.train):,} entries to train on, {len(parts.valid):,} to validate, {len(test[1]):,} to test"
    )
    baselines = _baselines(parts, processes)
    processes.meet()
    if config.rank == AUTO:
        return fill_auto(path, config, listener, reading, parts, test, baselines, begin, processes)
    fitted = _fit(config, parts, baselines["bias"], listener, begin, journals)  # type: ignore[arg-type]
    for note in fitted.notes:
        listener.on_note(note)
    judged, notes = _remember(config, fitted, parts, test, listener, begin, journals)
    again = config.refit and fitted.returned == "joint" and isinstance(judged, Predictor) and not journals.stopped
    kept = _refit(config, tensor, fitted, listener, begin, journals) if again else fitted
    processes.leave()  # what follows is for the first alone
    if checkpoints is None:
        return {}
    figures = figures_of(judged, baselines, parts, test)
    if journals.stopped:
        notes = [*notes, stopped_note(path)]
        listener.on_note(notes[-1])
    judged = replace(judged, calibration=calibrate_on(judged, parts, test))
    predictor = replace(kept.predictor, calibration=judged.calibration) if again else judged
    checksums = write_run(path, predictor, tensor.modes, reading.spec, fitted.history)
    metrics = (
        figures
        | {"returned": _returned(fitted, parts, test, refit=kept is not fitted)}
        | fit_record(fitted, config, begin)
        | {
            "device": pick_device(config.device).type,
            "world_size": processes.size,
            "entries_per_rank": processes.shares(len(parts.train)),
            "shape": list(tensor.shape),
            "entries": {"train": len(parts.train), "valid": len(parts.valid), "all": len(tensor)},
        }
        | wire_record(processes, len(fitted.history))
        | journal_record(journals)
        | {"notes": [*reading.notes, *fitted.notes, *notes], "files": checksums}
    )
    held = test if len(test[1]) else (parts.valid.indices, parts.valid.values)
    try:
        write_run_report(path, metrics, fitted.history, tensor, predictor, (judged, held), calibrated=True)
    finally:  # last of all files; and a page that fails must not cost a fit
        if config.memory is not None:
            metrics["memory"] = memory_record(config.memory)
        write_json(path / METRICS, metrics)
    if not journals.stopped:
        checkpoints.clear()
    return metrics


def _stay_on_disk(config: RunConfig, listener: Listener, processes: ProcessGroup) -> bool:
    """Whether entries are more than ``--memory`` holds."""
    if processes.shared:
        raise ConfigError("--memory is for one process; leave it out, or start the fit without torchrun")
    if must_stream(config):
        return True
    listener.on_note("entries are held in memory: --memory is enough for that")
    return False


def _baselines(parts: Split, processes: ProcessGroup) -> dict[str, Baseline]:
    """All baselines for the process that reports them; the others need the biases only."""
    return fit_baselines(parts) if processes.first else {"bias": fit_bias(parts.train, parts.valid)}


def read_source(source: str, table: dict[str, Any] | None, orders: dict[str, str]) -> Reading:
    """The tensor of a run, read again by the same rules."""
    spec = None
    if table is not None:
        from jointensor.data.frames import TableSpec  # noqa: PLC0415 - polars only for tables

        spec = TableSpec.from_dict(table)
    reading = read_tensor(source, spec, orders)
    if not len(reading.tensor):
        raise DataError(f"{source} has no entries")
    return reading


def _test_entries(config: RunConfig, reading: Reading, parts: Split) -> Entries:
    if config.test_file is None:
        return parts.test.indices, parts.test.values
    return read_entries(config.test_file, reading.tensor.modes, reading.spec)


def _fit(config: RunConfig, parts: Split, bias: Tables, listener: Listener, begin: float, journals: Journals) -> Fit:
    recipe = make_recipe(config.recipe, **config.recipe_changes)
    model = _model(config, recipe, parts.train)
    listener.on_note(repr(model))
    return fit(
        model,
        parts,
        recipe,
        seed=config.seed,
        device=config.device,
        budget=config.left(begin),
        fallback=bias,
        on_epoch=listener.on_epoch,
        engine=config.engine,
        on_note=listener.on_note,
        journal=journals.next(),
    )


def _model(config: RunConfig, recipe: Recipe, tensor: SparseTensor) -> JointModel:
    assert not isinstance(config.rank, str)  # "auto" went another way
    linear = recipe.linear(config.rank[0]) if config.linear is None else by_position(config.linear, tensor.mode)
    trained, _ = without_memory(linear, tables=recipe.linear_solver != "gibbs")
    return JointModel(tensor.shape, config.rank, linear=trained, nonlinear=config.nonlinear)


def _remember(
    config: RunConfig,
    fitted: Fit,
    parts: Split,
    test: Entries,
    listener: Listener,
    begin: float,
    journals: Journals,
) -> tuple[Predictor | Ensemble, list[str]]:
    """The fitted model, with neighbours and tables where they were asked for; and what they took away."""
    spec = "" if config.linear is None else by_position(config.linear, parts.train.mode)
    _, late = without_memory(spec, tables=fitted.recipe.linear_solver != "gibbs")
    if not late or fitted.returned != "joint" or journals.stopped:
        return fitted.predictor, []
    listener.on_note(f"fitting {FOLDS} more times, for residuals of entries that were left out")

    def again(some: Split) -> Fit:
        return fit(
            _model(config, fitted.recipe, parts.train), some, fitted.recipe, seed=config.seed, device=config.device,
            budget=config.left(begin), engine=config.engine, journal=journals.next(),
        )  # fmt: skip

    found, memory = remember(fitted, parts, late, again, None, config.seed)
    notes = [
        f"{name} took away {gain:.1%} of the squared error of entries that were left out" for name, gain in memory.notes
    ]
    for note in notes:
        listener.on_note(note)
    return found, notes


def _refit(
    config: RunConfig, tensor: SparseTensor, fitted: Fit, listener: Listener, begin: float, journals: Journals
) -> Fit:
    """Train once more on all entries, for as long as the evaluated model took; a failure keeps that model."""
    listener.on_note("training once more on all entries")
    everything = split(tensor, test=0.0, valid=0.0, seed=config.split_seed)
    model = _model(config, fitted.recipe, tensor)
    again = fit(
        model,
        everything,
        schedule_of(fitted),
        seed=config.seed,
        device=config.device,
        budget=config.left(begin),
        on_epoch=listener.on_epoch,
        engine=config.engine,
        journal=journals.next(),
    )
    if (again.failed and not fitted.failed) or journals.stopped:
        why = "was stopped" if journals.stopped else f"failed ({again.outcome})"
        listener.on_note(f"training on all entries {why}; the evaluated model is kept")
        return fitted
    return again


def _returned(fitted: Fit, parts: Split, test: Entries, *, refit: bool) -> dict[str, Any]:
    """Which model was kept, and the joint model's own figures where it was not that one."""
    if fitted.returned == "joint":
        return {"model": "joint", "refit": refit}
    joint = replace(fitted.predictor, returned="joint")
    valid = evaluate_entries(joint, parts.valid.indices, parts.valid.values)
    own = {"test": evaluate_entries(joint, *test) if len(test[1]) else None, "valid": valid}
    return {"model": fitted.returned, "refit": refit, "joint": own}
