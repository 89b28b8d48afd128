"""Boosted trees on lags: one model for all series and all steps ahead, on top of profile and state-space models.

Every series is measured in units of its own spread, so that large and small ones learn from each other; entries weigh
by the square of that unit, since squared errors are those of the values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.forecasting.factors import FactorView
from jointensor.forecasting.profile import ProfileView
from jointensor.forecasting.rows import Array, Rows
from jointensor.forecasting.seasons import latest, rows_before


@dataclass(frozen=True)
class TreeSettings:
    """Of the trees."""

    rows: int = 300_000
    """Training rows, at most, and those by which growing stops."""
    valid_rows: int = 100_000
    min_rows: int = 400
    """Below which no tree is grown."""
    leaves: int = 31
    min_leaf_rows: int = 50
    rate: float = 0.05
    share: float = 0.7
    """Of columns and rows that every tree sees."""
    most: int = 500
    patience: int = 30
    recent: int = 4
    """Last steps whose deviations are columns."""
    components: int = 4
    """Shared components that are columns."""
    chunk: int = 1 << 18
    """Rows that are predicted at a time: bounds memory."""


SETTINGS = TreeSettings()

MAX_PERMUTED = 20
"""Times as many rows as are wanted that are permuted to draw from them."""


@dataclass(frozen=True)
class Evidence:
    """What is known of the values, in causal arrays."""

    values: Array
    """``(steps, series)``, as all of these."""
    deviations: Array
    profile: ProfileView
    factors: FactorView
    last: Array
    """Last observed values."""
    age: NDArray[np.int64]
    """Steps since then."""
    codes: NDArray[np.int64]
    """Labels of the series, ``(series, other modes)``."""
    seasons: tuple[int, ...]

    @classmethod
    def of(
        cls, values: Array, profile: ProfileView, factors: FactorView, codes: NDArray[np.int64],
        seasons: tuple[int, ...],
    ) -> Evidence:  # fmt: skip
        """From values and the views of the other models."""
        steps = np.arange(len(values))[:, None]
        last_step = np.maximum.accumulate(np.where(np.isfinite(values), steps, -1), axis=0)
        deviations = profile.deviations(values)
        return cls(values, deviations, profile, factors, latest(values, 1), steps - last_step, codes, seasons)


class Scales(NamedTuple):
    """Units of the series."""

    centre: Array
    """Mean, ``(series,)``."""
    unit: Array
    """Spread around the profile."""


def scales_of(values: Array, deviations: Array) -> Scales:
    """Mean and spread of every series; those with few entries are drawn to the spread of all."""
    seen = np.isfinite(deviations)
    count = seen.sum(axis=0)
    squares = np.where(seen, deviations, 0.0) ** 2
    common = max(float(squares.sum() / max(count.sum(), 1)), 1e-12)
    prior = 4.0
    unit = np.sqrt((squares.sum(axis=0) + prior * common) / (count + prior))
    there = np.isfinite(values)
    total = np.where(there, values, 0.0)
    return Scales(total.sum(axis=0) / np.maximum(there.sum(axis=0), 1), unit)


@dataclass(frozen=True)
class BoostedLags:
    """Trees, and the units of the series."""

    booster: Any
    """LightGBM's."""
    scales: Scales
    settings: TreeSettings = SETTINGS

    def over(self, evidence: Evidence) -> BoostedView:
        """The trees with values to forecast from."""
        return BoostedView(self, evidence)


@dataclass(frozen=True)
class BoostedView:
    """Trees with values to forecast from."""

    trees: BoostedLags
    evidence: Evidence

    def at(self, rows: Rows) -> Array:
        """Forecasts of flat rows."""
        found = np.empty(len(rows.series))
        chunk = self.trees.settings.chunk
        for start in range(0, len(found), chunk):
            part = slice(start, start + chunk)
            columns, base = columns_of(self.evidence, self.trees.scales, rows.take(part), self.trees.settings)
            grown = self.trees.booster.predict(columns, num_threads=torch.get_num_threads())
            found[part] = base + grown * self.trees.scales.unit[rows.series[part]]
        return found


def columns_of(
    evidence: Evidence, scales: Scales, rows: Rows, settings: TreeSettings
) -> tuple[NDArray[np.float32], Array]:
    """What the trees see of flat rows, ``(rows, columns)``, and the profile that they correct, ``(rows,)``."""
    unit, centre = scales.unit[rows.series], scales.centre[rows.series]
    base = evidence.profile.at(rows)
    shared = evidence.factors.shared(rows)
    own = evidence.factors.remainders.at(rows)
    known = rows.origins - 1

    def past(array: Array, steps: NDArray[np.int64]) -> Array:
        return np.where(steps >= 0, array[np.maximum(steps, 0), rows.series], np.nan)

    columns = [(base - centre) / unit, (shared + own) / unit, own / unit]
    columns += [past(evidence.deviations, known - lag) / unit for lag in range(settings.recent)]
    columns += [(past(evidence.last, known) - centre) / unit, past(evidence.age.astype(np.float64), known)]
    for season in evidence.seasons:
        steps = rows_before(rows.origins, rows.ahead, season)
        for back in (0, season):
            columns += [(past(evidence.values, steps - back) - base) / unit]
        columns += [past(evidence.deviations, steps) / unit, past(evidence.deviations, known + 1 - season) / unit]
    for shorter, longer in zip((1, *evidence.seasons), evidence.seasons, strict=False):
        columns.append(((rows.targets % longer) // shorter).astype(np.float64))
    components = evidence.factors.scores[np.maximum(known, 0), : settings.components]
    columns += [*components.T, rows.ahead.astype(np.float64), np.log(unit), centre / unit]
    columns += [*evidence.codes[rows.series].T]
    return np.column_stack(columns).astype(np.float32), base


def fit_trees(
    evidence: Evidence,
    scales: Scales,
    origins: tuple[int, int],
    horizon: int,
    *,
    valid: Rows | None = None,
    rounds: int | None = None,
    seed: int = 0,
    settings: TreeSettings = SETTINGS,
) -> BoostedLags | None:
    """Trees for all steps up to a horizon; none where there are too few rows to grow them from.

    Parameters
    ----------
    evidence, scales
        What is known, and the units of the series.
    origins
        Steps from and before which every training row is: nothing after the second is learnt.
    horizon
        Steps ahead.
    valid
        Rows, all observed, whose error says when to stop.
    rounds
        Trees, where no rows say it.
    seed
        Of the rows and columns that are drawn.
    settings
        Of the trees.
    """
    import lightgbm  # noqa: PLC0415 - it takes a second to load

    rng = np.random.default_rng(seed)
    rows = draw_rows(evidence.values, origins, horizon, settings.rows, rng)
    parameters = {
        "objective": "l2", "num_leaves": settings.leaves, "learning_rate": settings.rate,
        "min_data_in_leaf": settings.min_leaf_rows, "feature_fraction": settings.share,
        "bagging_fraction": settings.share, "bagging_freq": 1, "seed": seed, "deterministic": True,
        "force_col_wise": True, "verbose": -1, "num_threads": torch.get_num_threads(),
    }  # fmt: skip

    def dataset(some: Rows, reference: Any = None) -> Any:
        columns, base = columns_of(evidence, scales, some, settings)
        unit = scales.unit[some.series]
        target = (evidence.values[some.targets, some.series] - base) / unit
        weight = unit**2 / np.mean(scales.unit**2)
        return lightgbm.Dataset(columns, target, weight=weight, reference=reference)

    if len(rows.series) < settings.min_rows or (valid is not None and len(valid.series) < settings.min_rows):
        return None
    train = dataset(rows)
    if valid is None:
        return BoostedLags(lightgbm.train(parameters, train, rounds or settings.most), scales, settings)
    if len(valid.series) > settings.valid_rows:
        valid = valid.take(np.sort(rng.choice(len(valid.series), settings.valid_rows, replace=False)))
    stop = lightgbm.early_stopping(settings.patience, verbose=False)
    grown = lightgbm.train(parameters, train, settings.most, valid_sets=[dataset(valid, train)], callbacks=[stop])
    return BoostedLags(grown, scales, settings)


def draw_rows(values: Array, origins: tuple[int, int], horizon: int, count: int, rng: np.random.Generator) -> Rows:
    """Rows with an observed target in a range of steps, at most so many, drawn at random."""
    begin, end = origins
    steps, series = np.nonzero(np.isfinite(values[begin:end]))
    steps = steps + begin
    total = len(steps) * horizon
    if total <= count:
        chosen = np.arange(total)
    elif total <= MAX_PERMUTED * count:
        chosen = np.sort(rng.choice(total, count, replace=False))
    else:  # hardly any of them is drawn twice
        chosen = np.unique(rng.integers(total, size=count))
    place, ahead = chosen // horizon, chosen % horizon + 1
    starts = steps[place] + 1 - ahead
    kept = starts > 0
    return Rows(starts[kept], ahead[kept], series[place][kept])
