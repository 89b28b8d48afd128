"""Completion: every cell of a part of the tensor, or its largest predictions, without forming the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.expressions import as_numbers_where_possible, parse_sql
from jointensor.data.frames import labels_frame
from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError
from jointensor.predictors.base import CHUNK
from jointensor.predictors.serving import Serving


@dataclass(frozen=True)
class Selection:
    """Cells to fill in: a product of positions per mode, less what conditions over several modes leave out."""

    modes: tuple[Mode, ...]
    positions: tuple[NDArray[np.int64], ...]
    conditions: tuple[pl.Expr, ...]

    def cells(self) -> int:
        """Number of cells in the product, before conditions over several modes."""
        return math.prod(len(p) for p in self.positions)

    def count(self) -> int:
        """Number of cells, conditions over several modes included."""
        return sum(len(numbers) for numbers, _ in self) if self.conditions else self.cells()

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Chunks of cells in order: their numbers in the product, ``(cells,)``, and indices, ``(cells, modes)``."""
        sizes = tuple(len(p) for p in self.positions)
        for start in range(0, self.cells(), CHUNK):
            numbers = np.arange(start, min(start + CHUNK, self.cells()))  # (cells,)
            places = np.unravel_index(numbers, sizes)
            indices = np.stack([p[k] for p, k in zip(self.positions, places, strict=True)], axis=1)  # (cells, modes)
            kept = self._kept(indices) if self.conditions else slice(None)
            yield numbers[kept], indices[kept]

    def within(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Which entries lie in the product, and their numbers there."""
        inside = np.arange(len(indices))
        for n, positions in enumerate(self.positions):
            inside = inside[np.isin(indices[inside, n], positions)]
        places = [np.searchsorted(p, indices[inside, n]) for n, p in enumerate(self.positions)]  # positions ascend
        return inside, np.ravel_multi_index(tuple(places), tuple(len(p) for p in self.positions)).astype(np.int64)

    def _kept(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        frame = labels_frame(self.modes, indices)
        return np.logical_and.reduce([_true_rows(frame, condition) for condition in self.conditions])


def select(modes: tuple[Mode, ...], where: str | None) -> Selection:
    """Cells that satisfy an SQL condition over the modes' labels, such as ``"day = '2014-04-01' AND hour < 6"``."""
    conditions = [] if where is None else _conjuncts(_parse(where, modes))
    positions, left = [np.arange(mode.size) for mode in modes], []
    names = [mode.name for mode in modes]
    for condition in conditions:
        used = list(dict.fromkeys(condition.meta.root_names()))
        for name in used:
            if name not in names:
                raise ConfigError(f"--where names '{name}', which is not a mode; the modes are {', '.join(names)}")
        if len(used) == 1:
            n = names.index(used[0])
            labels = labels_frame((modes[n],), positions[n][:, None])
            positions[n] = positions[n][_true_rows(labels, condition)]
        else:
            left.append(condition)
    selection = Selection(modes, tuple(positions), tuple(left))
    if not selection.cells():
        raise DataError(f'--where "{where}" selects no cell: {_counts(selection)}')
    if selection.cells() >= 2**62:
        raise ConfigError(f"{selection.cells():.3g} cells are too many to number; narrow them with --where")
    return selection


class Observed:
    """Which cells of a selection were observed, and their values; keeps nothing of the other entries."""

    def __init__(self, tensor: SparseTensor | None, selection: Selection) -> None:
        self.numbers, self.values = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        if tensor is not None:
            inside, numbers = selection.within(tensor.indices)
            order = np.argsort(numbers)
            self.numbers, self.values = numbers[order], tensor.values[inside[order]]

    def find(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values of cells by their numbers in the selection, and whether they are known."""
        values, found = np.zeros(len(numbers), dtype=np.float32), np.zeros(len(numbers), dtype=np.bool_)
        if len(self.numbers):
            rows = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
            found = self.numbers[rows] == numbers
            values[found] = self.values[rows[found]]
        return values, found


def fill_in(predictor: Serving, selection: Selection, observed: Observed) -> Iterator[pl.DataFrame]:
    """All selected cells, a chunk at a time: labels, ``value`` (observed where known, else predicted), ``prediction``,
    ``observed``, ``unseen``.
    """
    for numbers, indices in selection:
        predicted = predictor.predict(indices)
        values, seen = observed.find(numbers)
        columns = {
            "value": np.where(seen, values, predicted),
            "prediction": predicted,
            "observed": seen,
            "unseen": predictor.unseen(indices),
        }
        yield labels_frame(selection.modes, indices).with_columns(**{k: pl.Series(v) for k, v in columns.items()})


def fill_in_top(predictor: Serving, selection: Selection, observed: Observed, count: int) -> pl.DataFrame:
    """The ``count`` missing cells with the largest predictions, largest first."""
    best = np.empty((0, len(selection.modes)), dtype=np.int64)  # (cells, modes)
    figures = np.empty(0, dtype=np.float32)  # (cells,), falling
    for numbers, indices in selection:
        missing = indices[~observed.find(numbers)[1]]
        predicted = predictor.predict(missing)
        if len(figures) == count:  # of equals, those that came first stay
            larger = ~(predicted <= figures[-1])
            missing, predicted = missing[larger], predicted[larger]
        figures, best = np.concatenate([figures, predicted]), np.concatenate([best, missing])
        order = np.argsort(-figures, kind="stable")[:count]
        best, figures = best[order], figures[order]
    unseen = pl.Series(predictor.unseen(best)) if len(best) else pl.Series([], dtype=pl.Boolean)
    return labels_frame(selection.modes, best).with_columns(prediction=pl.Series(figures), unseen=unseen)


def _parse(where: str, modes: tuple[Mode, ...]) -> pl.Expr:
    try:
        return parse_sql(where, [mode.name for mode in modes])
    except (DataError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f'--where "{where}" is not a condition: {str(error).splitlines()[0]}') from None


def _conjuncts(condition: pl.Expr) -> list[pl.Expr]:
    """The parts of ``a AND b AND …``, so that a condition on one mode narrows that mode before cells are formed."""
    parts = condition.meta.pop()
    if len(parts) == 2 and (parts[1] & parts[0]).meta.eq(condition):
        return _conjuncts(parts[1]) + _conjuncts(parts[0])
    return [condition]


def _true_rows(frame: pl.DataFrame, condition: pl.Expr) -> NDArray[np.bool_]:
    for table in _forms(frame, condition):
        try:
            answer = table.select(condition.cast(pl.Boolean).alias("kept"))["kept"]
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            continue
        kept = answer.fill_null(value=False).to_numpy()
        return kept if len(kept) == frame.height else np.full(frame.height, bool(kept[0]))
    raise ConfigError(f"--where cannot be evaluated: {reason}")


def _forms(frame: pl.DataFrame, condition: pl.Expr) -> Iterator[pl.DataFrame]:
    """Labels that look like numbers, or are numbers, may be compared with numbers or with text."""
    yield as_numbers_where_possible(frame, condition)
    yield frame
    yield frame.cast(pl.String)


def _counts(selection: Selection) -> str:
    return ", ".join(
        f"{len(p)} of {m.size} {m.name}" for m, p in zip(selection.modes, selection.positions, strict=True)
    )
