"""Intervals: how far values lie from predictions, learnt from entries that did not train what predicted them.

    interval = prediction + scale(entry) · [lower, upper quantile of residual / scale]

``scale`` is learnt from the sizes of the residuals: additive in the labels and in the predicted value, on a logarithmic
scale, so that noisy labels and large values get wide intervals. The quantiles are those of entries whose predicted
values are alike. Whatever the scale, the share of entries inside is right on average (split conformal
prediction) for entries that are missing at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.predictors.tables import Tables, fit_bias

BINS = 20
"""Most groups of predicted values."""

LEAST = 200
"""Entries that a group needs."""

GRID = 401
"""Quantiles that are kept of each group."""

LEVELS = np.linspace(0.005, 0.995, 199)
"""Levels that are tried."""

MOST = 400_000
"""Residuals that are looked at; more would only take longer."""

TINY = 1e-3
"""Smallest size of a residual, as a share of the usual one: the logarithm of zero says nothing."""

MANY, TAIL = 1000, 0.05
"""Entries of a group that may be missed unevenly: few would suggest a shape by chance; and the share that has to be the
same."""

SPARE = 0.1
"""Share of what may be missed that is held nevertheless where a lower level is asked for: predictions that do not
repeat have to miss for those that do."""

ROUNDING = 1e-6
"""How far off a value may be that was put together again from prediction and residual."""

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
    below: NDArray[np.float64]
    """Share of what is missed that lies below the interval, ``(groups + 1,)``: where values are skewed, or many are the
    smallest one, not a half."""
    held: NDArray[np.float64]
    """Share of the entries inside intervals of every one of ``LEVELS``; more than that level where values repeat."""

    def interval(
        self, indices: NDArray[np.integer], centre: NDArray[np.floating], level: float, unseen: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Lower and upper ends, ``(entries, 2)``."""
        group = np.searchsorted(self.edges, centre)
        size = np.ones(len(centre)) if self.scale is None else _sizes(self.scale, indices, group)
        row = np.where(unseen, len(self.quantiles) - 1, group)
        enough = self._enough(level)
        ends = np.empty((len(centre), 2))
        for k in np.unique(row):
            here = row == k
            between = _ends(self.quantiles[k], self.below[k], level if k == len(self.quantiles) - 1 else enough)
            ends[here] = centre[here, None] + size[here, None] * np.array(between)
        return ends

    def _enough(self, level: float) -> float:
        """The level to ask for: where many values are the same, a lower one holds enough already, and a little more."""
        at = int(np.searchsorted(np.maximum.accumulate(self.held), level + SPARE * (1 - level)))
        return min(level, LEVELS[at]) if at < len(LEVELS) else level


def _ends(quantiles: NDArray[np.float64], below: float, level: float) -> tuple[float, float]:
    """Two values with a share ``level`` between them."""
    low = (1 - level) * below
    first, last = np.interp([low, low + level], np.linspace(0, 1, GRID), quantiles)
    return float(first), float(last)


class HeldOut(NamedTuple):
    """Entries that did not train what predicted them."""

    indices: NDArray[np.integer]
    predicted: NDArray[np.floating]
    residuals: NDArray[np.floating]
    """Values minus predictions."""
    unseen: NDArray[np.bool_]
    """Whether a label was new to what predicted them."""

    def some(self, most: int, seed: int) -> HeldOut:
        """A random part."""
        return self.at(np.random.default_rng([seed, 7]).permutation(len(self.residuals))[:most])

    def at(self, places: NDArray[Any]) -> HeldOut:
        """Those at some places."""
        return HeldOut(self.indices[places], self.predicted[places], self.residuals[places], self.unseen[places])


def calibrate(
    left_out: HeldOut,
    shape: tuple[int, ...],
    fresh: HeldOut | None = None,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Calibration:
    """Learn scale and quantiles from entries that were left out.

    Parameters
    ----------
    left_out
        Entries predicted by models that did not see them.
    shape
        Size of every mode.
    fresh
        Entries that nothing at all was learnt from, predicted by the model that will answer: where there are some,
        quantiles are theirs. Without them, the scale is learnt on one half of the entries and quantiles on the other,
        and the other way round.
    seed
        Of the halves.
    bounds
        Between which intervals will be cut: one that would lie below the smallest value holds it then.
    """
    left_out = left_out.some(MOST, seed)
    base = left_out if fresh is None else fresh
    groups = max(1, min(BINS, len(base.residuals) // LEAST))
    edges = np.unique(np.quantile(base.predicted, np.linspace(0, 1, groups + 1)[1:-1])) if groups > 1 else np.zeros(0)
    scale = _fit_scale(left_out, edges, shape, seed)
    group = np.searchsorted(edges, base.predicted)
    if fresh is None:
        size = np.empty(len(group))
        halves = np.arange(len(group)) % 2 == 0
        for half in (halves, ~halves):
            other = _fit_scale(left_out.at(~half), edges, shape, seed)
            size[half] = _sizes(other, left_out.indices[half], group[half])
    else:
        size = _sizes(scale, fresh.indices, group)
    pays = _mean_width(base.residuals / size, group, size) < _mean_width(base.residuals, group, np.ones_like(size))
    scaled = base.residuals / size if pays else base.residuals
    quantiles = _quantiles(scaled, group, base.unseen, len(edges) + 1)
    parts = [*(group == k for k in range(len(edges) + 1)), base.unseen]
    # answers of folds are not quite those of what answers; fresh entries are asked of it itself
    ties = bounds if fresh is None else (-math.inf, math.inf)
    below = np.array([_below(row, base.at(here), ties) for row, here in zip(quantiles, parts, strict=True)])
    # answers of other models, those of the folds, need not repeat where the answers of this one do
    held = LEVELS.copy()
    if fresh is not None:
        held = _held(fresh, size if pays else np.ones_like(size), group, (quantiles, below), bounds)
    return Calibration(edges, scale if pays else None, quantiles, tuple(shape), below, held)


def _held(
    fresh: HeldOut,
    size: NDArray[np.float64],
    group: NDArray[np.integer],
    learnt: tuple[NDArray[np.float64], NDArray[np.float64]],
    bounds: tuple[float, float],
) -> NDArray[np.float64]:
    """Share of the entries inside, by level; of groups one entry larger than they are, as their quantiles are."""
    held, values = np.zeros(len(LEVELS)), fresh.predicted + fresh.residuals
    for k in np.unique(group):
        here = group == k
        centre, wide, truth = fresh.predicted[here], size[here], values[here]
        near = ROUNDING * (1 + np.abs(truth))
        for at, level in enumerate(LEVELS):
            low, high = (np.clip(centre + wide * end, *bounds) for end in _ends(learnt[0][k], learnt[1][k], level))
            inside = np.count_nonzero((truth >= low - near) & (truth <= high + near))
            held[at] += inside / (len(truth) + 1) * len(truth)
    return held / max(len(values), 1)


def _below(quantiles: NDArray[np.float64], entries: HeldOut, bounds: tuple[float, float]) -> float:
    """Share of what is missed that lies below: half, or nothing where the smallest residual is a whole tail of them.

    Nothing, too, where as many values are the smallest there is, one of ``bounds``: intervals are cut there, and hold
    them at no cost. An end among them would miss more or fewer of them with the slightest change of what answers.

    Shares that make intervals shortest were tried: where values are few, they end at the edge of one of them, and held
    87 % of new entries, not 90.
    """
    if len(entries.residuals) < MANY:
        return 0.5
    values = entries.predicted + entries.residuals
    near = ROUNDING * (1 + np.abs(values))
    smallest, largest = (np.mean(np.abs(values - bound) <= near) >= TAIL for bound in bounds)
    first, second, third, last = np.interp([0.0, TAIL, 1 - TAIL, 1.0], np.linspace(0, 1, GRID), quantiles)
    low, high = smallest or first == second, largest or third == last
    return 0.5 if low == high else 0.0 if low else 1.0


def _sizes(scale: Tables, indices: NDArray[np.integer], group: NDArray[np.integer]) -> NDArray[np.float64]:
    return np.exp(scale.predict(np.column_stack([indices, group])))


def _log_sizes(residuals: NDArray[np.floating]) -> NDArray[np.float64]:
    size = np.abs(residuals).astype(np.float64)
    return np.log(np.maximum(size, TINY * max(float(np.median(size)), 1e-12)))


def _fit_scale(left_out: HeldOut, edges: NDArray[np.float64], shape: tuple[int, ...], seed: int) -> Tables:
    """Additive biases of log sizes, by label and by group of predicted values."""
    first = np.unique(cell_keys(left_out.indices, shape), return_index=True)[1]
    left_out = left_out.at(np.sort(first))  # test files may hold a cell twice
    group = np.searchsorted(edges, left_out.predicted)
    logs = _log_sizes(left_out.residuals)
    table = SparseTensor(np.column_stack([left_out.indices, group]), logs, [*shape, len(edges) + 1])
    order = np.random.default_rng([seed, 8]).permutation(len(logs))
    held = len(logs) // 5
    return fit_bias(table.take(order[held:]), table.take(order[:held]))


def _mean_width(scaled: NDArray[np.floating], group: NDArray[np.integer], size: NDArray[np.float64]) -> float:
    """Mean width of 90 % intervals."""
    widths = np.zeros(len(scaled))
    for k in np.unique(group):
        here = group == k
        low, high = np.quantile(scaled[here], [0.05, 0.95])
        widths[here] = (high - low) * size[here]
    return float(widths.mean())


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
