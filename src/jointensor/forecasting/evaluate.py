"""Evaluation by rolling origins: the last labels are forecast a few at a time, with everything before each known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.forecasting.forecaster import Forecaster, fit_forecaster
from jointensor.forecasting.panel import Panel
from jointensor.forecasting.rows import Rows, check_count
from jointensor.forecasting.timeline import Timeline, choose_modes
from jointensor.metrics import measure

LEVEL = 0.9
"""Share of the values that the intervals are to hold whose coverage is recorded."""


@dataclass(frozen=True)
class Rolled:
    """Forecasts from rolling origins."""

    panel: Panel
    forecaster: Forecaster
    rows: Rows
    observed: NDArray[np.float64]
    """``(rows,)``."""
    members: dict[str, NDArray[np.float64]]
    """Of ``forecast`` and all members, ``(rows,)`` each."""

    def figures(self) -> dict[str, Any]:
        """RMSE, MAE and RFE of the forecast and of every member; the forecast by steps ahead; coverage of intervals."""
        predicted = self.members["forecast"]
        ends = self.forecaster.interval(self.panel.values, predicted, self.rows, LEVEL)
        inside = (self.observed >= ends[:, 0]) & (self.observed <= ends[:, 1])
        by_step = {}
        for ahead in np.unique(self.rows.ahead):
            here = self.rows.ahead == ahead
            one = measure(predicted[here], self.observed[here]).to_dict()
            one |= {"inside": float(inside[here].mean()), "width": float(np.mean(ends[here, 1] - ends[here, 0]))}
            by_step[str(ahead)] = one
        every = {name: measure(one, self.observed).to_dict() for name, one in self.members.items()}
        return {
            "test": every.pop("forecast"),
            "members": every,
            "by_step": by_step,
            "interval": {"level": LEVEL, "inside": float(inside.mean())},
            "validated": self.forecaster.validated,
            "seasons": list(self.forecaster.models.seasons),
            "weights": self.forecaster.weights_by_step(),
        }


def figures_of_rolling(
    tensor: SparseTensor, horizon: int, origins: int, by: str | None = None, *, declared: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """What was forecast of a tensor, and the figures of it; see :func:`roll`."""
    panel = Panel.of(tensor, Timeline.of(tensor.modes, choose_modes(tensor.modes, by, declared)))
    asked = {"by": panel.timeline.name, "horizon": horizon, "origins": origins}
    return asked | roll(panel, horizon, origins, seed=seed).figures()


def roll(panel: Panel, horizon: int, origins: int, *, seed: int = 0) -> Rolled:
    """Forecast the last ``horizon · origins`` labels, a horizon at a time.

    Everything is fitted and chosen once, before the first origin. The values after it are known from the next origin
    on, but change no number of the models.
    """
    labels = np.flatnonzero(np.isfinite(panel.values).any(axis=1))  # steps with entries
    if horizon < 1 or origins < 1:
        raise ConfigError(f"horizon {horizon} and origins {origins}: both must be 1 or more")
    if horizon * origins >= len(labels):
        raise ConfigError(
            f"{origins} origins of horizon {horizon} test {horizon * origins} labels, and {panel.timeline.name} has "
            f"{len(labels)} with entries; give fewer"
        )
    check_count(horizon * origins, panel.values.shape[1])
    blocks = labels[-horizon * origins :].reshape(origins, horizon)
    ahead = blocks - blocks[:, :1] + 1  # (origins, horizon), in steps
    forecaster = fit_forecaster(panel, int(ahead.max()), seed=seed, end=int(blocks[0, 0]))
    series = panel.values.shape[1]
    starts, ends = np.repeat(blocks[:, 0], horizon), ahead.ravel()
    rows = Rows(np.repeat(starts, series), np.repeat(ends, series), np.tile(np.arange(series), blocks.size))
    rows = rows.take(np.isfinite(panel.values[rows.targets, rows.series]))
    members = forecaster.members(panel.values, panel.series, rows)
    return Rolled(panel, forecaster, rows, panel.values[rows.targets, rows.series], members)
