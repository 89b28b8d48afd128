"""Intervals: how far values lie from predictions, learnt from entries that did not train what predicted them.

    interval = prediction + scale(entry) · [lower, upper quantile of residual / scale]

``scale`` is learnt from the sizes of the residuals: additive in the labels and in the predicted value, on a logarithmic
scale, so that noisy labels and large values get wide intervals. The quantiles are those of entries whose predicted
values are alike. Whatever the scale, the share of entries inside is right on average (split conformal
prediction) for entries that are missing at random.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.baselines.tables import Tables, fit_bias
from jointensor.data.sparse import SparseTensor

BINS = 20
"""Most groups of predicted values."""

LEAST = 200
"""Entries that a group needs."""

GRID = 401
"""Quantiles that are kept of each group."""

MOST = 400_000
"""Residuals that are looked at; more would only take longer."""

TINY = 1e-3
"""Smallest size of a residual, as a share of the usual one: the logarithm of zero says nothing."""

COLD = 1.5
"""How much wider intervals of unseen labels are, where too few such entries were left out to say."""


@dataclass(frozen=True)
class Calibration:
    """Scale and quantiles of residuals."""

    edges: NDArray[np.float64]
    """Boundaries of the groups of predicted values, ``(groups − 1,)``."""
    scale: Tables | None
    """Logarithm of the size of residuals by label and group; ``None``: all alike."""
    quantiles: NDArray[np.float64]
    """Of residual / scale, evenly spaced from 0 to 1, ``(groups + 1, GRID)``; the last row is for unseen labels."""
    shape: tuple[int, ...]

    def interval(
        self, indices: NDArray[np.integer], centre: NDArray[np.floating], level: float, unseen: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Lower and upper ends, ``(entries, 2)``."""
        group = np.searchsorted(self.edges, centre)
        size = np.ones(len(centre)) if self.scale is None else np.exp(self._log_scale(indices, group))
        row = np.where(unseen, len(self.quantiles) - 1, group)
        tail = (1 - level) / 2
        ends = np.empty((len(centre), 2))
        for k in np.unique(row):
            here = row == k
            for side, at in enumerate((tail, 1 - tail)):
                q = np.interp(at, np.linspace(0, 1, GRID), self.quantiles[k])
                ends[here, side] = centre[here] + size[here] * q
        return ends

    def _log_scale(self, indices: NDArray[np.integer], group: NDArray[np.integer]) -> NDArray[np.float64]:
        assert self.scale is not None  # asked for by those who have one
        return self.scale.predict(np.column_stack([indices, group]))


def calibrate(
    indices: NDArray[np.integer],
    predicted: NDArray[np.floating],
    residuals: NDArray[np.floating],
    unseen: NDArray[np.bool_],
    shape: tuple[int, ...],
    seed: int = 0,
) -> Calibration:
    """Learn scale and quantiles from entries that were left out.

    Parameters
    ----------
    indices, predicted, residuals
        Entries, what was predicted for them by models that did not see them, and by how much that is wrong.
    unseen
        Which of them had a label that those models never saw.
    shape
        Size of every mode.
    seed
        Of the halves: where the scale is learnt on one, quantiles come from the other.
    """
    order = np.random.default_rng([seed, 7]).permutation(len(residuals))[:MOST]
    indices, predicted, residuals, unseen = indices[order], predicted[order], residuals[order], unseen[order]
    groups = max(1, min(BINS, len(residuals) // LEAST))
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, groups + 1)[1:-1])) if groups > 1 else np.zeros(0)
    group = np.searchsorted(edges, predicted)
    halves = np.arange(len(residuals)) % 2 == 0
    logs = _log_sizes(residuals)
    scaled = np.empty(len(residuals))
    for half in (halves, ~halves):
        there = _fit_scale(indices[~half], group[~half], logs[~half], shape, len(edges) + 1, seed)
        size = np.exp(there.predict(np.column_stack([indices[half], group[half]])))
        scaled[half] = residuals[half] / size
    scale = _fit_scale(indices, group, logs, shape, len(edges) + 1, seed)
    if _mean_width(scaled, group) >= _mean_width_plain(residuals, scaled, group):
        scale, scaled = None, residuals  # type: ignore[assignment]
    return Calibration(edges, scale, _quantiles(scaled, group, unseen, len(edges) + 1), tuple(shape))


def _log_sizes(residuals: NDArray[np.floating]) -> NDArray[np.float64]:
    size = np.abs(residuals).astype(np.float64)
    return np.log(np.maximum(size, TINY * max(float(np.median(size)), 1e-12)))


def _fit_scale(
    indices: NDArray[np.integer],
    group: NDArray[np.integer],
    logs: NDArray[np.float64],
    shape: tuple[int, ...],
    groups: int,
    seed: int,
) -> Tables:
    """Additive biases of log sizes, by label and by group of predicted values."""
    sizes = [*shape, groups]
    table = SparseTensor(np.column_stack([indices, group]), logs.astype(np.float32), sizes)
    order = np.random.default_rng([seed, 8]).permutation(len(logs))
    held = len(logs) // 5
    return fit_bias(table.take(order[held:]), table.take(order[:held]))


def _mean_width(scaled: NDArray[np.floating], group: NDArray[np.integer]) -> float:
    """How far apart the quantiles are, in units of the scale's mean size; see :func:`_mean_width_plain`."""
    widths = [np.quantile(scaled[group == k], 0.95) - np.quantile(scaled[group == k], 0.05) for k in np.unique(group)]
    return float(np.mean(widths))


def _mean_width_plain(
    residuals: NDArray[np.floating], scaled: NDArray[np.floating], group: NDArray[np.integer]
) -> float:
    """The same width without a scale, per mean size of it."""
    size = np.divide(residuals, scaled, out=np.ones_like(scaled), where=scaled != 0)
    widths = [
        (np.quantile(residuals[group == k], 0.95) - np.quantile(residuals[group == k], 0.05))
        / max(float(np.mean(size[group == k])), 1e-30)
        for k in np.unique(group)
    ]
    return float(np.mean(widths))


def _quantiles(
    scaled: NDArray[np.floating], group: NDArray[np.integer], unseen: NDArray[np.bool_], groups: int
) -> NDArray[np.float64]:
    at = np.linspace(0, 1, GRID)

    def spaced(some: NDArray[np.floating]) -> NDArray[np.float64]:
        # the method that counts one more entry than there is: a new one may lie outside of all others
        return np.asarray(np.quantile(some, at, method="weibull"))

    seen = ~unseen if (~unseen).any() else np.ones_like(unseen)
    overall = spaced(scaled[seen])
    mine = [scaled[seen & (group == k)] for k in range(groups)]
    rows = [spaced(one) if len(one) >= 2 else overall for one in mine]
    cold = spaced(scaled[unseen]) if unseen.sum() >= LEAST else overall * COLD
    wider = np.where(at < 0.5, np.minimum(cold, overall), np.maximum(cold, overall))  # never narrower than the others
    return np.stack([*rows, wider])
