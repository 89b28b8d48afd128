"""A run with ``--rank auto``: search, judge, write."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jointensor.atomic import write_json
from jointensor.data.formats.reading import Reading
from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor, join
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.kernels import pick_engine
from jointensor.metrics import measure
from jointensor.predictors import Baseline
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import METRICS, write_run
from jointensor.runs.processes import wire_record
from jointensor.runs.report import write_run_report
from jointensor.runs.scoring import Entries, figures_of
from jointensor.search.finalise import SearchResult
from jointensor.search.search import search
from jointensor.training.fit import pick_device

AUTO_BUDGET = 600.0
"""Seconds for a search where none are given."""


def fill_auto(
    path: Path,
    config: RunConfig,
    listener: Listener,
    reading: Reading,
    parts: Split,
    test: Entries,
    baselines: dict[str, Baseline],
    begin: float,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """``--rank auto``: learn from training and validation entries alike, in folds; then judge and write.

    Several processes have all entries each, and fit candidates side by side; the first one plans.
    """
    learnt = join(parts.train, parts.valid)
    kind, _, names = config.split.partition(":")
    groups = tuple(learnt.mode(name.strip()) for name in names.split(",")) if kind == "group" else ()
    budget = AUTO_BUDGET if config.budget is None else config.budget
    found = search(
        learnt,
        seed=config.seed,
        budget=max(budget - (time.monotonic() - begin), 1.0),
        device=str(processes.device) if processes.shared else config.device,
        engine=config.engine,
        groups=groups,
        store=path / "checkpoints" / "auto" if processes.first else None,
        on_note=listener.on_note,
        processes=processes,
    )
    processes.leave()  # what follows is for the first alone
    if not processes.first:
        return {}
    known = np.isfinite(found.predicted)
    left_out = measure(found.predicted[known], learnt.values[known]).to_dict()
    checksums = write_run(path, found.predictor, learnt.modes, reading.spec, [])
    shutil.rmtree(path / "checkpoints" / "auto", ignore_errors=True)
    nothing = {"n": 0, "rmse": None, "mae": None, "rfe": None}
    metrics = (
        figures_of(found.predictor, baselines, replace(parts, valid=learnt.take(np.zeros(0, dtype=np.int64))), test)
        | {"valid": left_out | {"warm": left_out, "cold": nothing}}
        | {"returned": {"model": "auto", "refit": True}}
        | {"auto": {"trials": found.trials, "simplest": found.simplest, "reason": found.reason, **found.figures}}
        | _auto_circumstances(config, found, learnt, len(reading.tensor), begin, processes)
        | wire_record(processes, sum(row["folds"] for row in found.trials))
        | {"notes": [*reading.notes, *_dealt(processes), found.reason], "files": checksums}
    )
    judged = found.predictor, test
    try:
        write_run_report(path, metrics, [], reading.tensor, found.predictor, judged, calibrated=False)
    finally:  # last of all files; and a page that fails must not cost a search
        write_json(path / METRICS, metrics)
    return metrics


def _dealt(processes: ProcessGroup) -> list[str]:
    return [f"whole fits were dealt to {processes.size} processes; each has all entries"] if processes.shared else []


def _auto_circumstances(
    config: RunConfig, found: SearchResult, learnt: SparseTensor, entries: int, begin: float, processes: ProcessGroup
) -> dict[str, Any]:
    return {
        "outcome": found.outcome,
        "restarts": 0,
        "attempts": [],
        "failed": False,
        "nonlinear_dead": False,
        "epochs": sum(row["folds"] for row in found.trials),
        "resumed_from_epoch": None,
        "parameters": found.predictor.n_parameters(),
        "seconds": time.monotonic() - begin,
        "engine": pick_engine(config.engine, pick_device(config.device).type).name,
        "linear": found.chosen,
        "device": pick_device(config.device).type,
        "world_size": processes.size,
        "entries_per_rank": [len(learnt)] * processes.size,
        "seed": config.seed,
        "split": config.split_record(),
        "shape": list(learnt.shape),
        "entries": {"train": len(learnt), "valid": 0, "all": entries},
    }
