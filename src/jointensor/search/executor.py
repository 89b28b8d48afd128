"""Whole fits dealt to processes: each has all entries and makes some of the fits; all see every result."""

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


@dataclass(frozen=True)
class Result:
    """What a fit came to."""

    part: Predictor | None = None
    seconds: float = 0.0
    predicted: NDArray[np.float32] | None = None
    """What it says of the entries that it did not see."""
    asked: float = 0.0
    """Seconds that saying it took."""
    failure: str | None = None
    short: float | None = None
    """RMSE, of a short training."""


def deal(
    processes: ProcessGroup, jobs: Sequence[Callable[[], Result]], at_first: Sequence[bool] = ()
) -> Iterator[Result]:
    """Results of jobs in their order; a process that is alone does each when it is asked for.

    ``at_first`` says which of them are for the first process, which has their results already.
    """
    if not processes.shared:
        for job in jobs:
            yield job()
        return
    numbers = count()
    owners = [0 if known else next(numbers) % processes.size for known in at_first or [False] * len(jobs)]
    own = {k: job() for k, job in enumerate(jobs) if owners[k] == processes.rank}
    processes.meet()  # a fit may take longer than a message may
    for k, owner in enumerate(owners):
        yield _tell(processes, own.get(k, Result()), owner)


def _tell(processes: ProcessGroup, result: Result, owner: int) -> Result:
    """The result of one process, for all: the same figures to the bit, and the model as it is written."""
    said: dict[str, Any] = {"seconds": result.seconds, "failure": result.failure, "short": result.short}
    said |= {"asked": result.asked}
    said |= {"part": result.part is not None, "predicted": result.predicted is not None}
    told = json.loads(processes.bytes_of(json.dumps(said).encode(), owner))
    weights = processes.bytes_of(_as_bytes(result.part), owner) if told.pop("part") else None
    numbers = b"" if result.predicted is None else result.predicted.tobytes()
    predicted = np.frombuffer(processes.bytes_of(numbers, owner), np.float32).copy() if told.pop("predicted") else None
    part = None if weights is None else _from_bytes(weights) if result.part is None else result.part
    return Result(part, predicted=predicted, **told)


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
