"""Tables of observations: rows in, tensor out, and back; queries by the same rules.

Counting events (``value="count"`` where no column has that name) makes a tensor of the cells in which
something happened; an absent cell is unknown, so predictions are conditional on something having
happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.expressions import ModeExpression, column_of
from jointensor.data.formats.base import Reading
from jointensor.data.modes import UNSEEN, Mode, guess_order, sort_labels
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError
from jointensor.registry import nearest

Duplicates = Literal["error", "sum", "mean", "count", "last"]
COUNT = "count"
ABSENCE = (
    "counting events: a cell without events is unknown to the model, not zero, so predictions are "
    "conditional on something having happened"
)


@dataclass(frozen=True)
class TableSpec:
    """How a table becomes a tensor. Stored with a run and applied again to queries."""

    modes: tuple[ModeExpression, ...]
    """A name and an expression for each mode; :meth:`of` makes them of texts."""
    value: str
    """Column of the values, or ``count`` to count rows."""
    duplicates: Duplicates = "error"
    """Rule for rows of the same cell."""
    separator: str | None = None
    """Of a text table; ``None`` guesses it."""
    header: bool = True
    """Whether the first line of a text table names the columns."""
    columns: tuple[str, ...] | None = None
    """Names of the columns, where the table has none or others are wanted."""

    def __post_init__(self) -> None:
        if self.duplicates not in get_args(Duplicates):
            raise ConfigError(f"duplicates '{self.duplicates}': {nearest(self.duplicates, get_args(Duplicates))}")
        if self.separator is not None and len(self.separator.encode()) != 1:
            raise ConfigError(f"separator '{self.separator}': give a single character")

    @classmethod
    def of(cls, modes: Sequence[str] | Mapping[str, str], value: str, **options: Any) -> TableSpec:
        """From a list of columns (or ``NAME=EXPRESSION`` texts), or from a mapping of names to expressions.

        Parameters
        ----------
        modes
            ``["user", "day=day(timestamp)"]`` or ``{"user": "user", "day": "day(timestamp)"}``.
        value
            Column of the values, or ``count`` to count rows.
        **options
            The other fields, such as ``duplicates="sum"``.
        """
        if isinstance(modes, Mapping):
            parsed = tuple(ModeExpression(name, text) for name, text in modes.items())
        else:
            parsed = tuple(ModeExpression.parse(text) for text in modes)
        return cls(parsed, value, **options)

    def rule(self, table: pl.DataFrame) -> str:
        """How rows of the same cell are merged."""
        return COUNT if self.counts_rows(table) else self.duplicates

    def counts_rows(self, table: pl.DataFrame) -> bool:
        """Whether the value of a cell is its number of rows: ``count``, unless a column is called so."""
        return self.value == COUNT and COUNT not in table.columns

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``config.json``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TableSpec:
        """The inverse of :meth:`to_dict`."""
        modes = tuple(ModeExpression(**mode) for mode in data["modes"])
        columns = None if data["columns"] is None else tuple(data["columns"])
        return cls(**{**data, "modes": modes, "columns": columns})


def to_polars(frame: Any) -> pl.DataFrame:
    """A frame of any brand as polars."""
    if isinstance(frame, pl.DataFrame):
        return frame
    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError:
        raise DataError(f"{type(frame).__name__} is not a data frame (pandas, polars, pyarrow)") from None
    except ValueError as error:
        raise DataError(f"the data frame cannot be read: {' '.join(str(error).split())}") from None
    try:
        return table.to_polars()
    except (TypeError, ValueError, NotImplementedError) as error:  # pyarrow's errors, which name the column
        raise DataError(f"the data frame cannot be read: {' '.join(map(str, error.args))}") from None


@dataclass(frozen=True)
class Cells:
    """The cells of a table: one per combination of labels, sorted by index."""

    indices: NDArray[np.int64]
    """Positions, ``(cells, modes)``."""
    values: NDArray[np.float64]
    modes: tuple[Mode, ...]
    spec: TableSpec
    """The rules with their expressions resolved."""
    notes: tuple[str, ...]
    """Messages for the user."""


def frame_to_cells(frame: Any, spec: TableSpec) -> Cells:
    """Encode labels, apply the rule for duplicates, and sort the cells by index.

    Parameters
    ----------
    frame
        pandas, polars or pyarrow.
    spec
        Modes, value column and rule for duplicates.
    """
    table = to_polars(frame)
    if not table.height:
        raise DataError("the table has no rows")
    values = values_of(table, spec)
    evaluator = LabelEvaluator(spec.modes)
    labels = evaluator.evaluate_complete(table)
    modes = [make_mode(one, column) for one, column in zip(evaluator.expressions, labels, strict=True)]
    cells = merge_cells(cell_frame(labels, modes, values), spec.rule(table), modes)
    indices = cells.drop("value").to_numpy()
    return Cells(
        indices, cells["value"].to_numpy(), tuple(modes), replace(spec, modes=tuple(evaluator.expressions)),
        (*((ABSENCE,) if spec.counts_rows(table) else ()), *evaluator.notes),
    )  # fmt: skip


class LabelEvaluator:
    """Evaluates mode expressions chunk by chunk; the first chunk resolves how dates are written.

    Parameters
    ----------
    expressions
        One per mode.
    """

    def __init__(self, expressions: Iterable[ModeExpression]) -> None:
        self.expressions = list(expressions)
        self.notes: list[str] = []
        self._begun = False

    def evaluate(self, frame: pl.DataFrame) -> list[pl.Series]:
        """Labels of every mode, ``(rows,)`` each; null where a label is missing."""
        columns = []
        for n, expression in enumerate(self.expressions):
            labels, resolved, notes = expression.evaluate(frame)
            if self._begun and resolved.format != expression.format:
                raise DataError(
                    f"mode '{expression.name}': dates are not written as in the rows before ({expression.format})"
                )
            self.expressions[n] = resolved
            self.notes += [note for note in notes if note not in self.notes]
            columns.append(labels)
        self._begun = True
        return columns

    def evaluate_complete(self, frame: pl.DataFrame) -> list[pl.Series]:
        """The same; refuses missing labels."""
        columns = self.evaluate(frame)
        for expression, labels in zip(self.expressions, columns, strict=True):
            refuse_missing(labels, f"mode '{expression.name}'")
        return columns


def cell_frame(labels: Sequence[pl.Series], modes: Sequence[Mode], values: pl.Series) -> pl.DataFrame:
    """Rows as positions in labelled modes, columns ``m0``, ``m1``, …, and ``value``."""
    codes = {
        f"m{n}": coded(one, pl.Enum(mode.labels or ())) for n, (one, mode) in enumerate(zip(labels, modes, strict=True))
    }
    return pl.DataFrame(codes).with_columns(value=values)


def frame_to_tensor(frame: Any, spec: TableSpec) -> Reading:
    """The tensor of a table; see :func:`frame_to_cells`."""
    cells = frame_to_cells(frame, spec)
    return Reading(SparseTensor(cells.indices, cells.values, cells.modes), cells.spec, cells.notes)


def tensor_to_frame(tensor: SparseTensor, value: str = "value") -> pl.DataFrame:
    """One column of labels per mode (numbers, where a mode has no labels), then the values."""
    if value in tensor.mode_names:
        raise DataError(f"'{value}' is the name of a mode; give the column of values another name")
    return labels_frame(tensor.modes, tensor.indices).with_columns(pl.Series(value, tensor.values))


def labels_frame(modes: Sequence[Mode], indices: NDArray[np.integer]) -> pl.DataFrame:
    """Labels of entries, one column per mode; nothing where an index is -1."""
    columns = []
    for n, mode in enumerate(modes):
        positions = pl.Series(mode.name, np.ascontiguousarray(indices[:, n]))
        positions = positions.set(positions < 0, None)
        labels = None if mode.labels is None else pl.Series(mode.name, mode.labels, dtype=pl.String)
        columns.append(positions if labels is None else labels.gather(positions).alias(mode.name))
    return pl.DataFrame(columns)


def encode_frame(frame: Any, modes: Sequence[Mode], spec: TableSpec | None) -> NDArray[np.int64]:
    """Indices of queries, -1 for labels that the modes do not have.

    A mode's expression is applied where the frame has the columns it reads; otherwise the frame must
    have a column with the mode's name, holding labels.
    """
    table = to_polars(frame)
    return LabelEncoder(table.columns, modes, spec).encode(table)


def encode_wider(
    frame: Any, modes: Sequence[Mode], spec: TableSpec | None
) -> tuple[NDArray[np.int64], tuple[Mode, ...]]:
    """The same over modes with the labels that they do not have yet at their ends."""
    table = to_polars(frame)
    encoder = LabelEncoder(table.columns, modes, spec)
    wider = tuple(
        mode.with_numbers(found) if mode.labels is None else mode.with_more(found)
        for mode, found in zip(modes, encoder.texts(table), strict=True)
    )
    indices = LabelEncoder(table.columns, wider, spec).encode(table)
    unreadable = np.argwhere(indices == UNSEEN)
    if len(unreadable):
        row, n = unreadable[0]
        kind = "label" if modes[n].labels is not None else "position, a whole number from 0 on,"
        raise DataError(f"row {row + 1} has no {kind} for mode '{modes[n].name}'")
    return indices, wider


class LabelEncoder:
    """Encodes tables of the same columns as indices; lookups that depend on columns and modes only are built once.

    Parameters
    ----------
    columns
        Names of the tables' columns.
    modes
        The tensor's modes.
    spec
        Where the modes came from, if it was a table.
    """

    def __init__(self, columns: Sequence[str], modes: Sequence[Mode], spec: TableSpec | None) -> None:
        given = {e.name: e for e in spec.modes} if spec is not None else {}
        self.modes = tuple(modes)
        self.labels = LabelEvaluator(
            _readable(given.get(mode.name, ModeExpression(mode.name, mode.name)), mode, columns) for mode in modes
        )
        self._enums = [None if mode.labels is None else pl.Enum(mode.labels) for mode in modes]

    def texts(self, table: pl.DataFrame) -> list[list[str]]:
        """Labels of every mode that occur, sorted."""
        if not table.height:
            return [[] for _ in self.modes]
        columns = (labels.cast(pl.String).to_list() for labels in self.labels.evaluate(table))
        return [sort_labels({label for label in column if label is not None}) for column in columns]

    def encode(self, table: pl.DataFrame) -> NDArray[np.int64]:
        """Indices ``(rows, modes)``, -1 where a mode lacks the label."""
        indices = np.empty((table.height, len(self.modes)), dtype=np.int64)  # (rows, modes)
        if not table.height:  # nothing to resolve expressions by
            return indices
        for n, labels in enumerate(self.labels.evaluate(table)):
            enum = self._enums[n]
            indices[:, n] = _numbered(labels, self.modes[n]) if enum is None else _coded_or_unseen(labels, enum)
        return indices


def _readable(expression: ModeExpression, mode: Mode, columns: Sequence[str]) -> ModeExpression:
    """The mode's expression where a table has the columns it reads, else the column of its labels."""
    if expression.text in columns or set(expression.columns(columns)) <= set(columns):
        return expression
    if mode.name in columns:
        return ModeExpression(mode.name, mode.name)
    needs = ", ".join(f"'{c}'" for c in expression.columns(columns))
    raise DataError(
        f"the queries need a column '{mode.name}' with labels, or what it is made from ({needs}); "
        f"their columns are {', '.join(columns)}"
    )


def query_values(frame: pl.DataFrame, spec: TableSpec | None, value: str = "value") -> NDArray[np.float64]:
    """The observed values in a table of queries."""
    name = value if spec is None else spec.value
    return _numbers(column_of(frame, name, "the value")).to_numpy()


def refuse_columns(frame: pl.DataFrame, names: Iterable[str]) -> None:
    """Refuse to overwrite a column of the user's."""
    for name in names:
        if name in frame.columns:
            raise DataError(f"the queries already have a column '{name}'; rename it, since the answer goes there")


def values_of(table: pl.DataFrame, spec: TableSpec) -> pl.Series:
    """The values of rows; ones where rows are counted."""
    if spec.counts_rows(table):
        return pl.repeat(1.0, table.height, eager=True).alias("value")
    return _numbers(column_of(table, spec.value, "the value")).alias("value")


def _numbers(column: pl.Series) -> pl.Series:
    """A column as finite numbers, or an error that names the row."""
    refuse_missing(column, f"value '{column.name}'")
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean)):
        raise DataError(f"column '{column.name}' holds {column.dtype}, not numbers")
    numbers = column.cast(pl.Float64, strict=False)
    if numbers.null_count():
        row = int(numbers.is_null().arg_max() or 0)
        raise DataError(f"row {row + 1}: the value '{column[row]}' in column '{column.name}' is not a number")
    finite = numbers.is_finite()
    if not finite.all():
        row = int((~finite).arg_max() or 0)
        raise DataError(f"row {row + 1}: the value in column '{column.name}' is {numbers[row]}; values must be finite")
    return numbers


def chunk_error(path: Path, error: Exception, start: int) -> DataError:
    """The error of a chunk that begins at row ``start``: names the file, and counts rows from its beginning."""
    return DataError(f"{path}: " + re.sub(r"\brow (\d+)", lambda row: f"row {int(row[1]) + start}", str(error)))


def refuse_missing(column: pl.Series, what: str) -> None:
    """Refuse a row without a label or value."""
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise DataError(f"row {row + 1} has nothing for {what}; fill it in or drop the row (is the file cut off?)")


def make_mode(expression: ModeExpression, labels: pl.Series) -> Mode:
    """The mode that labels make."""
    distinct = tuple(sort_labels(labels.unique().to_list()))
    return Mode(expression.name, len(distinct), distinct, expression.order or guess_order(expression.name, distinct))


def coded(labels: pl.Series, enum: pl.Enum) -> pl.Series:
    """Positions of labels, null for labels that a mode does not have."""
    return labels.cast(enum, strict=False).to_physical().cast(pl.Int64)


def _coded_or_unseen(labels: pl.Series, enum: pl.Enum) -> pl.Series:
    """Positions of labels, :data:`UNSEEN` for labels that a mode does not have.

    Uses only operations that stay in the calling thread: after ``os.fork`` polars' thread pool has no threads, and
    operations that need it, such as ``fill_null``, never return. Estimators are often used in forked workers.
    """
    codes = coded(labels, enum)
    return codes.zip_with(codes.is_not_null(), pl.Series([UNSEEN], dtype=pl.Int64).new_from_index(0, len(codes)))


def _numbered(labels: pl.Series, mode: Mode) -> NDArray[np.int64]:
    """Positions in a mode without labels: plain digits by column, other spellings of numbers (``1e3``) one by one."""
    digits = labels.cast(pl.String).str.extract("^([0-9]{1,15})$").cast(pl.Int64)
    numbers = digits.fill_null(UNSEEN).to_numpy()  # (rows,)
    codes = np.where(numbers < mode.size, numbers, UNSEEN)
    odd = numbers == UNSEEN
    if odd.any():
        codes[odd] = mode.encode(labels.filter(pl.Series(odd)).to_list())
    return codes


def merge_cells(cells: pl.DataFrame, rule: str, modes: Sequence[Mode]) -> pl.DataFrame:
    """One row per cell, sorted by index."""
    keys = [name for name in cells.columns if name != "value"]
    if rule == "error":
        repeated = cells.filter(cells.select(keys).is_duplicated())
        if repeated.height:
            cell = ", ".join(f"{m.name}={m.label(repeated[k][0])}" for m, k in zip(modes, keys, strict=True))
            raise DataError(
                f"{repeated.height:,} rows share their cell with another row, the first is {cell}; "
                "choose a rule: --duplicates sum, mean, count or last"
            )
        return cells.sort(keys)
    value = pl.col("value")
    rules = {"sum": value.sum(), "mean": value.mean(), "count": pl.len().cast(pl.Float64), "last": value.last()}
    return cells.group_by(keys, maintain_order=True).agg(rules[rule].alias("value")).sort(keys)
