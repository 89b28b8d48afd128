"""Intervals by split conformal prediction, from residuals of entries that the predictor was not fitted to.

    interval = prediction + scale(entry) · [lower, upper quantile of residual / scale]

``scale`` is fitted to the sizes of the residuals: additive in the labels and in the predicted value, on a logarithmic
scale, so that noisy labels and large values get wide intervals. The quantiles are those of entries with similar
predicted values. Whatever the scale, the share of entries inside is right on average for entries that are missing at
random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.predictors.base import Packed, require, whole_numbers
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.tables import Tables


@dataclass(frozen=True)
class ConformalSettings:
    """Numbers of the intervals; shares and ratios have no unit."""

    max_groups: int = 20
    """Groups of predicted values."""
    min_group_entries: int = 200
    """Entries that a group needs: quantiles of fewer are too noisy."""
    n_quantiles: int = 401
    """Quantiles that are kept of each group."""
    min_level: float = 0.005
    """The lowest level whose coverage is recorded; the highest is as far from 1."""
    n_levels: int = 199
    """Levels whose coverage is recorded: every half per cent."""
    max_residuals: int = 400_000
    """Residuals that are used; more would only take longer."""
    min_relative_size: float = 1e-3
    """Smallest size of a residual, as a share of the median one: the logarithm of zero is infinite."""
    min_skewed_entries: int = 1000
    """Entries that a group needs to be missed unevenly: fewer would suggest a skew by chance."""
    tail: float = 0.05
    """Share of these entries that must be equal."""
    spare_misses: float = 0.1
    """Share of the misses that is covered nevertheless where a lower level is used: predictions that do not repeat have
    to miss for those that do."""
    rounding_tolerance: float = 1e-6
    """Relative rounding error of a value that was computed from prediction and residual."""
    max_miss_ratio: float = 5.0
    """How many times as often as asked for an entry may lie outside its interval if its value is not given by a
    functional dependency; those whose value is given never do."""
    unseen_factor: float = 1.5
    """How much wider intervals of unseen labels are, where too few such entries were held out to measure it."""


SETTINGS = ConformalSettings()

LEVELS = np.linspace(SETTINGS.min_level, 1 - SETTINGS.min_level, SETTINGS.n_levels)
"""Levels whose coverage is recorded."""


@dataclass(frozen=True)
class Calibration:
    """Scale and quantiles of residuals."""

    edges: NDArray[np.float64]
    """Boundaries of the groups of predicted values, ``(groups − 1,)``."""
    scale: Tables | None
    """Logarithm of the size of residuals by label and group; ``None``: all alike."""
    quantiles: NDArray[np.float64]
    """Of residual / scale, evenly spaced from 0 to 1, ``(groups + 1, n_quantiles)``; the last row: unseen labels."""
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
        enough = self._sufficient_level(level)
        ends = np.empty((len(centre), 2))
        for k in np.unique(row):
            here = row == k
            between = _ends(self.quantiles[k], self.below[k], level if k == len(self.quantiles) - 1 else enough)
            ends[here] = centre[here, None] + size[here, None] * np.array(between)
        return ends

    def pack(self) -> Packed:
        """Scale and quantiles."""
        arrays = {name: torch.as_tensor(getattr(self, name)) for name in ("edges", "quantiles", "below", "held")}
        packed = Packed({"shape": list(self.shape), "scale": None}, arrays)
        if self.scale is not None:
            packed.config["scale"] = packed.add("scale", self.scale.pack())
        return packed

    @classmethod
    def unpack(cls, packed: Packed, n_modes: int) -> Self:
        """The stored calibration, if it is one of ``n_modes`` modes with all its numbers."""
        edges, quantiles, below, held = map(packed.array, ("edges", "quantiles", "below", "held"))
        groups = len(edges) + 2 if edges.ndim == 1 else 0
        shapes = ((groups - 2,), (groups, SETTINGS.n_quantiles), (groups,), (len(LEVELS),))
        arrays = zip((edges, quantiles, below, held), shapes, strict=True)
        require(all(one.shape == shape and one.dtype.kind == "f" for one, shape in arrays), "intervals")
        shape, scale = whole_numbers(packed.config["shape"]), packed.config["scale"]
        require(len(shape) == n_modes, "intervals")
        if scale is not None:
            scale = Tables.unpack(packed.part(scale, "scale"))
            require(scale.supports(n_modes + 1), "intervals")
        return cls(edges, scale, quantiles, shape, below, held)

    def _sufficient_level(self, level: float) -> float:
        """The level to use: where many values are equal, a lower one covers enough already, and a little more."""
        at = int(np.searchsorted(np.maximum.accumulate(self.held), level + SETTINGS.spare_misses * (1 - level)))
        return min(level, LEVELS[at]) if at < len(LEVELS) else level


def _ends(quantiles: NDArray[np.float64], below: float, level: float) -> tuple[float, float]:
    """Two values with a share ``level`` between them."""
    low = (1 - level) * below
    first, last = np.interp([low, low + level], np.linspace(0, 1, SETTINGS.n_quantiles), quantiles)
    return float(first), float(last)


class HeldOut(NamedTuple):
    """Entries that their predictor was not fitted to."""

    indices: NDArray[np.integer]
    predicted: NDArray[np.floating]
    residuals: NDArray[np.floating]
    """Values minus predictions."""
    unseen: NDArray[np.bool_]
    """Whether a label was new to their predictor."""
    together: NDArray[np.integer] | None = None
    """Group of every entry: entries that were left out together have errors alike, and count as one. ``None``: each is
    on its own."""

    @property
    def group(self) -> NDArray[np.integer]:
        """Number of the group of every entry, ``(entries,)``, from 0 in the order of first entries."""
        if self.together is None:
            return np.arange(len(self.residuals))
        _, first, member = np.unique(self.together, return_index=True, return_inverse=True)
        place: NDArray[np.integer] = np.argsort(np.argsort(first))[member]
        return place

    @property
    def n_groups(self) -> int:
        """How many there are."""
        return len(self.residuals) if self.together is None else len(np.unique(self.together))

    def some(self, most: int, seed: int) -> HeldOut:
        """A random part."""
        return self.at(np.random.default_rng([seed, 7]).permutation(len(self.residuals))[:most])

    def thinned(self, given: NDArray[np.bool_], seed: int) -> HeldOut:
        """Fewer of the entries whose value is given, ``(entries,)``: they never miss, and all misses would fall on the
        others.
        """
        others, most = np.flatnonzero(~given), round((SETTINGS.max_miss_ratio - 1) * (~given).sum())
        if not 0 < most < given.sum():
            return self
        some = np.random.default_rng([seed, 11]).permutation(np.flatnonzero(given))[:most]
        return self.at(np.sort(np.append(others, some)))

    def at(self, places: NDArray[Any]) -> HeldOut:
        """The entries at some positions."""
        together = None if self.together is None else self.together[places]
        return HeldOut(
            self.indices[places], self.predicted[places], self.residuals[places], self.unseen[places], together
        )


def calibrate(
    left_out: HeldOut,
    shape: tuple[int, ...],
    fresh: HeldOut | None = None,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Calibration:
    """Fit scale and quantiles to held-out entries.

    Parameters
    ----------
    left_out
        Entries predicted by models that did not see them.
    shape
        Size of every mode.
    fresh
        Entries that nothing at all was fitted to, predicted by the final model: where there are some, quantiles are
        theirs. Without them, the scale is fitted to one half of the groups of entries and quantiles to the other, and
        the other way round.
    seed
        Of the halves.
    bounds
        To which intervals will be clipped: one that would lie below the smallest value covers it then.
    """
    left_out = left_out.some(SETTINGS.max_residuals, seed)
    base = left_out if fresh is None else fresh
    groups = max(1, min(SETTINGS.max_groups, base.n_groups // SETTINGS.min_group_entries))
    edges = np.unique(np.quantile(base.predicted, np.linspace(0, 1, groups + 1)[1:-1])) if groups > 1 else np.zeros(0)
    scale = _fit_scale(left_out, edges, shape, seed)
    group = np.searchsorted(edges, base.predicted)
    if fresh is None:
        size = np.empty(len(group))
        halves = (left_out.group if left_out.n_groups > 1 else np.arange(len(group))) % 2 == 0
        for half in (halves, ~halves):
            other = _fit_scale(left_out.at(~half), edges, shape, seed)
            size[half] = _sizes(other, left_out.indices[half], group[half])
    else:
        size = _sizes(scale, fresh.indices, group)
    pays = _mean_width(base.residuals / size, group, size) < _mean_width(base.residuals, group, np.ones_like(size))
    scaled = base.residuals / size if pays else base.residuals
    quantiles = _quantiles(scaled, group, base.unseen, len(edges) + 1)
    parts = [*(group == k for k in range(len(edges) + 1)), base.unseen]
    # predictions of folds are not quite those of the final model, which predicted fresh entries itself
    ties = bounds if fresh is None else (-math.inf, math.inf)
    below = np.array([_below(row, base.at(here), ties) for row, here in zip(quantiles, parts, strict=True)])
    # predictions by models of folds need not repeat where those of the final model do
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
        near = SETTINGS.rounding_tolerance * (1 + np.abs(truth))
        for at, level in enumerate(LEVELS):
            low, high = (np.clip(centre + wide * end, *bounds) for end in _ends(learnt[0][k], learnt[1][k], level))
            inside = np.count_nonzero((truth >= low - near) & (truth <= high + near))
            held[at] += inside / (len(truth) + 1) * len(truth)
    return held / max(len(values), 1)


def _below(quantiles: NDArray[np.float64], entries: HeldOut, bounds: tuple[float, float]) -> float:
    """Share of the misses that lies below: half, or nothing where the smallest residual is a whole tail of them.

    Nothing, too, where as many values are the smallest there is, one of ``bounds``: intervals are clipped there, and
    cover them at no cost. An end among them would miss more or fewer of them with the slightest change of the model.

    Shares that make intervals shortest were tried: where values are few, they end at the edge of one of them, and
    covered 87 % of new entries, not 90.
    """
    if len(entries.residuals) < SETTINGS.min_skewed_entries:
        return 0.5
    values = entries.predicted + entries.residuals
    near = SETTINGS.rounding_tolerance * (1 + np.abs(values))
    smallest, largest = (np.mean(np.abs(values - bound) <= near) >= SETTINGS.tail for bound in bounds)
    first, second, third, last = np.interp(
        [0.0, SETTINGS.tail, 1 - SETTINGS.tail, 1.0], np.linspace(0, 1, SETTINGS.n_quantiles), quantiles
    )
    low, high = smallest or first == second, largest or third == last
    return 0.5 if low == high else 0.0 if low else 1.0


def _sizes(scale: Tables, indices: NDArray[np.integer], group: NDArray[np.integer]) -> NDArray[np.float64]:
    return np.exp(scale.predict(np.column_stack([indices, group])))


def _log_sizes(residuals: NDArray[np.floating]) -> NDArray[np.float64]:
    size = np.abs(residuals).astype(np.float64)
    return np.log(np.maximum(size, SETTINGS.min_relative_size * max(float(np.median(size)), 1e-12)))


def _fit_scale(left_out: HeldOut, edges: NDArray[np.float64], shape: tuple[int, ...], seed: int) -> Tables:
    """Additive biases of log sizes, by label and by group of predicted values."""
    first = np.unique(cell_keys(left_out.indices, shape), return_index=True)[1]
    left_out = left_out.at(np.sort(first))  # test files may hold a cell twice
    group = np.searchsorted(edges, left_out.predicted)
    logs = _log_sizes(left_out.residuals)
    table = SparseTensor.part(np.column_stack([left_out.indices, group]), logs, [*shape, len(edges) + 1])
    order = np.random.default_rng([seed, 8]).permutation(left_out.n_groups)
    if left_out.together is not None:  # entries in the order of their groups
        order = np.argsort(np.argsort(order)[left_out.group], kind="stable")
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
    at = np.linspace(0, 1, SETTINGS.n_quantiles)

    def spaced(some: NDArray[np.floating]) -> NDArray[np.float64]:
        # this method counts one more entry than there is: a new one may lie outside of all others
        return np.asarray(np.quantile(some, at, method="weibull"))

    seen = ~unseen if (~unseen).any() else np.ones_like(unseen)
    overall = spaced(scaled[seen])
    mine = [scaled[seen & (group == k)] for k in range(groups)]
    rows = [spaced(one) if len(one) >= 2 else overall for one in mine]
    cold = spaced(scaled[unseen]) if unseen.sum() >= SETTINGS.min_group_entries else overall * SETTINGS.unseen_factor
    wider = np.where(at < 0.5, np.minimum(cold, overall), np.maximum(cold, overall))  # never narrower than the others
    return np.stack([*rows, wider])
