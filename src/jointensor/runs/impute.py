"""Gaps in tables of series, filled in: a row per time stamp, a column per series."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.atomic import write_whole
from jointensor.data.formats import format_of, read_table, write_table, write_tensor
from jointensor.data.panel import Panel, some
from jointensor.data.tensor import SparseTensor
from jointensor.data.wide import WideFrame
from jointensor.errors import ConfigError, DataError
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.registry import nearest
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import load_run
from jointensor.runs.pipeline import run
from jointensor.runs.predict import check_name

MISSING = ("", "na", "n/a", "nan", "null", "none", "-")
"""How text tables write a gap, in small letters."""
DIGITS = 7
"""Digits of predictions in text: those that 32 bits hold."""
ENDS = ("lower", "upper")
"""Endings of the columns of intervals."""

FitTensor = Callable[[SparseTensor], JointPredictor | Ensemble]


@dataclass(frozen=True)
class Fill:
    """What belongs into the gaps of a panel, in the units of its series."""

    values: NDArray[np.float64]
    """``(gaps,)``"""
    ends: NDArray[np.float64] | None
    """Lower and upper ends of intervals, ``(gaps, 2)``; the value is between them."""


def fill_gaps(panel: Panel, fit: FitTensor, level: float | None = None) -> Fill:
    """Predictions of the gaps; nothing is fitted where there are none.

    Parameters
    ----------
    panel
        Series with gaps.
    fit
        Gives a predictor of a tensor.
    level
        Share of the values that an interval holds; no intervals if not given.
    """
    if level is not None and not 0 < level < 1:
        raise ConfigError(f"an interval of {level:g} is not possible; give a share between 0 and 1, such as 0.9")
    if not len(panel.gaps):
        return Fill(np.empty(0), None if level is None else np.empty((0, 2)))
    predictor, queries = fit(panel.tensor()), panel.queries()
    values = panel.in_units(predictor.predict(queries))
    if level is None:
        return Fill(values, None)
    if predictor.calibration is None:
        raise DataError(
            f"{int(panel.seen.sum()):,} values are too few for intervals: hold more of them back for validation, or "
            "fill in without intervals"
        )
    ends = panel.in_units(predictor.interval(queries, level))
    beside = np.stack([np.minimum(ends[:, 0], values), np.maximum(ends[:, 1], values)], axis=1)
    return Fill(values, beside)


@dataclass(frozen=True)
class Imputed:
    """How much of a table was filled in."""

    gaps: int
    cells: int


def impute_file(
    path: Path,
    out: Path,
    time: str,
    config: RunConfig,
    *,
    level: float | None = None,
    listener: Listener | None = None,
) -> Imputed:
    """Write a table with its gaps filled in; everything else is written as it was read.

    Parameters
    ----------
    path, out
        Tables of any format.
    time
        The column of time stamps.
    config
        How to fit; its source is found here.
    level
        Share of the values that an interval holds: columns ``NAME_lower`` and ``NAME_upper`` follow those of the table.
    listener
        Callbacks of the fit.
    """
    listener = listener or Listener()
    check_name(out, safe_csv=False)
    if format_of(path).tensor:
        raise ConfigError(f"{path} holds a tensor; a table with a row per time stamp and a column per series is needed")
    table = read_table(path)
    if time not in table.columns:
        raise DataError(f"{path}: there is no column '{time}' with time stamps; {nearest(time, table.columns)}")
    try:
        numbers = _as_numbers(table, time)
        wide = WideFrame.of(numbers, time)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    fresh = [f"{name}_{end}" for name in wide.columns for end in ENDS] if level is not None else []
    taken = [name for name in fresh if name in table.columns]
    if taken:
        raise DataError(f"{path} already has a column '{taken[0]}'; rename it, since the interval goes there")
    for note in _notes(wide.panel):
        listener.on_note(note)
    fill = fill_gaps(wide.panel, lambda tensor: _fit(tensor, config, listener), level)
    filled = _in_text(table, wide.filled(fill.values), time)
    if fill.ends is not None:
        for end, ends in zip(ENDS, fill.ends.T, strict=True):
            given = _in_text(table, wide.filled(ends), time).drop(time)
            filled = filled.with_columns(given.rename({name: f"{name}_{end}" for name in given.columns}))
        filled = filled.select(*table.columns, *fresh)
    write_whole(out, lambda draft: write_table(filled, draft))
    return Imputed(len(wide.panel.gaps), wide.panel.numbers.size)


def _notes(panel: Panel) -> list[str]:
    axes = " × ".join(f"{mode.name} {mode.size:,}" for mode in panel.modes)
    notes = [f"{len(panel.gaps):,} of {panel.numbers.size:,} cells are missing: {axes}"]
    if panel.empty:
        notes.append(
            f"series without a value are filled in by the means of the others at the same time: {some(panel.empty)}"
        )
    return notes


def _fit(tensor: SparseTensor, config: RunConfig, listener: Listener) -> JointPredictor | Ensemble:
    """The predictor of a run whose folder is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "panel.npz", Path(folder) / "run"

        def on_note(note: str) -> None:
            if str(made) not in note:  # how to resume it
                listener.on_note(note)

        write_tensor(tensor, source)
        result = run(replace(config, source=str(source)), made, replace(listener, on_note=on_note))
        if result is not None and result.interrupted:
            listener.on_note("stopped before its end: filled in by the best model so far")
        return load_run(made).predictor


def _as_numbers(table: pl.DataFrame, time: str) -> pl.DataFrame:
    """A table with the texts of series as numbers, null where they stand for a gap."""
    return table.with_columns(
        _number(table[name]) for name, kind in table.schema.items() if kind == pl.String and name != time
    )


def _number(column: pl.Series) -> pl.Series:
    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False).fill_nan(None)
    wrong = numbers.is_null() & ~text.str.to_lowercase().fill_null("").is_in(MISSING)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(
            f"row {row + 1}: '{column[row]}' in column '{column.name}' is not a number; leave the cell empty, or drop "
            "the column"
        )
    return numbers


def _in_text(table: pl.DataFrame, filled: pl.DataFrame, time: str) -> pl.DataFrame:
    """The filled table; columns of text keep their text where it stands for a number."""
    texts = [name for name, kind in table.schema.items() if kind == pl.String and name != time]
    return filled.with_columns(_text(table[name], filled[name]) for name in texts)


def _text(column: pl.Series, filled: pl.Series) -> pl.Series:
    gaps = _number(column).is_null()
    texts = [f"{value:.{DIGITS}g}" for value in filled.filter(gaps).to_list()]
    return column.scatter(gaps.arg_true(), pl.Series(texts, dtype=pl.String))
