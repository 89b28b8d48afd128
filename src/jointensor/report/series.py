"""A few series of a tensor that has time: what was seen of them, and what is filled in.

A series is all cells that agree in every mode but those of time. Shown are those with the most gaps among the well
observed ones, a typical one, and the one with the largest error; of a long one a stretch with both gaps and values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.axes import Axis, axes_of, time_unit
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.fibers import inside
from jointensor.predictors.joint import JointPredictor
from jointensor.report.plots import cut
from jointensor.report.settings import SETTINGS

Facts = dict[str, Any]
Entries = tuple[NDArray[np.integer], NDArray[Any]]

GAPS, TYPICAL, WORST = "many gaps", "typical", "largest error"
"""Why a series is shown."""


def series_facts(
    predictor: JointPredictor | Ensemble,
    tensor: SparseTensor,
    judged: JointPredictor | Ensemble,
    held_out: Entries,
) -> Facts | None:
    """Some series with their gaps filled in; ``None`` where the tensor has no time, or too few values along it.

    Parameters
    ----------
    predictor
        Fills in the gaps.
    tensor
        All observed entries.
    judged
        The model that was evaluated.
    held_out
        Entries that it was not trained on.
    """
    modes = time_axis(tensor.modes)
    if modes is None or not len(tensor):
        return None
    series = _Series.of(tensor, modes, judged, held_out)
    chosen = series.chosen()
    return {
        "axis": [tensor.modes[n].name for n in modes],
        "size": series.axis.size,
        "intervals": predictor.calibration is not None,
        "series": [_facts_of(series, row, predictor) | {"why": why} for row, why in chosen.items()],
    } if chosen else None  # fmt: skip


def time_axis(modes: Sequence[Mode]) -> tuple[int, ...] | None:
    """The longest axis along which time goes on: a date and a time of the day, or an ordered mode of time."""
    axes = axes_of(modes)
    found = [axis for axis in axes if len(axis) > 1] or [
        (n,) for n, *_ in axes if modes[n].order == "ordered" and time_unit(modes[n]) is not None
    ]
    return max(found, key=lambda axis: math.prod(modes[n].size for n in axis), default=None)


@dataclass(frozen=True)
class _Series:
    """Entries by series and by place in time."""

    tensor: SparseTensor
    axis: Axis
    fibers: NDArray[np.int64]
    """Numbers of the series that have entries, ascending, ``(series,)``."""
    counts: NDArray[np.int64]
    """Entries of each."""
    keys: NDArray[np.int64]
    """Series and place of every entry, ``(entries,)``."""
    held_keys: NDArray[np.int64]
    """The same of those that were held out."""
    predicted: NDArray[np.float64]
    """Predictions of these."""
    errors: NDArray[np.float64]
    """RMSE of those of every series; NaN where they are too few."""

    @classmethod
    def of(
        cls, tensor: SparseTensor, modes: tuple[int, ...], judged: JointPredictor | Ensemble, held_out: Entries
    ) -> _Series:
        axis = Axis.of(tensor.modes, modes)
        keys = axis.keys(tensor.indices)
        fibers, counts = np.unique(keys // axis.size, return_counts=True)
        known = np.flatnonzero(inside(held_out[0], tensor.shape))
        known = known[:: 1 + len(known) // SETTINGS.max_error_entries]
        indices, truth = held_out[0][known], np.asarray(held_out[1], dtype=np.float64)[known]
        held_keys, predicted = axis.keys(indices), judged.predict(indices).astype(np.float64)
        row = np.minimum(np.searchsorted(fibers, held_keys // axis.size), len(fibers) - 1)
        own = fibers[row] == held_keys // axis.size  # a test file may have series of its own
        number = np.bincount(row[own], minlength=len(fibers))
        squares = np.bincount(row[own], (predicted - truth)[own] ** 2, minlength=len(fibers))
        errors = np.sqrt(squares / np.where(number >= SETTINGS.min_label_entries, number, np.nan))
        return cls(tensor, axis, fibers, counts, keys, held_keys, predicted, errors)

    def chosen(self) -> dict[int, str]:
        """The series to show, as rows of ``fibers``, and why."""
        least = max(SETTINGS.min_series_entries, SETTINGS.min_series_share * self.axis.size)
        enough = np.flatnonzero(self.counts >= least)
        if not len(enough):
            return {}
        by_count = enough[np.argsort(self.counts[enough], kind="stable")]
        well = by_count[self.counts[by_count] >= SETTINGS.well_observed_share * self.counts[by_count[-1]]]
        gappy = well[self.counts[well] < self.axis.size][: SETTINGS.gappy_series]
        known = enough[np.isfinite(self.errors[enough])]
        known = known[np.argsort(self.errors[known], kind="stable")]
        order = known if len(known) else by_count
        found = [(row, GAPS) for row in gappy] + [(order[len(order) // 2], TYPICAL)]
        found += [(known[-1], WORST)] if len(known) else []
        reasons: dict[int, list[str]] = {}
        for row, why in found:
            reasons.setdefault(int(row), []).append(why)
        return {row: ", ".join(why) for row, why in reasons.items()}

    def values_of(self, row: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values that were seen, NaN elsewhere, and predictions of those held out, NaN elsewhere; ``(places,)``."""
        values, held = np.full(self.axis.size, np.nan), np.full(self.axis.size, np.nan)
        mine = self.keys // self.axis.size == self.fibers[row]
        values[self.keys[mine] % self.axis.size] = self.tensor.values[mine]
        mine = self.held_keys // self.axis.size == self.fibers[row]
        held[self.held_keys[mine] % self.axis.size] = self.predicted[mine]
        return values, np.where(np.isnan(values), np.nan, held)

    def cells(self, row: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of some places in time of a series, ``(places, modes)``."""
        mine = int(np.argmax(self.keys // self.axis.size == self.fibers[row]))
        cells = np.repeat(self.tensor.indices[mine : mine + 1].astype(np.int64), len(places), axis=0)
        for n, ranks in zip(reversed(self.axis.modes), reversed(self.axis.ranks), strict=True):
            cells[:, n] = np.argsort(ranks)[places % len(ranks)]
            places = places // len(ranks)
        return cells


def _facts_of(series: _Series, row: int, predictor: JointPredictor | Ensemble) -> Facts:
    """One series, as it is drawn."""
    values, predicted = series.values_of(row)
    held = ~np.isnan(predicted)
    begin, end = _stretch(np.isnan(values) | held)
    places = np.arange(begin, end)
    gaps = places[np.isnan(values[begin:end])]
    cells = series.cells(row, gaps)
    filled = np.full((len(gaps), 3), np.nan)
    if len(gaps):
        filled[:, 0] = predictor.predict(cells)
        if predictor.calibration is not None:
            filled[:, 1:] = predictor.interval(cells, SETTINGS.cell_level)
    at, modes = series.axis.coordinates, series.tensor.modes
    labels = series.cells(row, places[[0, len(places) // 2, -1]])
    seen = places[~np.isnan(values[begin:end]) & ~held[begin:end]]
    return {
        "labels": [
            [mode.name, mode.label(int(labels[0, n]))] for n, mode in enumerate(modes) if n not in series.axis.modes
        ],
        "entries": int(series.counts[row]),
        "rmse": float(series.errors[row]) if np.isfinite(series.errors[row]) else None,
        "seen": [[float(at[p]), float(values[p])] for p in seen],
        "held": [[float(at[p]), float(values[p]), float(predicted[p])] for p in places[held[begin:end]]],
        "filled": [
            [
                [float(at[p]), float(value), *([float(low), float(high)] if math.isfinite(low) else [])]
                for p, (value, low, high) in zip(gaps[a:b], filled[a:b], strict=True)
            ]
            for a, b in pairwise([0, *np.flatnonzero(np.diff(gaps) > 1) + 1, len(gaps)])
            if b > a
        ],
        "ticks": [
            [
                float(at[p]),
                cut(" ".join(modes[n].label(int(cell[n])) for n in series.axis.modes), SETTINGS.max_axis_label),
            ]
            for p, cell in zip(places[[0, len(places) // 2, -1]], labels, strict=True)
        ],
    }


def _stretch(asked: NDArray[np.bool_]) -> tuple[int, int]:
    """Begin and end of a stretch of a series with as many places as possible of both kinds, asked for and others."""
    length = min(len(asked), SETTINGS.max_series_points)
    total = np.concatenate([[0], np.cumsum(asked)])
    inside_ = total[length:] - total[:-length]
    begin = int(np.argmax(np.minimum(inside_, length - inside_)))
    return begin, begin + length
