"""The entries of a tensor as series: one column per combination of the other labels, one row per step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import ConfigError, DataError
from jointensor.forecasting.timeline import Timeline
from jointensor.predictors.base import MAX_CELLS

MAX_PANEL_CELLS = 1 << 24
"""Steps times series: dense arrays of this size are held, 128 MB each, about thirty. Of more cells the last steps are
taken."""

MIN_PANEL_STEPS = 8
"""That must be left then."""


@dataclass(frozen=True)
class Panel:
    """Values of all series at all steps."""

    values: NDArray[np.float64]
    """``(steps, series)``; NaN where nothing was observed. The last step has at least one entry."""
    first: int
    """Step of the timeline that the first row is."""
    series: NDArray[np.int64]
    """Labels of every series in the other modes, ``(series, modes - those of the timeline)``."""
    others: tuple[int, ...]
    """The other modes."""
    timeline: Timeline
    shape: tuple[int, ...]
    """Of the tensor."""

    @classmethod
    def of(cls, tensor: SparseTensor, timeline: Timeline) -> Panel:
        """The series of a tensor; entries at the same step are averaged."""
        if not len(tensor):
            raise DataError("there are no entries to forecast from")
        others = tuple(n for n in range(tensor.n_modes) if n not in timeline.modes)
        shape = [tensor.shape[n] for n in others]
        if math.prod(shape) >= MAX_CELLS:
            raise ConfigError("the series of so large a tensor cannot be numbered; leave out a mode")
        columns = tensor.indices[:, others]
        keys = cell_keys(columns, shape) if others else np.zeros(len(tensor), dtype=np.int64)
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        steps = timeline.steps_of(tensor.indices)
        size, count = int(steps.max()) + 1, len(first)
        length = min(size, MAX_PANEL_CELLS // count)
        if length < min(size, MIN_PANEL_STEPS):
            raise ConfigError(
                f"{count:,} series along {timeline.name} are too many to forecast: {MAX_PANEL_CELLS:,} cells hold "
                f"{length} steps of each; forecast along other modes, or sum over one"
            )
        recent = steps >= size - length
        cells = (steps[recent] - (size - length)) * count + place.reshape(-1)[recent]
        sums = np.bincount(cells, tensor.values[recent], length * count)
        with np.errstate(invalid="ignore"):
            values = sums / np.bincount(cells, minlength=length * count)
        series = columns[first].astype(np.int64)
        return cls(values.reshape(length, count), size - length, series, others, timeline, tensor.shape)

    @property
    def steps(self) -> int:
        """Rows of the values: the origin of a forecast from all of them."""
        return len(self.values)

    @property
    def end(self) -> int:
        """The first step of the timeline after all entries."""
        return self.first + len(self.values)

    def find(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Series of entries, ``(entries, modes)`` → ``(entries,)``; -1 where no entry has such labels."""
        shape = [self.shape[n] for n in self.others]
        columns = np.asarray(indices)[:, self.others]
        if not self.others:
            return np.zeros(len(columns), dtype=np.int64)
        known = np.all((columns >= 0) & (columns < np.array(shape)), axis=1)
        keys = cell_keys(self.series, shape)  # ascending
        asked = cell_keys(np.where(known[:, None], columns, 0), shape)
        place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return np.where(known & (keys[place] == asked), place, -1)
