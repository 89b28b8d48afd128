"""Queries that lie after the last label of an ordered mode are answered by a forecast.

Next Monday is no unseen label like a new user: dates and numbers that continue an ordered mode say when they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import sha256
from jointensor.data.modes import UNSEEN, Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError, RunError
from jointensor.forecasting import Forecaster, Panel, Timeline, fit_forecaster, time_modes
from jointensor.forecasting.rows import Rows
from jointensor.runs.config import RunConfig
from jointensor.runs.dataset import read_source
from jointensor.runs.folder import Run

Kept = TypeVar("Kept")

MAX_LABELS_AHEAD = 10_000
"""Labels after the last one that queries may have; as many as there are before it, at most. What is farther is an
unseen label."""


def entries_of(run: Run) -> tuple[SparseTensor, RunConfig]:
    """All entries of the source of a run, and its options."""
    stored = dict(run.config)
    expected = stored.pop("source_sha256", None)
    config = RunConfig.from_dict(stored)
    source = Path(config.source)
    if not source.is_file() or sha256(source) != expected:
        raise RunError(
            f"{source} is gone or has changed since {run.path} was fitted, and forecasts are learnt from its entries; "
            "put it back, or fit again"
        )
    return read_source(config.source, config.table, config.orders).tensor, config


def declared_modes(config: RunConfig) -> list[str]:
    """Modes that were said to be ordered."""
    return [name for name, order in config.orders.items() if order == "ordered"]


@dataclass
class Future:
    """The labels after the last ones of a run's modes, and forecasts at them."""

    run: Run
    modes: tuple[Mode, ...]
    """Those of the run, with later labels at their ends."""
    timelines: dict[int, Timeline]
    """Of the modes that can be continued."""
    on_note: Callable[[str], None] = lambda _: None
    answered: int = 0
    """Queries that were answered by a forecast."""
    _entries: SparseTensor | None = None
    _panels: dict[tuple[int, ...], Panel | None] = field(default_factory=dict)
    _forecasters: dict[tuple[int, ...], Forecaster | None] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, on_note: Callable[[str], None] = lambda _: None) -> Future:
        """Labels that queries of a run may have."""
        modes, timelines = list(run.modes), {}
        orders = run.config.get("orders", {})
        for n in time_modes(run.modes, [name for name, order in orders.items() if order == "ordered"]):
            try:
                timelines[n] = Timeline.of(run.modes, (n,))
            except ConfigError:  # labels that cannot be continued
                continue
            modes[n] = _continued(run.modes[n], timelines[n])
        return cls(run, tuple(modes), timelines, on_note)

    def known(self, indices: NDArray[np.integer]) -> NDArray[np.integer]:
        """Indices with -1 for labels that the run does not have."""
        beyond = indices >= np.array([mode.size for mode in self.run.modes])
        return np.where(beyond, UNSEEN, indices) if beyond.any() else indices

    def answer(
        self, indices: NDArray[np.integer], predicted: NDArray[np.floating], ends: NDArray[np.floating] | None,
        level: float | None,
    ) -> NDArray[np.bool_]:  # fmt: skip
        """Put forecasts in the places of predictions (and of ends of intervals); returns which ones are forecasts."""
        sizes = np.array([mode.size for mode in self.run.modes])
        beyond = indices >= sizes  # (queries, modes)
        found = np.zeros(len(indices), dtype=np.bool_)
        if not beyond.any():
            return found
        for n in self.timelines:
            chosen = np.flatnonzero(beyond[:, n] & (beyond.sum(axis=1) == 1))
            panel = self._panel(n) if len(chosen) else None
            if panel is None:
                continue
            series = panel.find(indices[chosen])
            chosen, series = chosen[series >= 0], series[series >= 0]
            ahead = self._steps(n, indices[chosen, n]) - panel.end + 1
            reaches = _reaches(ahead)
            for reach in np.unique(reaches):
                some = reaches == reach
                forecaster, here = self._forecaster(n, int(reach)), chosen[some]
                if forecaster is None:
                    continue
                rows = Rows(np.full(len(here), panel.steps), ahead[some], series[some])
                values = forecaster.members(panel.values, panel.series, rows)["forecast"]
                predicted[here] = values
                if ends is not None and level is not None:
                    ends[here] = forecaster.interval(panel.values, values, rows, level)
                found[here] = True
        self.answered += int(found.sum())
        return found

    def _steps(self, n: int, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Steps of labels after the last one."""
        grid = self.timelines[n].grid
        return (positions - self.run.modes[n].size + int(grid.steps.max()) + 1).astype(np.int64)

    def _panel(self, n: int) -> Panel | None:
        """The series along a mode; nothing where the source is gone."""

        def read() -> Panel:
            self._entries = self._entries or entries_of(self.run)[0]
            return Panel.of(self._entries, self.timelines[n])

        return self._kept(self._panels, (n,), read)

    def _forecaster(self, n: int, reach: int) -> Forecaster | None:
        """The forecaster for so many steps ahead; nothing where none can be fitted."""
        seed = int(self.run.config.get("seed", 0))
        return self._kept(self._forecasters, (n, reach), lambda: fit_forecaster(self._panels[n,], reach, seed=seed))  # type: ignore[arg-type]

    def _kept(
        self, kept: dict[tuple[int, ...], Kept | None], key: tuple[int, ...], make: Callable[[], Kept]
    ) -> Kept | None:
        """What was made before, or is made now; nothing, and a note, where it cannot be."""
        if key not in kept:
            try:
                kept[key] = make()
            except (DataError, ConfigError, RunError) as error:
                kept[key] = None
                self.on_note(f"labels after the last one of '{self.run.modes[key[0]].name}' are not forecast: {error}")
        return kept[key]


def _reaches(ahead: NDArray[np.int64]) -> NDArray[np.int64]:
    """Powers of two that are not below the steps ahead. Each has a forecaster of its own, so that the answer to a query
    does not depend on the others.
    """
    return 1 << np.ceil(np.log2(ahead)).astype(np.int64)


def _continued(mode: Mode, timeline: Timeline) -> Mode:
    """A mode with the labels of the steps after its last one."""
    grid = timeline.grid
    last = int(grid.steps.max())
    count = min(last + 1, MAX_LABELS_AHEAD)
    if mode.labels is None:
        return replace(mode, size=mode.size + count)
    try:
        more = [grid.label(step) for step in range(last + 1, last + 1 + count)]
    except (ValueError, OverflowError):  # after the year 9999
        return mode
    return mode.with_more(more) if not set(more) & set(mode.labels) else mode
