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

MAX_PANEL_CELLS = 1 << 25
"""Steps times series: several dense arrays of this size are held, 256 MB each."""


@dataclass(frozen=True)
class Panel:
    """Values of all series at all steps."""

    values: NDArray[np.float64]
    """``(steps, series)``; NaN where nothing was observed. The last step has at least one entry."""
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
        if size * count > MAX_PANEL_CELLS:
            raise ConfigError(
                f"{count:,} series of {size:,} steps along {timeline.name} are more than {MAX_PANEL_CELLS:,} cells; "
                "forecast along a coarser mode, or sum over one"
            )
        cells = steps * count + place.reshape(-1)
        with np.errstate(invalid="ignore"):
            values = np.bincount(cells, tensor.values, size * count) / np.bincount(cells, minlength=size * count)
        return cls(values.reshape(size, count), columns[first].astype(np.int64), others, timeline, tensor.shape)

    @property
    def steps(self) -> int:
        """Steps up to the last one with an entry."""
        return len(self.values)

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
