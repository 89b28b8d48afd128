"""Wide frames: a row per time stamp, a column per series, and the time in the index or in a column of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.panel import SERIES, Panel, TimeStamps, free_name
from jointensor.errors import DataError
from jointensor.registry import nearest


@dataclass(frozen=True)
class WideFrame:
    """A wide frame of any brand, and the panel that it holds."""

    frame: nw.DataFrame[Any]
    """With texts for the names of its columns."""
    columns: tuple[str, ...]
    """Those that are series."""
    panel: Panel
    restore: Callable[[Any], Any]
    """Gives a native frame the index and the names of columns of the original."""

    @classmethod
    def of(cls, frame: Any, time: Any = None) -> WideFrame:
        """A frame of any brand.

        Parameters
        ----------
        frame
            pandas, with the time in its index or a column; polars or another brand, with the time in a column.
        time
            The column of time stamps. If not given: the index of a pandas frame; of others, the one column of dates or
            times.
        """
        if nw.dependencies.is_pandas_dataframe(frame):
            return cls._of_pandas(frame, time)
        try:
            table = nw.from_native(frame, eager_only=True)
        except TypeError:
            raise DataError(f"{type(frame).__name__} is not a data frame (pandas, polars, pyarrow)") from None
        time = _only_time(table) if time is None else _column(time, table.columns)
        names = [name for name in table.columns if name != time]
        stamps = table.get_column(time).to_polars()
        return cls._make(table, names, [(name,) for name in names], [SERIES], stamps, lambda native: native)

    @classmethod
    def _of_pandas(cls, frame: Any, time: Any) -> WideFrame:
        if not frame.columns.is_unique:
            raise DataError(f"two columns are called {frame.columns[frame.columns.duplicated()][0]!r}; rename one")
        at = None if time is None else list(frame.columns).index(_column(time, list(frame.columns)))
        plain = frame.set_axis([str(n) for n in range(frame.shape[1])], axis=1).reset_index(drop=True)
        columns = [str(n) for n in range(frame.shape[1]) if n != at]
        keys = [key if isinstance(key, tuple) else (key,) for n, key in enumerate(frame.columns) if n != at]
        levels = [SERIES if name is None else str(name) for name in frame.columns.names]
        stamps = _index_stamps(frame.index) if at is None else _index_stamps(frame.iloc[:, at])

        def restore(native: Any) -> Any:
            return native.set_axis(frame.columns, axis=1).set_axis(frame.index, axis=0)

        table = nw.from_native(plain, eager_only=True)
        return cls._make(table, columns, [tuple(map(str, key)) for key in keys], levels, stamps, restore)

    @classmethod
    def _make(
        cls,
        table: nw.DataFrame[Any],
        columns: Sequence[str],
        names: Sequence[tuple[str, ...]],
        levels: Sequence[str],
        stamps: pl.Series,
        restore: Callable[[Any], Any],
    ) -> WideFrame:
        if not columns or not len(table):
            raise DataError(
                f"the frame has {len(table):,} rows and {len(columns):,} series; there must be some of both"
            )
        numbers = [
            _numbers(table.get_column(column), " / ".join(name)) for column, name in zip(columns, names, strict=True)
        ]
        if len(set(names)) < len(names):
            raise DataError("two series have the same name as text; rename one")
        distinct: list[str] = []
        for level in levels:
            distinct.append(free_name(level, distinct))
        panel = Panel(np.stack(numbers, axis=1), names, TimeStamps.of(stamps, distinct), distinct)
        return cls(table, tuple(columns), panel, restore)

    def filled(self, values: NDArray[np.float64]) -> Any:
        """The frame with numbers in its gaps, ``(gaps,)``; everything else stays as it is, types of columns too."""
        rows, places = self.panel.gaps.T
        new = []
        for n in np.unique(places):
            here = np.flatnonzero(places == n)
            new.append(_with_values(self.frame.get_column(self.columns[n]), rows[here], values[here]))
        return self.restore(self.frame.with_columns(*new).to_native())


def _only_time(table: nw.DataFrame[Any]) -> str:
    """The column of time stamps, where there is one that must be it."""
    times = [name for name, kind in table.schema.items() if kind.is_temporal()]
    if len(times) != 1:
        found = f"columns of times are {', '.join(times)}" if times else "no column has dates or times"
        raise DataError(f"name the column of time stamps, for example time='{table.columns[0]}': {found}")
    return times[0]


def _column(name: Any, columns: Sequence[Any]) -> Any:
    if name not in columns:
        raise DataError(f"there is no column '{name}' with time stamps; {nearest(name, map(str, columns))}")
    return name


def _index_stamps(index: Any) -> pl.Series:
    """The index, or a column, of a pandas frame as time stamps."""
    import pandas as pd  # noqa: PLC0415 - there if a frame of it is

    name = "the index" if index.name is None else str(index.name)
    if isinstance(index, pd.MultiIndex):
        raise DataError("the index has several levels; one of them must be the time, and the others columns")
    plain = pd.Index(index)
    if isinstance(plain, pd.PeriodIndex):
        plain = plain.to_timestamp()
    if isinstance(plain, pd.DatetimeIndex) and plain.tz is not None:
        plain = plain.tz_convert("UTC").tz_localize(None)
    values, missing = plain.to_numpy(), np.asarray(plain.isna())
    kind = {"M": "datetime64[us]", "m": "timedelta64[us]"}.get(values.dtype.kind)
    if kind is not None:
        return pl.Series(name, values.astype(kind))  # NaT becomes null
    try:
        return pl.Series(name, [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)])
    except (TypeError, pl.exceptions.PolarsError):
        raise DataError(f"time stamps in '{name}' must be dates, times or numbers, all of one kind") from None


def _numbers(column: nw.Series[Any], name: str) -> NDArray[np.float64]:
    """A series, NaN where it has a gap."""
    if column.dtype == nw.Unknown and column.null_count() == len(column):
        return np.full(len(column), np.nan)
    if not hasattr(np, str(column.dtype).lower()) or not (column.dtype.is_float() or column.dtype.is_integer()):
        raise DataError(
            f"column '{name}' holds {column.dtype}, and a series has numbers: drop the column, convert it, or name it "
            "as time"
        )
    numbers: NDArray[np.float64] = column.cast(nw.Float64).to_numpy().astype(np.float64)
    if np.isinf(numbers).any():
        raise DataError(f"row {int(np.isinf(numbers).argmax()) + 1} of column '{name}' is infinite; make it missing")
    return numbers


def _with_values(column: nw.Series[Any], rows: NDArray[np.int64], values: NDArray[np.float64]) -> nw.Series[Any]:
    """The column with values in some rows, in its own type: whole numbers are rounded."""
    kind = column.dtype
    if kind == nw.Unknown:
        column, kind = column.cast(nw.Float64), nw.Float64()
    if kind.is_integer():
        limits = np.iinfo(str(kind).lower())
        values = np.clip(np.rint(values), limits.min, limits.max).astype(limits.dtype)
    fresh = nw.new_series(column.name, values, dtype=kind, backend=column.implementation)
    return column.scatter(rows.tolist(), fresh)
