"""Facts that a report shows, as plain data in the run folder: the page can be made again without the source.

data         shape, values, entries per label
history      figures of every epoch, by attempt and phase
quality      predicted beside true values, error by label, share of test entries inside intervals
components   weights and loadings of the multilinear components
filled       some cells that were missing, with intervals
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.evaluation.components import read_components
from jointensor.evaluation.coverage import inside_intervals
from jointensor.evaluation.mask import Mask
from jointensor.models.joint import JointModel
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.report.plots import cut
from jointensor.report.settings import SETTINGS
from jointensor.training.history import Epoch

Facts = dict[str, Any]

MAX_FRACTIONAL = 2.0**53
"""Beyond this every float of 64 bits is a whole number, and adding 1 changes nothing."""


def data_facts(tensor: SparseTensor) -> Facts:
    """Shape, values and entries per label."""
    counts, edges = _histogram(tensor.values.astype(np.float64))  # 32 bits may not part the columns
    cells = math.prod(tensor.shape)
    return {
        "shape": list(tensor.shape),
        "entries": len(tensor),
        "density": len(tensor) / cells,
        "values": {
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "mean": float(tensor.values.mean(dtype=np.float64)),
            "sd": float(tensor.values.std(dtype=np.float64)),
            "low": float(tensor.values.min()),
            "high": float(tensor.values.max()),
        },
        "modes": [_mode_facts(tensor, n, mode) for n, mode in enumerate(tensor.modes)],
    }


def _histogram(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts and edges; bins of whole numbers hold equally many of them, or the bars would alternate."""
    low, high = values.min(), values.max()
    if low == high and abs(low) >= MAX_FRACTIONAL:
        return np.histogram(values, [low * (1 - 1e-6 * np.sign(low)), high * (1 + 1e-6 * np.sign(low))])
    if max(-low, high) >= MAX_FRACTIONAL or not np.all(values == np.floor(values)):
        return np.histogram(values, SETTINGS.histogram_bins)
    step = math.ceil((high - low + 1) / SETTINGS.histogram_bins)
    return np.histogram(values, low - 0.5 + step * np.arange(math.ceil((high - low + 1) / step) + 1))


def _mode_facts(tensor: SparseTensor, n: int, mode: Mode) -> Facts:
    counts = np.bincount(tensor.indices[:, n], minlength=mode.size)
    ordered = mode.order != "none"
    most = np.argsort(-counts, kind="stable")
    so_far = np.cumsum(counts[most])
    return {
        "name": mode.name,
        "size": mode.size,
        "order": mode.order,
        "least": int(counts.min()),
        "median": float(np.median(counts)),
        "most": int(counts.max()),
        "without": int((counts == 0).sum()),
        "half": int(np.searchsorted(so_far, len(tensor) / 2)) + 1,  # labels that hold half of all entries
        "top": [[mode.label(int(i)), int(counts[i])] for i in most[: SETTINGS.top_labels]],
        "curve": _along(mode, counts) if ordered else _thinned(np.arange(1.0, mode.size + 1), counts[most]),
        "labels": _axis_labels(mode) if ordered else None,
    }


def _along(mode: Mode, values: NDArray[Any]) -> list[list[float]]:
    """A curve along an ordered mode, drawn where its labels lie."""
    places = mode.coordinates()
    order = np.argsort(places, kind="stable")
    return _thinned(places[order], values[order])


def _thinned(places: NDArray[np.float64], values: NDArray[Any]) -> list[list[float]]:
    """Mean places and means of at most ``SETTINGS.max_curve_points`` stretches of a curve."""
    bounds = np.unique(np.linspace(0, len(values), min(len(values), SETTINGS.max_curve_points) + 1).astype(int))
    return [[float(places[a:b].mean()), float(values[a:b].mean())] for a, b in pairwise(bounds)]


def _axis_labels(mode: Mode) -> list[list[Any]]:
    """Both ends and the middle of an ordered mode, with their positions."""
    places = mode.coordinates()
    middle = np.abs(places - (places.min() + places.max()) / 2).argmin()
    return [
        [float(places[i]), cut(mode.label(int(i)), SETTINGS.max_axis_label)]
        for i in sorted({places.argmin(), middle, places.argmax()}, key=lambda i: places[i])
    ]


def quality_facts(
    predictor: JointPredictor | Ensemble,
    modes: Sequence[Mode],
    indices: NDArray[np.integer],
    values: NDArray[Any],
    *,
    calibrated: bool,
    together: NDArray[np.integer] | None = None,
) -> Facts | None:
    """Predictions beside values that were not used for training; ``None`` where there are no such values.

    Parameters
    ----------
    predictor
        The model that is evaluated.
    modes
        With labels.
    indices, values
        Entries that it was not trained on.
    calibrated
        Whether its intervals were learnt from these same entries.
    together
        Group of every entry, where they were left out in groups.
    """
    known = np.flatnonzero(np.all(indices >= 0, axis=1))
    known = known[:: 1 + len(known) // SETTINGS.max_error_entries]
    if not len(known):
        return None
    indices, truth = indices[known], np.asarray(values, dtype=np.float64)[known]
    groups = np.arange(len(truth)) if together is None else together[known]
    predicted = predictor.predict(indices).astype(np.float64)
    checked = slice(None, None, 1 + len(truth) // SETTINGS.max_interval_entries)
    shown = np.linspace(0, len(truth) - 1, min(SETTINGS.max_scatter_points, len(truth))).astype(int)
    return {
        "n": len(truth),
        "points": np.stack([truth[shown], predicted[shown]], axis=1).round(6).tolist(),
        "modes": [_errors_by_label(mode, indices[:, n], predicted - truth) for n, mode in enumerate(modes)],
        "calibration": _calibration(
            predictor, indices[checked], truth[checked], predicted[checked], groups[checked], halves=calibrated
        ),
    }


def _errors_by_label(mode: Mode, column: NDArray[np.integer], errors: NDArray[np.float64]) -> Facts:
    """RMSE by label: along an ordered mode, and for the labels where it is largest."""
    counts = np.bincount(column, minlength=mode.size)
    squares = np.bincount(column, errors**2, minlength=mode.size)
    rmse = np.sqrt(squares / np.maximum(counts, 1))
    enough = np.flatnonzero(counts >= SETTINGS.min_label_entries)
    worst = enough[np.argsort(-rmse[enough], kind="stable")][: SETTINGS.top_labels]
    curve = []
    if mode.order != "none":
        places = mode.coordinates()
        for g in np.array_split(np.argsort(places, kind="stable"), min(mode.size, SETTINGS.max_error_points)):
            if counts[g].any():
                curve.append([float(places[g].mean()), math.sqrt(squares[g].sum() / counts[g].sum())])
    return {
        "name": mode.name,
        "worst": [[mode.label(int(i)), float(rmse[i]), int(counts[i])] for i in worst],
        "curve": curve or None,
        "labels": _axis_labels(mode) if mode.order != "none" else None,
    }


def _calibration(
    predictor: JointPredictor | Ensemble,
    indices: NDArray[np.integer],
    truth: NDArray[np.float64],
    predicted: NDArray[np.float64],
    together: NDArray[np.integer],
    *,
    halves: bool,
) -> list[list[float]] | None:
    """Levels, and shares of entries inside such intervals: each half of them by the other half's, where the model's own
    intervals come from these entries.
    """
    if predictor.calibration is None:
        return None
    inside = inside_intervals(
        predictor, indices, truth, predicted, SETTINGS.levels, halves=halves, together=together
    )  # (entries, levels)
    return [[level, float(share)] for level, share in zip(SETTINGS.levels, inside.mean(axis=0), strict=True)]


def mask_facts(mask: Mask) -> Facts:
    """Which cells are learnt from, missing, and left out to validate, in the two most telling modes."""
    picture, modes = mask.picture(), mask.train.modes
    rows, columns = (modes[n] for n in picture.modes)
    ends = [
        [mode.label(labels[0]), mode.label(labels[-1])]
        for mode, labels in ((rows, picture.rows), (columns, picture.columns))
    ]
    return {
        "modes": [rows.name, columns.name],
        "ends": [[cut(label, SETTINGS.max_axis_label) for label in both] for both in ends],
        "at": {modes[n].name: modes[n].label(label) for n, label in picture.at.items()},
        "rows": ["".join(map(str, row)) for row in picture.cells.tolist()],
    }


def component_facts(model: JointModel | None, modes: Sequence[Mode]) -> list[Facts]:
    """The largest multilinear components: loadings along ordered modes, and the largest ones of others."""
    factors = [] if model is None else model.linear_factors
    if not len(factors):
        return []
    found = read_components([factor.cpu().numpy() for factor in factors], modes)
    total = float(found.weights.sum()) or 1.0
    return [
        {
            "weight": float(weight),
            "share": float(weight) / total,
            "modes": [
                _loadings(found.factors[n][:, r], mode, found.top(r, n, SETTINGS.top_labels))
                for n, mode in enumerate(modes)
            ],
        }
        for r, weight in enumerate(found.weights[: SETTINGS.max_components])
    ]


def _loadings(column: NDArray[np.float64], mode: Mode, top: list[tuple[str, float]]) -> Facts:
    ordered = mode.order != "none"
    return {
        "name": mode.name,
        "curve": _along(mode, column) if ordered else None,
        "labels": _axis_labels(mode) if ordered else None,
        "top": None if ordered else [list(one) for one in top],
    }


def filled_facts(predictor: JointPredictor | Ensemble, tensor: SparseTensor, seed: int = 0) -> Facts:
    """Some missing cells whose labels are all known, what is predicted for them, and 90 % intervals."""
    generator = np.random.default_rng([seed, 77])
    # labels as often as they occur: cells that a user may query
    drawn = np.stack(
        [generator.choice(tensor.indices[:, n], 8 * SETTINGS.sampled_cells) for n in range(tensor.n_modes)], axis=1
    )  # (cells, modes)
    largest = int(np.argmax(tensor.shape))
    near = tensor.indices[np.isin(tensor.indices[:, largest], drawn[:, largest])]  # no other entry can be one of them
    keys = cell_keys(np.concatenate([near, drawn]), tensor.shape)
    missing = ~np.isin(keys[len(near) :], keys[: len(near)])
    cells = np.unique(drawn[missing], axis=0)
    cells = cells[generator.permutation(len(cells))[: SETTINGS.sampled_cells]]
    has = predictor.calibration is not None
    ends = predictor.interval(cells, SETTINGS.cell_level) if has and len(cells) else np.zeros((len(cells), 2))
    predicted = predictor.predict(cells) if len(cells) else np.zeros(0)
    return {
        "modes": [mode.name for mode in tensor.modes],
        "rows": [
            {
                "labels": [mode.label(int(i)) for mode, i in zip(tensor.modes, cell, strict=True)],
                "value": float(value),
                "interval": [float(end[0]), float(end[1])] if has else None,
            }
            for cell, value, end in zip(cells, predicted, ends, strict=True)
        ],
    }


def history_facts(history: Sequence[Epoch]) -> list[Facts]:
    """Epochs of every attempt: figures and the phase they belong to."""
    attempts: dict[int, list[Facts]] = {}
    for row in history:
        one = {"epoch": row.epoch, "train": row.train_loss, "valid": row.valid_loss, "phase": row.phase}
        attempts.setdefault(row.attempt, []).append(one)
    return [{"attempt": number, "epochs": _some(rows)} for number, rows in attempts.items()]


def _some(rows: list[Facts]) -> list[Facts]:
    """Not too many epochs, the first and the last among them."""
    return [
        rows[k] for k in np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SETTINGS.max_curve_points)).astype(int))
    ]
