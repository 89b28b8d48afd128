"""Share of values inside intervals: of all, and by what is known around an entry.

distance   steps to the nearest entry that was learnt from, along the ordered mode where it is least
entries    of the entry's label that has fewest
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.split import places_of, steps_to_nearest
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor

LEVEL = 0.9
"""Of the intervals whose coverage is given by class."""
MAX_ENTRIES = 200_000
"""Entries whose intervals are computed."""
MIN_ENTRIES = 20
"""Entries of a class below which its coverage would be chance."""
STEPS = (1, 2, 4, 8)
"""Distances at which classes begin."""
COUNTS = (0, 1, 10, 100)
"""Entries of a label at which classes begin."""

Row = dict[str, Any]


def coverage_by_class(
    predictor: JointPredictor | Ensemble,
    learnt: SparseTensor,
    indices: NDArray[np.integer],
    values: NDArray[Any],
    *,
    halves: bool,
    together: NDArray[np.integer] | None = None,
) -> list[Row] | None:
    """How many values are inside 90 % intervals, by class; ``None`` where there are no intervals or no entries.

    Parameters
    ----------
    predictor
        With intervals.
    learnt
        Entries that it has learnt from.
    indices, values
        Entries that it has not learnt from, ``(entries, modes)`` and ``(entries,)``.
    halves, together
        As for :func:`inside_intervals`.
    """
    known = np.flatnonzero(np.all(indices >= 0, axis=1))
    known = known[:: 1 + len(known) // MAX_ENTRIES]
    if predictor.calibration is None or not len(known):
        return None
    indices, truth = indices[known], np.asarray(values, dtype=np.float64)[known]
    together = None if together is None else together[known]
    predicted = predictor.predict(indices).astype(np.float64)
    inside = inside_intervals(predictor, indices, truth, predicted, [LEVEL], halves=halves, together=together)[:, 0]
    rows = [_row("all", "all entries", inside, truth - predicted)]
    for by, name, here in _classes(learnt, indices):
        if MIN_ENTRIES <= here.sum() < len(truth):
            rows.append(_row(by, name, inside[here], (truth - predicted)[here]))
    return rows


def inside_intervals(
    predictor: JointPredictor | Ensemble,
    indices: NDArray[np.integer],
    truth: NDArray[np.float64],
    predicted: NDArray[np.float64],
    levels: Sequence[float],
    *,
    halves: bool,
    together: NDArray[np.integer] | None = None,
) -> NDArray[np.bool_]:
    """Which values lie inside intervals of every level, ``(entries, levels)``.

    Parameters
    ----------
    predictor
        With intervals.
    indices, truth, predicted
        Entries, their values and predictions.
    levels
        Such as 0.9.
    halves
        Whether its intervals were learnt from these same entries: each half of them is then judged by intervals of the
        other half.
    together
        Group of every entry, where they were left out in groups: these stay in one half.
    """
    assert predictor.calibration is not None  # the caller has looked
    unseen = predictor.unseen(indices)
    inside = np.zeros((len(truth), len(levels)), dtype=np.bool_)
    if not halves:
        judged = [(predictor.calibration, np.ones(len(truth), dtype=np.bool_))]
    else:
        every = HeldOut(indices, predicted, truth - predicted, unseen, together)
        even = (every.group if every.n_groups > 1 else np.arange(len(truth))) % 2 == 0
        judged = [(calibrate(every.at(~half), predictor.shape), half) for half in (even, ~even) if (~half).sum() >= 2]
    for calibration, here in judged:
        for k, level in enumerate(levels):
            ends = calibration.interval(indices[here], predicted[here], level, unseen[here])
            if isinstance(predictor, Ensemble):
                ends = np.clip(ends, predictor.low, predictor.high)
            inside[here, k] = (truth[here] >= ends[:, 0]) & (truth[here] <= ends[:, 1])
    return inside


def _row(by: str, name: str, inside: NDArray[np.bool_], errors: NDArray[np.float64]) -> Row:
    rmse = float(np.sqrt(np.mean(errors**2)))
    return {"by": by, "class": name, "n": len(inside), "inside": float(inside.mean()), "rmse": rmse}


def _classes(learnt: SparseTensor, cells: NDArray[np.integer]) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """What a class is by, its name, and which cells are in it, ``(cells,)``."""
    steps = _steps(learnt, cells)
    if steps is not None:
        for first, last in zip(STEPS, (*(one - 1 for one in STEPS[1:]), np.inf), strict=True):
            yield "distance", _steps_in_words(first, last), (steps >= first) & (steps <= last) & np.isfinite(steps)
        yield "distance", "no entry in its series", np.isposinf(steps)
    fewest = np.min(
        [np.bincount(learnt.indices[:, n], minlength=size)[cells[:, n]] for n, size in enumerate(learnt.shape)], axis=0
    )
    for first, last in zip(COUNTS, (*(one - 1 for one in COUNTS[1:]), np.inf), strict=True):
        name = f"{first} or more" if last == np.inf else f"{first} to {int(last)}"
        yield (
            "entries",
            f"a label with {name} entries" if first else "a new label",
            (fewest >= first) & (fewest <= last),
        )


def _steps_in_words(first: int, last: float) -> str:
    if first == last:
        return f"{first} step away" if first == 1 else f"{first} steps away"
    return f"{first} or more steps away" if last == np.inf else f"{first} to {int(last)} steps away"


def _steps(learnt: SparseTensor, cells: NDArray[np.integer]) -> NDArray[np.float64] | None:
    """To the nearest entry along an ordered mode, ``(cells,)``; infinite where none is; ``None`` without such modes."""
    ordered = [n for n, mode in enumerate(learnt.modes) if mode.order != "none"]
    if not ordered:
        return None
    every = [steps_to_nearest(_placed(learnt.indices, n, learnt.modes), _placed(cells, n, learnt.modes), n,
                              learnt.shape) for n in ordered]  # fmt: skip
    least: NDArray[np.float64] = np.min(every, axis=0)
    return least


def _placed(indices: NDArray[np.integer], n: int, modes: Sequence[Mode]) -> NDArray[np.int64]:
    """Indices with places in the order of a mode, ``(entries, modes)``."""
    placed = indices.astype(np.int64)
    placed[:, n] = places_of(modes[n])[placed[:, n]]
    return placed
