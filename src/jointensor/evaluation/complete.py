"""Fill in: every cell of a part of the tensor, or its largest predictions, without forming the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.expressions import as_numbers_where_possible, quote_names
from jointensor.data.modes import Mode
from jointensor.data.sparse import SparseTensor, cell_keys
from jointensor.data.tables import labels_frame
from jointensor.errors import ConfigError, DataError
from jointensor.training.ensemble import Ensemble
from jointensor.training.predictor import CHUNK, Predictor


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
        return sum(len(chunk) for chunk in self) if self.conditions else self.cells()

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        sizes = tuple(len(p) for p in self.positions)
        for start in range(0, self.cells(), CHUNK):
            flat = np.arange(start, min(start + CHUNK, self.cells()))
            places = np.unravel_index(flat, sizes)
            indices = np.stack([p[k] for p, k in zip(self.positions, places, strict=True)], axis=1)
            yield indices[self._kept(indices)] if self.conditions else indices

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


def fill_in(predictor: Predictor | Ensemble, selection: Selection, observed: SparseTensor | None) -> pl.DataFrame:
    """All selected cells: labels, ``value`` (observed where known, else predicted), ``prediction``, ``observed``."""
    known = Observed(observed)
    frames = []
    for indices in selection:
        predicted = predictor.predict(indices)
        values, seen = known.find(indices)
        columns = {
            "value": np.where(seen, values, predicted),
            "prediction": predicted,
            "observed": seen,
            "unseen": predictor.unseen(indices),
        }
        frames.append(
            labels_frame(selection.modes, indices).with_columns(**{k: pl.Series(v) for k, v in columns.items()})
        )
    return pl.concat(frames)


def fill_in_top(
    predictor: Predictor | Ensemble, selection: Selection, observed: SparseTensor | None, count: int
) -> pl.DataFrame:
    """The ``count`` missing cells with the largest predictions, largest first."""
    known = Observed(observed)
    best = np.empty((0, len(selection.modes)), dtype=np.int64)
    figures = np.empty(0, dtype=np.float32)
    for chunk in selection:
        missing = chunk[~known.find(chunk)[1]]
        best = np.concatenate([best, missing])
        figures = np.concatenate([figures, predictor.predict(missing)])
        order = np.argsort(-figures, kind="stable")[:count]
        best, figures = best[order], figures[order]
    unseen = pl.Series(predictor.unseen(best)) if len(best) else pl.Series([], dtype=pl.Boolean)
    return labels_frame(selection.modes, best).with_columns(prediction=pl.Series(figures), unseen=unseen)


class Observed:
    """Looks up which cells were observed, and their values."""

    def __init__(self, tensor: SparseTensor | None) -> None:
        self.tensor = tensor

    def find(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values and whether they are known."""
        if self.tensor is None or not len(indices):
            return np.zeros(len(indices), dtype=np.float32), np.zeros(len(indices), dtype=np.bool_)
        # only what is near the cells asked for; numbered together, since cell numbers may differ between calls
        near = np.flatnonzero(np.all(self._between(indices.min(axis=0), indices.max(axis=0)), axis=1))
        keys = cell_keys(np.concatenate([self.tensor.indices[near], indices]), self.tensor.shape)
        known, asked = keys[: len(near)], keys[len(near) :]
        order = np.argsort(known)
        rows = np.searchsorted(known[order], asked)
        found = rows < len(near)
        found[found] = known[order][rows[found]] == asked[found]
        values = np.zeros(len(indices), dtype=np.float32)
        values[found] = self.tensor.values[near][order][rows[found]]
        return values, found

    def _between(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.bool_]:
        assert self.tensor is not None
        return (self.tensor.indices >= low) & (self.tensor.indices <= high)


def _parse(where: str, modes: tuple[Mode, ...]) -> pl.Expr:
    try:
        return pl.sql_expr(quote_names(where, [mode.name for mode in modes]))
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f'--where "{where}" is not a condition: {str(error).splitlines()[0]}') from None


def _conjuncts(condition: pl.Expr) -> list[pl.Expr]:
    """The parts of ``a AND b AND …``, so that a condition on one mode narrows that mode before cells are formed."""
    parts = condition.meta.pop()
    if len(parts) == 2 and (parts[1] & parts[0]).meta.eq(condition):
        return _conjuncts(parts[1]) + _conjuncts(parts[0])
    return [condition]


def _true_rows(frame: pl.DataFrame, condition: pl.Expr) -> NDArray[np.bool_]:
    typed = as_numbers_where_possible(frame, condition)
    for table in (typed, frame):  # labels that look like numbers may be compared with numbers or with text
        try:
            answer = table.select(condition.cast(pl.Boolean).alias("kept"))["kept"]
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            continue
        kept = answer.fill_null(value=False).to_numpy()
        return kept if len(kept) == frame.height else np.full(frame.height, bool(kept[0]))
    raise ConfigError(f"--where cannot be evaluated: {reason}")


def _counts(selection: Selection) -> str:
    return ", ".join(
        f"{len(p)} of {m.size} {m.name}" for m, p in zip(selection.modes, selection.positions, strict=True)
    )
