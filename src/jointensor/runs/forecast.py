"""Forecasts of a finished run: labels after the last one, learnt from the entries of its source.

A forecaster is fitted when it is asked for, to all entries of the source: what is asked for lies after every one of
them. The fitted model of the run is not needed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import write_json
from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.forecasting import Forecaster, Panel, Timeline, choose_modes, figures_of_rolling, fit_forecaster
from jointensor.forecasting.forecaster import simple_names
from jointensor.forecasting.rows import Rows, check_count
from jointensor.runs.folder import Run
from jointensor.runs.future import declared_modes, entries_of
from jointensor.runs.predict import check_name, write_tables

if TYPE_CHECKING:
    import polars as pl

Note = Callable[[str], None]


@dataclass(frozen=True)
class Forecast:
    """Forecasts of every series at the next labels."""

    panel: Panel
    forecaster: Forecaster
    rows: Rows
    """Labels in their order, all series of each."""
    members: dict[str, NDArray[np.float64]]
    """``forecast`` and its members, ``(rows,)`` each."""
    interval: NDArray[np.float64] | None
    """Lower and upper ends, ``(rows, 2)``."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """Steps of the timeline that are forecast, ``(rows,)``."""
        return self.rows.targets + self.panel.first

    def frame(self, modes: Sequence[Mode]) -> pl.DataFrame:
        """One row per label and series: labels, forecast, ends of the interval, and the simple forecasts."""
        import polars as pl  # noqa: PLC0415 - only for tables

        timeline, columns = self.panel.timeline, {}
        steps, place = np.unique(self.steps, return_inverse=True)
        texts = [timeline.labels_at(int(step)) for step in steps]
        for n, mode in enumerate(modes):
            if n in timeline.modes:
                own = pl.Series([text[timeline.modes.index(n)] for text in texts], dtype=pl.String)
                columns[mode.name] = own.gather(place)
            else:
                at = self.panel.series[:, self.panel.others.index(n)]
                own = pl.Series([mode.label(int(label)) for label in at], dtype=pl.String)
                columns[mode.name] = own.gather(self.rows.series)
            if mode.labels is None:
                columns[mode.name] = columns[mode.name].cast(pl.Int64)
        columns["forecast"] = pl.Series(self.members["forecast"])
        if self.interval is not None:
            columns |= {"lower": pl.Series(self.interval[:, 0]), "upper": pl.Series(self.interval[:, 1])}
        columns |= {name: pl.Series(self.members[name]) for name in simple_names(self.members)}
        return pl.DataFrame(columns)


def forecast(
    tensor: SparseTensor, horizon: int, by: str | None = None, interval: float | None = None, *,
    declared: Sequence[str] = (), seed: int = 0,
) -> Forecast:  # fmt: skip
    """Forecast the next labels of every series of a tensor.

    Parameters
    ----------
    tensor
        All entries that are known.
    horizon
        Labels after the last one that has an entry.
    by
        Ordered mode, or a calendar mode and a clock mode with ``+`` between; found if not given.
    interval
        Share of the values that intervals hold; none if not given.
    declared
        Modes that were said to be ordered.
    seed
        Of the rows that trees are grown from.
    """
    check_horizon(horizon)
    check_level(interval)
    panel = Panel.of(tensor, Timeline.of(tensor.modes, choose_modes(tensor.modes, by, declared)))
    check_count(horizon, len(panel.series))
    ahead = panel.timeline.following(panel.end, horizon) - panel.end + 1
    forecaster = fit_forecaster(panel, int(ahead.max()), seed=seed)
    count = panel.values.shape[1]
    rows = Rows(np.full(horizon * count, panel.steps), np.repeat(ahead, count), np.tile(np.arange(count), horizon))
    members = forecaster.members(panel.values, panel.series, rows)
    ends = None if interval is None else forecaster.interval(panel.values, members["forecast"], rows, interval)
    return Forecast(panel, forecaster, rows, members, ends)


def check_horizon(horizon: int) -> None:
    """Refuse a horizon without labels."""
    if horizon < 1:
        raise ConfigError(f"the horizon is {horizon}; give the number of labels to forecast, 1 or more")


def check_level(interval: float | None) -> None:
    """Refuse a share that is none."""
    if interval is not None and not 0 < interval < 1:
        raise ConfigError(f"the interval is {interval:g}; give a share between 0 and 1, such as 0.9")


def forecast_file(
    run: Run, out: Path, horizon: int, by: str | None = None, interval: float | None = None, *,
    safe_csv: bool = False, on_note: Note = lambda _: None,
) -> int:  # fmt: skip
    """Write the forecasts of a run as a table; returns its number of rows."""
    check_name(out, safe_csv=safe_csv)
    check_horizon(horizon)
    check_level(interval)
    tensor, config = entries_of(run)
    found = forecast(tensor, horizon, by, interval, declared=declared_modes(config), seed=config.seed)
    for note in _notes(found):
        on_note(note)
    write_tables([found.frame(tensor.modes)], out, safe_csv=safe_csv)
    return len(found.rows.series)


def evaluate_forecasts(
    run: Run, horizon: int, origins: int, by: str | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Figures of forecasts of the last labels of a run's source, from rolling origins."""
    tensor, config = entries_of(run)
    figures = figures_of_rolling(tensor, horizon, origins, by, declared=declared_modes(config), seed=config.seed)
    if out is not None:
        write_json(out, figures)
    return figures


def _notes(found: Forecast) -> list[str]:
    timeline, forecaster = found.panel.timeline, found.forecaster
    first, last = (" ".join(timeline.labels_at(int(step))) for step in found.steps[[0, -1]])
    seasons = " and ".join(map(str, forecaster.models.seasons)) or "none"
    validated = forecaster.validated
    best = min(simple_names(validated), key=lambda name: validated[name])
    return [
        f"{len(found.panel.series):,} series along {timeline.name}, {first} to {last}; seasons in steps: {seasons}",
        f"on rolling origins in the past: RMSE {validated['forecast']:.4g}; the best simple forecast, {best}: "
        f"{validated[best]:.4g}",
    ]
