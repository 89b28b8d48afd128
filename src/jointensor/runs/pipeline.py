"""The one pipeline of every run: read → split → baselines → train (fit | search) → evaluate → write.

In memory, from disk, over several processes and by search are choices inside these stages.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from jointensor.atomic import sha256
from jointensor.data.split import rolling_rule
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError, DataError, KeptRunError, ProcessGroupError, RunError
from jointensor.evaluation.coverage import coverage_by_class
from jointensor.evaluation.evaluate import Entries, calibrate_on, score
from jointensor.forecasting import figures_of_rolling
from jointensor.predictors import Predictor
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.runs.config import AUTO, Listener, RunConfig
from jointensor.runs.dataset import (
    SHARDS,
    Dataset,
    OnDisk,
    entries_folder,
    from_disk_request,
    read_in_chunks,
    read_in_memory,
    split_in_memory,
    split_on_disk,
    stays_on_disk,
    tidy,
)
from jointensor.runs.folder import (
    CHECKPOINTS,
    finish_run,
    finished_before,
    has_metrics,
    options_of,
    read_config,
    read_metrics,
    run_folder,
    settle,
    write_model,
)
from jointensor.runs.memory_plan import peak_memory
from jointensor.runs.report import Judged, write_run_report
from jointensor.runs.result import Figures, RunResult, Stages, Trained
from jointensor.runs.train import SEARCH_STORE, Context, can_mix, train_default, train_fit, train_search
from jointensor.training.checkpoint import Checkpoints
from jointensor.training.fit import pick_device
from jointensor.training.from_disk import check_from_disk

BASELINES = ("mean", "bias", "tables", "interp")
"""Baselines of ``metrics.json``; those that were not fitted have no figures."""


def run(
    config: RunConfig, out: Path, listener: Listener | None = None, processes: ProcessGroup = SINGLE_PROCESS
) -> RunResult | None:
    """Fit or search as ``config`` says and write the run folder.

    Of several processes only the first one writes; the others train with it and return ``None``.

    Raises
    ------
    JointensorError
        If the source, an option or the folder is at fault. The folder is removed then, unless training had begun.
    """
    options = options_of(config)
    if processes.decide(lambda: options["source_sha256"]) != options["source_sha256"]:
        raise DataError(
            f"process {processes.rank} of {processes.size} reads another {config.source} than process 0: their "
            "checksums differ; give all machines the same file"
        )
    done = finished_before(out, options, processes)
    if done is not None:
        return RunResult(**done) if processes.first else None
    with run_folder(out, options, processes):
        return _fill(out, config, listener or Listener(), processes)


def resume(path: Path, listener: Listener | None = None, processes: ProcessGroup = SINGLE_PROCESS) -> RunResult | None:
    """Finish a run that was interrupted, from its last checkpoint, or from its beginning where there is none.

    A run that was stopped with Ctrl-C has a model already. It keeps that one until the new one is written.
    """
    options = processes.decide(lambda: _options_of_unfinished(path) if processes.first else {})
    expected = options.pop("source_sha256", None)
    config = RunConfig.from_dict(options)
    source = Path(config.source)
    if not source.is_file() or sha256(source) != expected:
        raise DataError(f"{source} is gone or has changed since the run began; start a new run")
    return _fill(path, config, listener or Listener(), processes)


def _options_of_unfinished(path: Path) -> dict[str, Any]:
    options = read_config(path)
    settle(path)
    if has_metrics(path) and not read_metrics(path).get("interrupted"):
        raise ConfigError(f"{path} is finished already; there is nothing to resume")
    (path / CHECKPOINTS).mkdir(exist_ok=True)
    return options


def _fill(path: Path, config: RunConfig, listener: Listener, processes: ProcessGroup) -> RunResult | None:
    """The stages of a run, in order."""
    checkpoints = Checkpoints(path / CHECKPOINTS, config.checkpoint_every) if processes.first else None
    begin = time.monotonic() - processes.decide(lambda: checkpoints.elapsed if checkpoints else 0.0)
    context = Context(path, config, listener, processes, begin, checkpoints)
    stages = Stages()
    with tidy(entries_folder(path, processes)):
        dataset = read_and_split(context, stages)
    with stages("baselines"):
        baselines = dataset.fit_baselines(processes)
        processes.meet()  # the first process has more of them to fit
    with _kept_for_resume(path), stages("train"):
        trained = train(context, dataset, baselines)
        processes.leave()  # the other stages are for the first process alone
    if not processes.first:
        shutil.rmtree(entries_folder(path, processes), ignore_errors=True)
        return None
    with stages("evaluate"):
        figures = evaluate(trained, dataset, baselines)
        rolled = _figures_of_forecasts(config, dataset)
    with _kept_for_resume(path), stages("write"):
        return write(context, dataset, trained, figures, rolled, stages)


def read_and_split(context: Context, stages: Stages) -> Dataset:
    """The entries of a run, in memory or on disk."""
    config, listener = context.config, context.listener
    dataset: Dataset
    if stays_on_disk(config, listener):
        check_from_disk(from_disk_request(config))
        with stages("read"):
            folder = entries_folder(context.path, context.processes)
            source = read_in_chunks(folder, config)
        with stages("split"):
            dataset = split_on_disk(folder, config, source, listener, context.processes)
    else:
        with stages("read"):
            reading = read_in_memory(config)
        with stages("split"):
            dataset = split_in_memory(config, reading)
    shape = " × ".join(f"{mode.name} {mode.size:,}" for mode in dataset.modes)
    counts = dataset.counts
    context.note(*dataset.notes, f"{counts['all']:,} entries of {shape}")
    context.note(
        f"{counts['train']:,} entries to train on, {counts['valid']:,} to validate, {counts['test']:,} to test"
    )
    return dataset


def train(context: Context, dataset: Dataset, baselines: dict[str, Predictor]) -> Trained:
    """The default fit, one fit, or a search over many."""
    if context.config.rank == AUTO:
        trained = train_search(context, dataset)
    elif can_mix(context, dataset):
        trained = train_default(context, dataset, baselines)
    else:
        trained = train_fit(context, dataset, baselines)
    if not trained.record.interrupted:
        return trained
    note = f"stopped before its end, with the best model so far; to go on: jointensor fit --resume {context.path}"
    context.note(note)
    return replace(trained, record=replace(trained.record, notes=[*trained.record.notes, note]))


def evaluate(
    trained: Trained, dataset: Dataset, baselines: dict[str, Predictor]
) -> dict[str, dict[str, Figures | None]]:
    """Figures by part (``test``, ``valid``) and by predictor (``model``, ``joint`` and the baselines)."""
    valid = dataset.valid.indices, dataset.valid.values
    parts: dict[str, tuple[JointPredictor | Ensemble, Callable[[], Iterable[Entries]]]] = {
        "test": (trained.judged, dataset.test_parts),
        "valid": (trained.validated or trained.judged, lambda: [valid]),
    }
    found: dict[str, dict[str, Figures | None]] = {}
    for part, (predictor, entries) in parts.items():
        figures = score(predictor, entries(), baselines)
        if trained.joint is not None:
            figures["joint"] = score(trained.joint, entries())["model"]
        found[part] = {name: one if one["n"] else None for name, one in figures.items()}
    if trained.out_of_fold is not None:
        found["valid"]["model"] = trained.out_of_fold
    return found


def _figures_of_forecasts(config: RunConfig, dataset: Dataset) -> dict[str, Any] | None:
    """Figures of forecasts of the test entries, where the split says how far ahead they are made."""
    rolling = rolling_rule(config.split)
    if rolling is None or isinstance(dataset, OnDisk):
        return None
    tensor = dataset.reading.tensor
    declared = [name for name, order in config.orders.items() if order == "ordered"]
    return figures_of_rolling(tensor, rolling.horizon, rolling.origins, rolling.by, declared=declared, seed=config.seed)


def write(
    context: Context,
    dataset: Dataset,
    trained: Trained,
    figures: dict[str, dict[str, Figures | None]],
    rolled: dict[str, Any] | None,
    stages: Stages,
) -> RunResult:
    """The run folder: model and labels, report, and ``metrics.json`` last; then what only training needed goes."""
    path, config, processes, record = context.path, context.config, context.processes, trained.record
    searched = trained.out_of_fold is not None
    held_out = dataset.held_out()
    counts = dataset.counts
    if searched:  # it has learnt from the validation entries
        held_out = held_out if counts["test"] else (held_out[0][:0], held_out[1][:0])
        counts |= {"train": counts["train"] + counts["valid"], "valid": 0}
    shape = [mode.size for mode in dataset.modes]
    judged, kept = trained.judged, trained.kept
    by_validation = dataset.validation_is_like_gaps and not searched  # test entries are not
    before = trained.validated or judged  # it has not learnt from the validation entries
    if not counts["test"]:
        judged = before
    if not trained.calibrated:
        entries = (dataset.valid.indices, dataset.valid.values) if by_validation else held_out
        together = dataset.left_out_together(entries)
        calibration = calibrate_on(before if by_validation else judged, entries, tuple(shape), together)
        judged, kept = (replace(one, calibration=calibration) for one in (judged, kept))
    halves, together = not (trained.calibrated or by_validation), dataset.left_out_together(held_out)
    learnt = dataset.learnt_from(validation=bool(counts["test"]) and (searched or trained.validated is not None))
    coverage = None
    if learnt is not None:
        coverage = coverage_by_class(judged, learnt, *held_out, halves=halves, together=together)
    joint = {"joint": {part: figures[part]["joint"] for part in figures}} if trained.joint else {}
    more = {"returned": record.returned | joint, "notes": [*dataset.notes, *record.notes]}
    result = RunResult(
        **vars(record) | more,
        test=figures["test"]["model"],
        valid=figures["valid"]["model"],
        coverage=coverage,
        forecast=rolled,
        baselines={name: {part: figures[part].get(name) for part in figures} for name in BASELINES},
        seconds=time.monotonic() - context.begin,
        steps=stages.seconds(),
        device=pick_device(_device(config, dataset)).type,
        world_size=processes.size,
        entries_per_rank=[counts["train"]] * processes.size if searched else dataset.entries_per_process(processes),
        seed=config.seed,
        split=config.split_record() | dataset.split_record,
        shape=shape,
        entries=counts,
        communication=_communication(processes, record.fits if searched else record.epochs or 0),
        files=write_model(path, kept, dataset.modes, dataset.spec, trained.history),
    )
    sample = dataset.sample()
    try:
        write_run_report(
            path, result.to_dict(), trained.history, sample, kept, Judged(judged, held_out, halves, together),
            mask=dataset.mask(),
            entries=counts["all"] if isinstance(dataset, OnDisk) else None,
        )  # fmt: skip
    finally:  # a page that fails must not cost a fit
        if config.memory is not None:
            result = replace(result, memory={"allowed": config.memory, "peak": peak_memory()})
        finish_run(path, result.to_dict())
    if not record.interrupted:
        _remove_checkpoints(path / CHECKPOINTS)
    return result


def _communication(processes: ProcessGroup, passes: int) -> dict[str, float] | None:
    """Bytes that the first process has sent, in all, by operation and per pass; ``None`` for a single process."""
    if not processes.shared:
        return None
    total, operations = sum(processes.wire.values()), {name: count for name, count in processes.wire.items() if count}
    return {"epochs": passes, "bytes": total, "bytes_per_epoch": total / max(passes, 1), **operations}


def _device(config: RunConfig, dataset: Dataset) -> str:
    """The device by name; where entries are on disk, ``auto`` is the CPU."""
    return "cpu" if isinstance(dataset, OnDisk) and config.device == "auto" else config.device


def _remove_checkpoints(folder: Path) -> None:
    """What a finished run does not need: states of training, shards, fits of a search."""
    for name in (SHARDS, SEARCH_STORE):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in folder.glob("fit-*.safetensors"):
        path.unlink(missing_ok=True)


@contextmanager
def _kept_for_resume(path: Path) -> Iterator[None]:
    """A file that cannot be written after training has begun costs nothing but that file: say how to go on."""
    try:
        yield
    except (ConfigError, DataError, ProcessGroupError):
        raise
    except RunError as error:
        finished = has_metrics(path) and not read_metrics(path).get("interrupted")  # only the report is missing
        if finished or not path.exists():
            raise
        raise KeptRunError(
            f"{error}; the run is kept: when there is room, go on with: jointensor fit --resume {path}"
        ) from error
