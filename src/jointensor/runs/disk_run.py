"""A run with ``--memory`` whose entries do not fit into it: they stay on disk, dealt to shards, and read in turn."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jointensor.atomic import write_json
from jointensor.data.formats.chunked import count_entries, scan_source
from jointensor.data.formats.files import order_modes
from jointensor.data.formats.npz_chunks import ChunkedSource
from jointensor.data.shard_writer import ShardedTensor, load_shards, write_shards
from jointensor.data.shards import Block, Shards, read_header
from jointensor.data.split import SplitAssignment, SplitRule
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError, JointensorError, RunError
from jointensor.kernels import pick_engine
from jointensor.kernels.terms import loops_of
from jointensor.metrics import Metrics
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import by_position
from jointensor.predictors import Baseline, Mean
from jointensor.predictors.biases_streamed import fit_bias_streamed
from jointensor.predictors.joint import Predictor
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import CHECKPOINTS, METRICS, write_run
from jointensor.runs.memory_plan import MemoryPlan, check_labels, fits_in_memory, memory_record
from jointensor.runs.metadata import fit_record, journal_record, stopped_note
from jointensor.runs.report import write_run_report
from jointensor.runs.scoring import Entries, calibrate_entries
from jointensor.training.checkpoint import Checkpoints
from jointensor.training.fit import Fit
from jointensor.training.journal import Journals
from jointensor.training.recipe import make_recipe
from jointensor.training.streamed import check_streamed, fit_streamed

SHARDS = "shards"
"""Folder of the shards, among the checkpoints; it is removed when the run is finished."""

SORTING = "sorting"
"""Folder of cells while they are sorted, among the checkpoints."""

SIDES = "sides"
"""File of the split, among the checkpoints, while entries are dealt."""

SHOWN = 400_000
"""Test entries that intervals and the report are made from."""


class Clock:
    """Seconds of every step of a run."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.monotonic()

    def lap(self, name: str) -> None:
        """A step has ended."""
        now = time.monotonic()
        self.laps[name], self.last = now - self.last, now


def must_stream(config: RunConfig) -> bool:
    """Whether the entries of a source have to stay on disk, or are asked to."""
    assert config.memory is not None  # there is no must without a limit
    return config.stream or not fits_in_memory(*count_entries(Path(config.source), config.table), config.memory)


def fill_large(
    path: Path, config: RunConfig, listener: Listener, begin: float, journals: Journals, checkpoints: Checkpoints
) -> dict[str, Any]:
    """Fit from disk and write the run folder."""
    with _tidy(path / CHECKPOINTS):
        metrics = _fill(path, config, listener, begin, journals)
    if not journals.stopped:
        checkpoints.clear()
        shutil.rmtree(path / CHECKPOINTS / SHARDS, ignore_errors=True)
    return metrics


@contextmanager
def _tidy(folder: Path) -> Iterator[None]:
    """Leave nothing behind that a resumed run cannot use: cells that were being sorted, shards that are not whole."""
    try:
        yield
    except (JointensorError, OSError) as error:
        if read_header(folder / SHARDS) is None:
            shutil.rmtree(folder / SHARDS, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, JointensorError):
            raise RunError(f"entries cannot be kept in {folder}: {error.strerror or error}") from error
        raise
    finally:
        shutil.rmtree(folder / SORTING, ignore_errors=True)
        (folder / SIDES).unlink(missing_ok=True)


def _fill(path: Path, config: RunConfig, listener: Listener, begin: float, journals: Journals) -> dict[str, Any]:
    _refuse(config)
    assert config.memory is not None  # that is why this is called
    assert not isinstance(config.rank, str)  # refused above
    recipe = make_recipe(config.recipe, **config.recipe_changes)
    source = scan_source(Path(config.source), config.table, path / CHECKPOINTS / SORTING)
    source = replace(source, modes=order_modes(source.modes, config.orders))
    for note in source.notes:
        listener.on_note(note)
    linear = recipe.linear(config.rank[0]) if config.linear is None else _by_position(config.linear, source)
    check_streamed(linear, recipe)
    shape = [mode.size for mode in source.modes]
    check_labels(config.memory, shape, sum(config.rank))
    model = JointModel(shape, config.rank, linear=linear, nonlinear=config.nonlinear)
    room = MemoryPlan.of(config.memory, model)
    clock = Clock()
    dealt = _deal(path, config, source, room, listener)
    clock.lap("deal")
    notes = [*source.notes, *_notes(dealt, config)]
    for note in notes[len(source.notes) :]:
        listener.on_note(note)
    listener.on_note(
        f"{len(dealt.train):,} entries to train on, {len(dealt.valid):,} to validate, {len(dealt.test):,} to test, "
        f"in {len(dealt.train.counts)} shard{'' if len(dealt.train.counts) == 1 else 's'}"
    )
    listener.on_note(repr(model))
    loops = loops_of(pick_engine(config.engine, "cpu").name)
    bias = fit_bias_streamed(dealt.train.blocks, dealt.summary.mean, dealt.counts, dealt.valid, loops)
    clock.lap("biases")
    fitted = fit_streamed(
        model, dealt, recipe, bias, seed=config.seed, systems=room.systems, batch=room.batch, engine=config.engine,
        budget=config.left(begin), on_epoch=listener.on_epoch, on_note=listener.on_note, journal=journals.next(),
    )  # fmt: skip
    for note in fitted.notes:
        listener.on_note(note)
    clock.lap("fit")
    notes += fitted.notes
    if journals.stopped:
        notes.append(stopped_note(path))
        listener.on_note(notes[-1])
    return _write(path, config, source, dealt, fitted, notes, begin, clock, journals)


def _by_position(linear: str, source: ChunkedSource) -> str:
    names = [mode.name for mode in source.modes]

    def find(name: str) -> int:
        if name not in names:
            raise DataError(f"there is no mode '{name}'; the modes are {', '.join(names)}")
        return names.index(name)

    return by_position(linear, find)


def _refuse(config: RunConfig) -> None:
    """What a run from disk cannot do."""
    reasons = {
        "--rank auto needs all entries in memory; give --rank R/F, or leave out --memory": isinstance(config.rank, str),
        "--refit needs all entries in memory; leave it out, or give --test 0 --valid 0": config.refit,
        "--test-file cannot be given with --memory; give --test 0 and judge by jointensor evaluate RUN FILE": (
            config.test_file is not None
        ),
        "--memory fits on the CPU; leave out --device": config.device not in ("auto", "cpu"),
        "engine 'triton' runs on a GPU, and --memory fits on the CPU": config.engine == "triton",
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(reason)


def _deal(path: Path, config: RunConfig, source: ChunkedSource, room: MemoryPlan, listener: Listener) -> ShardedTensor:
    """The shards of this run, those of an interrupted one where they are whole."""
    folder, rule = path / CHECKPOINTS / SHARDS, {**config.split_record(), "rows": room.rows}
    before = load_shards(folder, source.modes, rule)
    if before is not None:
        listener.on_note("taking the shards that were written before the interruption")
        return before
    listener.on_note(f"dealing {source.entries:,} entries to shards of about {room.rows:,}")
    how = SplitRule(config.split, config.test, config.valid, config.split_seed)
    sides = SplitAssignment(how, source.entries, path / CHECKPOINTS / SIDES, room.permutation)
    dealt = write_shards(folder, source.chunks(), source.modes, sides, room.rows, rule)
    shutil.rmtree(path / CHECKPOINTS / SORTING, ignore_errors=True)
    return dealt


def _notes(dealt: ShardedTensor, config: RunConfig) -> list[str]:
    notes = [f"entries stay on disk: {dealt.entries:,} of them are more than --memory holds with all that a fit keeps"]
    if config.memory is not None and config.stream:
        notes = ["entries stay on disk, as --stream asks"]
    if dealt.how == "hashed":
        notes.append("the split is drawn by a hash of each entry's position: its permutation would not fit into memory")
    if len(dealt.valid) >= SplitRule.max_valid:
        notes.append(f"validation entries are a sample of {len(dealt.valid):,}; the others are not used")
    return notes


def _write(
    path: Path,
    config: RunConfig,
    source: ChunkedSource,
    dealt: ShardedTensor,
    fitted: Fit,
    notes: list[str],
    begin: float,
    clock: Clock,
    journals: Journals,
) -> dict[str, Any]:
    """Judge, and write the run folder."""
    baselines: dict[str, Baseline] = {"mean": Mean(dealt.summary.mean), "bias": fitted.predictor.fallback}
    valid = [Block(dealt.valid.indices.astype(np.int32), dealt.valid.values)] if len(dealt.valid) else []
    on_test, on_valid = (judge(fitted.predictor, baselines, blocks) for blocks in (dealt.test.blocks(), iter(valid)))
    clock.lap("judge")
    sample = _sample(dealt.test, SHOWN) if len(dealt.test) else (dealt.valid.indices, dealt.valid.values)
    predictor = replace(fitted.predictor, calibration=calibrate_entries(fitted.predictor, sample, dealt.shape))
    checksums = write_run(path, predictor, dealt.modes, source.spec, fitted.history)
    returned: dict[str, Any] = {"model": fitted.returned, "refit": False}
    if fitted.returned != "joint":
        joint = replace(fitted.predictor, returned="joint")
        own = (judge(joint, {}, blocks)["model"] for blocks in (dealt.test.blocks(), iter(valid)))
        returned["joint"] = dict(zip(("test", "valid"), own, strict=True))
    metrics = {
        "test": on_test["model"],
        "valid": on_valid["model"],
        "baselines": {
            name: {"test": on_test.get(name), "valid": on_valid.get(name)}
            for name in ("mean", "bias", "tables", "interp")
        },
        "returned": returned,
        **fit_record(fitted, config, begin),
        "split": config.split_record() | {"drawn": dealt.how},
        "device": "cpu",
        "world_size": 1,
        "entries_per_rank": [len(dealt.train)],
        "shape": list(dealt.shape),
        "entries": {"train": len(dealt.train), "valid": len(dealt.valid), "all": dealt.entries},
        "steps": clock.laps,
        **journal_record(journals),
        "notes": notes,
        "files": checksums,
    }
    some = SparseTensor(*_sample(dealt.train, SHOWN), dealt.modes)
    if len(some) < len(dealt.train):
        metrics["notes"] = [*notes, f"counts per label and values in the report are of {len(some):,} training entries"]
    try:
        write_run_report(
            path, metrics, fitted.history, some, predictor, (predictor, sample), calibrated=True, entries=dealt.entries
        )
    finally:  # last of all files; and a page that fails must not cost a fit
        metrics["memory"] = memory_record(config.memory or 0)
        write_json(path / METRICS, metrics)
    return metrics


def judge(predictor: Predictor, baselines: dict[str, Baseline], blocks: Iterator[Block]) -> dict[str, Any]:
    """Figures of a model and of baselines on entries that come in blocks; ``None`` for all where there are none."""
    every, warm, cold = Metrics(), Metrics(), Metrics()
    others = {name: Metrics() for name in baselines}
    for block in blocks:
        for start in range(0, len(block), 1 << 18):
            indices, values = block.indices[start : start + (1 << 18)], block.values[start : start + (1 << 18)]
            predicted, unseen = predictor.predict(indices), predictor.unseen(indices)
            every.update(predicted, values)
            warm.update(predicted[~unseen], values[~unseen])
            cold.update(predicted[unseen], values[unseen])
            for name, one in baselines.items():
                others[name].update(one.predict(indices), values)
    if not every.n:
        return dict.fromkeys(["model", *baselines])
    own = every.to_dict() | {"warm": warm.to_dict(), "cold": cold.to_dict()}
    return {"model": own} | {name: one.to_dict() for name, one in others.items()}


def _sample(shards: Shards, wanted: int) -> Entries:
    """Some entries of the first shards, which are random."""
    indices, values = [], []
    for k in range(len(shards.counts)):
        block = shards.read(k).shuffled(np.random.default_rng(k))
        indices.append(block.indices[:wanted])
        values.append(block.values[:wanted])
        wanted -= len(values[-1])
        if not wanted:
            break
    return np.concatenate(indices), np.concatenate(values)
