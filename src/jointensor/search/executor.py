"""Whole fits distributed to processes: each process has all entries and makes some of the fits; all get all results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.distributed.process_group import ProcessGroup
from jointensor.predictors import Predictor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.interruption import Interruption


@dataclass(frozen=True)
class FitResult:
    """Result of one fit; everything is empty if it was not affordable."""

    part: Predictor | None = None
    """The fitted model."""
    seconds: float = 0.0
    """Of the fit."""
    predictions: NDArray[np.float32] | None = None
    """For the entries that it is scored on."""
    predict_seconds: float = 0.0
    """Of these predictions."""
    failure: str | None = None
    """Why there is no model."""
    short_rmse: float | None = None
    """RMSE of a short fit."""


def run_fits(
    processes: ProcessGroup,
    jobs: Sequence[Callable[[], FitResult]],
    interruption: Interruption,
    stored: Sequence[bool] = (),
) -> Iterator[FitResult]:
    """Results of jobs in their order; a single process runs each one when its result is asked for.

    Parameters
    ----------
    processes
        All of them are called with the same jobs.
    jobs
        Functions that fit.
    interruption
        Checked before every job, or before all of them if there are several processes.
    stored
        Which of them only load a stored fit, and belong to the first process, which has the files.
    """
    if not processes.shared:
        for job in jobs:
            interruption.check()
            yield job()
        return
    interruption.check()
    numbers = count()
    owners = [0 if known else next(numbers) % processes.size for known in stored or [False] * len(jobs)]
    own = {k: job() for k, job in enumerate(jobs) if owners[k] == processes.rank}
    processes.meet()  # a fit may take longer than a message may
    for k, owner in enumerate(owners):
        yield _share(processes, own.get(k, FitResult()), owner)


def _share(processes: ProcessGroup, result: FitResult, owner: int) -> FitResult:
    """The result of one process, for all: the same numbers to the bit, and the model as it is stored."""
    head: dict[str, Any] = {
        "seconds": result.seconds,
        "predict_seconds": result.predict_seconds,
        "failure": result.failure,
        "short_rmse": result.short_rmse,
        "part": result.part is not None,
        "predictions": result.predictions is not None,
    }
    shared = json.loads(processes.bytes_of(json.dumps(head).encode(), owner))
    weights = processes.bytes_of(_as_bytes(result.part), owner) if shared.pop("part") else None
    predictions = None
    if shared.pop("predictions"):
        numbers = b"" if result.predictions is None else result.predictions.tobytes()
        predictions = np.frombuffer(processes.bytes_of(numbers, owner), np.float32).copy()
    part = result.part
    if part is None and weights is not None:
        part = _from_bytes(weights)
    return FitResult(part, predictions=predictions, **shared)


def _as_bytes(part: Predictor | None) -> bytes:
    if part is None:
        return b""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.safetensors"
        save_predictor(part, path)
        return path.read_bytes()


def _from_bytes(data: bytes) -> Predictor:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.safetensors"
        path.write_bytes(data)
        return load_predictor(path)
