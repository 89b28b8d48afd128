"""Mode expressions chunk by chunk: which can be evaluated so, and how a chunk is taken as the whole table would be.

Some decisions belong to a whole table: whether a text column holds numbers, how dates are written. Where a chunk cannot
know that it decides as the whole table would, :class:`~jointensor.data.formats.base.NeedsWholeTable` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from jointensor.data.expressions import ModeExpression, as_numbers_where_possible, parse_sql
from jointensor.data.formats.base import NeedsWholeTable

ROW_WISE = {
    "abs", "and", "between", "case", "cast", "ceil", "ceiling", "char_length", "coalesce", "concat", "concat_ws",
    "date", "date_part", "div", "else", "exp", "extract", "floor", "greatest", "if", "ifnull", "in", "initcap",
    "least", "left", "length", "ln", "log", "log10", "log2", "lower", "ltrim", "mod", "not", "nullif", "or", "pow",
    "power", "replace", "reverse", "right", "round", "rtrim", "sign", "sqrt", "strftime", "substr", "substring",
    "then", "trim", "try_cast", "upper", "when",
}  # fmt: skip
"""Words of SQL before a bracket that look at one row only; ``AVG(x)`` or ``RANK() OVER (…)`` need the whole table."""

_QUOTED = re.compile(r"""'(?:[^']|'')*'|"[^"]*\"""")


class ChunkTypes:
    """Gives the text columns of expressions the same type, text or numbers, in all chunks of a table.

    Parameters
    ----------
    empty
        The table without its rows.
    expressions
        The expressions of its modes.
    """

    def __init__(self, empty: pl.DataFrame, expressions: Iterable[ModeExpression]) -> None:
        self.calculations = _calculations(expressions, empty)
        """SQL expressions, which may treat text as numbers."""
        self.witnesses: pl.DataFrame | None = None
        """Rows of the first chunk that determine the types of its columns: text, whole numbers or numbers."""
        self.types: list[pl.DataType] = []

    def with_witnesses(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """A chunk behind the rows of the first one that determine types, and the number of these rows."""
        if self.witnesses is None:
            self.witnesses, self.types = _witnesses(frame, self._text_columns(frame)), self._types(frame)
        whole = pl.concat([self.witnesses, frame]) if self.witnesses.height else frame
        if self._types(whole) != self.types:
            raise NeedsWholeTable("a column holds numbers in one chunk and text in another")
        return whole, self.witnesses.height

    def _text_columns(self, frame: pl.DataFrame) -> list[str]:
        names = dict.fromkeys(name for one in self.calculations for name in one.meta.root_names())
        return [name for name in names if frame[name].dtype == pl.String]

    def _types(self, frame: pl.DataFrame) -> list[pl.DataType]:
        """Types of the text columns for every expression that reads them."""
        return [as_numbers_where_possible(frame, one)[name].dtype for one in self.calculations for name in _roots(one)]


def _roots(expression: pl.Expr) -> list[str]:
    return list(dict.fromkeys(expression.meta.root_names()))


def _calculations(expressions: Iterable[ModeExpression], table: pl.DataFrame) -> list[pl.Expr]:
    """The SQL expressions; refuses those that look beyond their row, such as ``x - AVG(x)``."""
    found = []
    for one in expressions:
        if one.text in table.columns or one.order is not None:  # a column, or a short form for dates
            continue
        called = re.findall(r"(\w+)\s*\(", _QUOTED.sub(" ", one.text).lower())
        if not ROW_WISE.issuperset(called):
            raise NeedsWholeTable(f"{one.text} may look at other rows")
        found.append(parse_sql(one.text, table.columns))
    return found


def _witnesses(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """The first rows in which a column is written like a code, is no whole number, or is no number."""
    rows: set[int] = set()
    for name in names:
        column = frame[name]
        tests = [column.str.contains(r"^[+-]?0\d").fill_null(value=False)]
        tests += [column.is_not_null() & column.cast(kind, strict=False).is_null() for kind in (pl.Int64, pl.Float64)]
        rows |= {int(test.arg_max() or 0) for test in tests if test.any()}
    return frame[sorted(rows)]
