"""Whole fits, made one after the other, side by side in threads, or distributed to processes; results in their order.

Of several processes each has all entries and makes some of the fits; all get all results.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.distributed.process_group import ProcessGroup
from jointensor.predictors import Predictor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.interruption import Interruption, StopRequested
from jointensor.search.workers import ONE_WORKER, Workers


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
    admitted: bool = True
    """Whether it was affordable when it was its turn."""
    share: float = 1.0
    """Share of the machine that it had: the inverse of the number of fits side by side."""


@dataclass(frozen=True)
class Job:
    """A fit to be made."""

    work: Callable[[], FitResult]
    """Makes it, in any thread."""
    admitted: Callable[[], bool] = lambda: True
    """Asked when it is its turn, in the thread of the caller; it is not made if not."""
    on_cpu: bool = False
    """Whether it uses no GPU, so that it can be made beside one that does."""
    done: Callable[[FitResult], None] = lambda _: None
    """Called with its result as soon as there is one, in the thread of the caller and the process that made it."""


def run_fits(
    processes: ProcessGroup,
    jobs: Sequence[Job],
    interruption: Interruption,
    stored: Sequence[bool] = (),
    workers: Workers = ONE_WORKER,
) -> Iterator[FitResult]:
    """Results of jobs in their order; the first job begins when its result is asked for.

    Parameters
    ----------
    processes
        All of them are called with the same jobs.
    jobs
        What is fitted.
    interruption
        Checked before every job, or before all of them if there are several processes. Jobs that have begun by then
        are finished, or stop themselves.
    stored
        Which of them only load a stored fit, and belong to the first process, which has the files.
    workers
        Make the fits of a single process.

    Raises
    ------
    StopRequested
        After the results of the jobs that have begun.
    """
    if processes.shared:
        yield from _in_processes(processes, jobs, interruption, stored)
    elif workers.count(len(jobs)) > 1 or len(_lanes(jobs, workers)) > 1:
        yield from _SideBySide(jobs, interruption, workers).results()
    else:
        for job in jobs:
            interruption.check()
            yield _made(job)


def _made(job: Job) -> FitResult:
    """The result of a job that is made at once."""
    if not job.admitted():
        return FitResult(admitted=False)
    result = job.work()
    job.done(result)
    return result


def _lanes(jobs: Sequence[Job], workers: Workers) -> list[deque[int]]:
    """Numbers of jobs that wait for each other; beside a GPU those that do not use it wait for themselves alone."""
    lanes: dict[bool, deque[int]] = {}
    for number, job in enumerate(jobs):
        lanes.setdefault(job.on_cpu and workers.cpu_beside, deque()).append(number)
    return list(lanes.values())


@dataclass
class _SideBySide:
    """Jobs that threads make; everything but the fits themselves happens in the thread of the caller."""

    jobs: Sequence[Job]
    interruption: Interruption
    workers: Workers
    running: dict[Future[FitResult], int] = field(default_factory=dict)
    finished: dict[int, FitResult] = field(default_factory=dict)
    """Results that were not handed over yet, by the number of the job."""
    stopped: bool = False
    """Whether no further job is to begin."""

    def results(self) -> Iterator[FitResult]:
        """In the order of the jobs."""
        lanes, count = _lanes(self.jobs, self.workers), self.workers.count(len(self.jobs))
        for number in range(len(self.jobs)):
            while number not in self.finished:
                for lane in lanes:
                    while lane and self._running_like(lane[0]) < count and self._may_begin():
                        self._begin(lane.popleft(), count)
                if number in self.finished:  # it was not affordable
                    break
                if not self.running:
                    raise StopRequested  # neither this job nor any later one has begun
                self._hear_of_one(count)
            yield self.finished.pop(number)
        if self.stopped:
            raise StopRequested

    def _running_like(self, number: int) -> int:
        """Jobs that are running and that a job has to wait for."""
        apart = self.workers.cpu_beside
        return sum(not apart or self.jobs[one].on_cpu == self.jobs[number].on_cpu for one in self.running.values())

    def _may_begin(self) -> bool:
        try:
            self.interruption.check()
        except StopRequested:
            self.stopped = True
        return not self.stopped

    def _begin(self, number: int, count: int) -> None:
        job = self.jobs[number]
        if job.admitted():
            self.running[self.workers.start(job.work, count)] = number
        else:
            self.finished[number] = FitResult(admitted=False)

    def _hear_of_one(self, count: int) -> None:
        """Wait until a fit ends; an error of it is the caller's."""
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            number = self.running.pop(future)
            try:
                result = replace(future.result(), share=1 / count)
            except StopRequested:
                self.stopped, self.finished[number] = True, FitResult()
                continue
            self.jobs[number].done(result)
            self.finished[number] = result


def _in_processes(
    processes: ProcessGroup, jobs: Sequence[Job], interruption: Interruption, stored: Sequence[bool]
) -> Iterator[FitResult]:
    interruption.check()
    numbers = count()
    owners = [0 if known else next(numbers) % processes.size for known in stored or [False] * len(jobs)]
    own = {k: _made(job) for k, job in enumerate(jobs) if owners[k] == processes.rank}
    processes.meet()  # a fit may take longer than a message may
    for k, owner in enumerate(owners):
        yield _share(processes, own.get(k, FitResult()), owner)


def _share(processes: ProcessGroup, result: FitResult, owner: int) -> FitResult:
    """The result of one process, for all: the same numbers to the bit, and the model as it is stored."""
    head: dict[str, Any] = {
        "seconds": result.seconds,
        "predict_seconds": result.predict_seconds,
        "failure": result.failure,
        "admitted": result.admitted,
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
