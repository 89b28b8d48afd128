"""What a run ends with: one typed result for every kind of run, and the keys of ``metrics.json``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.training.history import Epoch

Figures = dict[str, Any]
"""``{rmse, mae, rfe, n, warm: {…}, cold: {…}}``."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What ``metrics.json`` says of the training stage, whether it was one fit or a search."""

    returned: dict[str, Any]
    """Which model was kept; whether it has learnt from further entries in the end (all of them with ``--refit``, those
    for validation in a mixture or a search); and the joint model's figures if it was not kept."""
    outcome: str
    """``converged``, ``budget``, ``diverged``, ``dead``, or ``interrupted``."""
    interrupted: bool
    """Whether the run was stopped before its end; ``--resume`` continues it."""
    restarts: int = 0
    attempts: list[dict[str, Any]] = field(default_factory=list)
    failed: bool = False
    nonlinear_dead: bool = False
    fits: int
    """Models that were trained, restarts not counted."""
    epochs: int | None = None
    """Passes over the training entries, as in ``history.jsonl``; ``None`` of a search, which keeps no history."""
    resumed_from_epoch: float | None = None
    parameters: int
    engine: str
    linear: str
    first: str | None = None
    ridge: float | None = None
    collapsed: list[str] = field(default_factory=list)
    search: dict[str, Any] | None = None
    """Candidates, weights and the reason, of a search or of the default fit."""
    notes: list[str]


@dataclass(frozen=True)
class Trained:
    """What the training stage hands on."""

    judged: JointPredictor | Ensemble
    """The predictor that is evaluated on test entries."""
    kept: JointPredictor | Ensemble
    """The predictor that is stored; another one where the model was trained once more on all entries."""
    record: TrainingRecord
    history: list[Epoch] = field(default_factory=list)
    validated: Ensemble | None = None
    """The predictor that is evaluated on validation entries, where ``judged`` has learnt from them."""
    joint: JointPredictor | None = None
    """The joint model, where a baseline is returned in its place."""
    out_of_fold: Figures | None = None
    """Figures on out-of-fold entries, of a search; they stand for those on validation entries."""
    calibrated: bool = False
    """Whether ``judged`` has its intervals already."""


@dataclass(frozen=True, kw_only=True)
class RunResult(TrainingRecord):
    """What ``metrics.json`` holds; every run has every key, ``None`` where it has nothing to say."""

    test: Figures | None
    valid: Figures | None
    """On validation entries; of a search, on out-of-fold entries."""
    coverage: list[dict[str, Any]] | None = None
    """Share of test entries, or of validation entries where there are none, inside 90 % intervals: of all, by steps to
    the nearest entry that was learnt from, and by entries of a label. ``None`` where it is not known."""
    baselines: dict[str, dict[str, Figures | None]]
    forecast: dict[str, Any] | None = None
    """Figures of forecasts of the test entries from rolling origins, with ``--split time:MODE,horizon=H,origins=K``."""
    seconds: float
    """Since the run began, earlier parts of a resumed run included."""
    steps: dict[str, float]
    """Seconds of every stage of the pipeline, in order."""
    device: str
    world_size: int
    entries_per_rank: list[int]
    seed: int
    split: dict[str, Any]
    shape: list[int]
    entries: dict[str, int]
    """How many there are: ``train``, ``valid``, ``test`` and ``all``."""
    communication: dict[str, float] | None
    """Bytes that the first of several processes has sent."""
    memory: dict[str, int | None] | None = None
    """Bytes that ``--memory`` allowed, and the most that were taken."""
    files: dict[str, str]
    """Checksums of the files that predictions depend on."""

    def to_dict(self) -> dict[str, Any]:
        """The content of ``metrics.json``, figures first."""
        data = asdict(self)
        return {name: data.pop(name) for name in ("test", "valid", "coverage", "baselines")} | data


class Stages:
    """Seconds of the stages of a run: ``read``, ``split``, ``baselines``, ``train``, ``evaluate``, ``write``.

    Parameters
    ----------
    clock
        Seconds from any fixed moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seconds: dict[str, float] = {}
        self._open: tuple[str, float] | None = None

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """One stage."""
        begin = self.clock()
        self._open = name, begin
        try:
            yield
        finally:
            self._seconds[name], self._open = self.clock() - begin, None

    def seconds(self) -> dict[str, float]:
        """Seconds of all stages so far; of the one that is under way, until now."""
        now = {} if self._open is None else {self._open[0]: self.clock() - self._open[1]}
        return self._seconds | now
