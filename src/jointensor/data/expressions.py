"""Expressions of modes: a column, a short form for dates, or an SQL expression with a name.

    user                        a column
    date=day(Date/Time)         a short form, see jointensor.data.times
    lat=ROUND(Lat, 3)           a polars SQL expression over the columns

Expressions are stored with a run and applied again to raw queries. How dates are written, and which text columns hold
numbers, is decided once, by the training table. A run may come from an unknown author, so an expression can only use
row-wise functions of the columns, and the memory it takes is limited; both is checked before polars parses it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from jointensor.data.modes import Order
from jointensor.data.times import SHORT_FORMS, also_day_first, check_calendar, read_times
from jointensor.errors import DataError

_CALL = re.compile(r"(\w+)\((.*)\)$", re.DOTALL)
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_QUOTED = re.compile(_LITERAL.pattern + r'|"(?:[^"]|"")*"')
_HIDING = re.compile(r"""--|/\*|`|\\'|"\s*\(|\0""")
"""Comments, other kinds of quotes and quoted names of functions, which could hide a call from these checks."""
_QUERY = re.compile(r"\bSELECT\b|\(\s*(FROM|TABLE|VALUES|WITH)\b|\$")
_PAD = r"\b[LR]PAD\b"
_PAD_WIDTH = r"\s*\([^(),]*,\s*(\d{1,3})\s*[,)]"
_REPLACE = re.compile(r"\b(?:REGEXP_)?REPLACE\s*\(")

ROW_WISE = {
    "abs", "acos", "acosd", "and", "asin", "asind", "atan", "atan2", "atan2d", "atand", "between", "bit_and",
    "bit_count", "bit_length", "bit_not", "bit_or", "bit_xor", "case", "cast", "cbrt", "ceil", "ceiling", "char",
    "char_length", "character_length", "coalesce", "concat", "concat_ws", "cos", "cosd", "cot", "cotd", "date",
    "date_part", "decimal", "degrees", "div", "else", "ends_with", "exp", "extract", "floor", "greatest", "if",
    "ifnull", "ilike", "in", "initcap", "least", "left", "length", "like", "ln", "log", "log10", "log1p", "log2",
    "lower", "lpad", "ltrim", "mod", "normalize", "not", "nullif", "numeric", "octet_length", "or", "pi", "pow",
    "power", "radians", "regexp_like", "regexp_replace", "replace", "reverse", "right", "round", "rpad", "rtrim",
    "sign", "sin", "sind", "sqrt", "starts_with", "strftime", "strpos", "strptime", "substr", "substring", "tan",
    "tand", "then", "timestamp", "trim", "try_cast", "upper", "varchar", "when",
}  # fmt: skip
"""Words that may be followed by a bracket: functions and operators that look at one row only. A label depends on its
own row, since queries come one by one."""

MAX_LENGTH = 1000
"""Characters of an expression: polars walks it by recursion, and a full stack ends the process."""
MAX_BETWEEN = 4
"""BETWEENs in an expression: within each other they double the expression that polars evaluates."""
MAX_DEPTH = 8
"""Nested brackets: the time to parse their contents doubles with each."""
MAX_GROWTH = 1000
"""How many times longer than its arguments the REPLACEs of an expression may make a text, taken together."""
MAX_OUTPUT, MAX_OUTPUT_RATIO = 1 << 28, 20
"""Bytes of labels that an expression may produce from any table, and how many times the bytes of the columns it reads.
Labels are rarely longer than the text they are made of."""

NUMBERS: dict[str, Any] = {"Int64": pl.Int64, "Float64": pl.Float64, "String": pl.String}
"""Types that a text column may be read as in an expression, from narrow to wide."""


@dataclass(frozen=True)
class ModeExpression:
    """A named recipe for the labels of a mode."""

    name: str
    text: str
    format: str | None = None
    """How a short form's column is written; found when the training table is read."""
    types: dict[str, str] | None = None
    """What the columns of an SQL expression are read as where they are text, see :data:`NUMBERS`; found when the
    training table is read."""

    def __post_init__(self) -> None:
        texts = isinstance(self.name, str) and isinstance(self.text, str) and isinstance(self.format, str | None)
        kinds = list(self.types.values()) if isinstance(self.types, dict) else []
        types = isinstance(self.types, dict | None) and all(isinstance(one, str) and one in NUMBERS for one in kinds)
        if not (texts and types):
            raise DataError(f"a mode is a name, an expression, maybe a format and types of columns, not {self}")

    @classmethod
    def parse(cls, text: str) -> ModeExpression:
        """``"user"`` or ``"NAME=EXPRESSION"``.

        >>> ModeExpression.parse("date=day(Date/Time)")
        ModeExpression(name='date', text='day(Date/Time)', format=None, types=None)
        """
        name, sign, expression = text.partition("=")
        if not name.strip() or (sign and not expression.strip()):
            raise DataError(f"mode '{text}': write NAME=EXPRESSION or the name of a column")
        return cls(name.strip(), expression.strip() if sign else name.strip())

    @property
    def order(self) -> Order | None:
        """The order that a short form implies; ``None`` where it depends on the labels."""
        short = self._short_form()
        return None if short is None else SHORT_FORMS[short[0]][1]

    def columns(self, known: Iterable[str] = ()) -> list[str]:
        """The columns this expression reads; ``known`` are names that are columns even if they are words of SQL."""
        short = self._short_form()
        if short is not None:
            return [short[1]]
        try:
            return list(dict.fromkeys(parse_sql(self.text, known).meta.root_names()))
        except (pl.exceptions.PolarsError, DataError):
            return [self.text]  # a column whose name is no SQL

    def evaluate(self, frame: pl.DataFrame) -> tuple[pl.Series, ModeExpression, list[str]]:
        """Labels of every row as text, the expression as it was resolved, and notes for the user."""
        if self.text in frame.columns:
            return as_labels(frame[self.text]), self, []
        short = self._short_form()
        if short is not None:
            return self._evaluate_short(frame, *short)
        if self.text == self.name:
            return as_labels(column_of(frame, self.name, f"mode '{self.name}'")), self, []
        resolved = self if self.types is not None else resolve_types([self], [frame])[0]
        return as_labels(resolved._evaluate_sql(frame)), resolved, []

    def text_columns(self, frame: pl.DataFrame) -> list[str]:
        """Text columns of an SQL expression, which may hold numbers."""
        return [name for name in self.sql_columns(frame) if frame.schema[name] == pl.String]

    def sql_columns(self, frame: pl.DataFrame) -> list[str]:
        """Columns of an SQL expression; none of other expressions."""
        if self.text in (self.name, *frame.columns) or self._short_form() is not None:
            return []
        return [name for name in self.columns(frame.columns) if name in frame.columns]

    def _short_form(self) -> tuple[str, str] | None:
        call = _CALL.match(self.text)
        if call is None or call[1].lower() not in SHORT_FORMS:
            return None
        return call[1].lower(), call[2].strip().strip('"')

    def _evaluate_short(
        self, frame: pl.DataFrame, function: str, name: str
    ) -> tuple[pl.Series, ModeExpression, list[str]]:
        column = column_of(frame, name, f"mode '{self.name}'")
        times, format_ = read_times(column, self.format)
        notes = []
        if self.format is None and also_day_first(column, format_):
            notes.append(
                f"column '{name}' was read month first ({format_}), though it could be day first; "
                "rewrite it as year-month-day if that is wrong"
            )
        try:
            labels = SHORT_FORMS[function][0](times)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # years that no calendar has
            raise DataError(f"column '{name}' has times that cannot be used: {_first_line(error)}") from None
        return labels, replace(self, format=format_), notes

    def _evaluate_sql(self, frame: pl.DataFrame) -> pl.Series:
        what = f"mode '{self.name}={self.text}'"
        try:
            expression = parse_sql(self.text, frame.columns)
            _check_output(self.text, expression, frame)
            labels = _select(frame, expression, self.types or {})
        except pl.exceptions.ColumnNotFoundError as error:
            raise DataError(f"{what}: {_first_line(error)}") from None
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, DataError) as error:
            raise DataError(
                f"{what} is neither a column ({_list(frame)}) nor an expression that can be evaluated: "
                f"{_first_line(error)}{_no_number(frame, self.columns(frame.columns))}"
            ) from None
        if len(labels) != frame.height:
            raise DataError(f"{what} gives {len(labels)} labels for {frame.height} rows; one per row is needed")
        return labels.cast(pl.Float64) if labels.dtype.is_decimal() else labels  # n * 0.5 is decimal for whole n only


def resolve_types(expressions: Sequence[ModeExpression], frames: Iterable[pl.DataFrame]) -> list[ModeExpression]:
    """Expressions with the types of their columns, decided by all rows of a table, given in chunks.

    Columns of numbers count too: the same column may be text in a table of queries.
    """
    types: list[dict[str, str]] = [{} for _ in expressions]
    for frame in frames:
        for one, found in zip(expressions, types, strict=True):
            for name in one.sql_columns(frame):
                if frame.schema[name] == pl.String or frame.schema[name].is_numeric():
                    found[name] = max(found.get(name, "Int64"), number_type(frame[name]), key=list(NUMBERS).index)
    return [
        replace(one, types=found) if one.types is None and found else one
        for one, found in zip(expressions, types, strict=True)
    ]


def number_type(column: pl.Series) -> str:
    """The narrowest type that a column can be read as; codes such as ``01001`` are no numbers."""
    if column.dtype.is_numeric():
        return "Int64" if column.dtype.is_integer() else "Float64"
    if not column.str.contains(r"^[+-]?0\d").any():
        for name in ("Int64", "Float64"):
            if column.cast(NUMBERS[name], strict=False).null_count() == column.null_count():
                return name
    return "String"


def quote_names(text: str, names: Iterable[str]) -> str:
    r"""An SQL text with the given names in quotes, since names such as ``user`` or ``date`` are words of SQL too.

    >>> quote_names("user = 'user' AND day < 3", ["user", "day"])
    '"user" = \'user\' AND "day" < 3'
    """
    known = set(names)
    pieces = re.split(r"""('(?:[^']|'')*'|"[^"]*"|\b[A-Za-z_]\w*\b(?!\s*\())""", text)
    return "".join(f'"{piece}"' if piece in known else piece for piece in pieces)


def parse_sql(text: str, names: Iterable[str]) -> pl.Expr:
    """Parse an SQL expression over columns; refuses access to other data and unlimited memory.

    Parameters
    ----------
    text
        The expression.
    names
        The columns, which may be called like words of SQL.

    Raises
    ------
    DataError
        If it is no single expression over the columns.
    """
    if len(text) > MAX_LENGTH:
        raise DataError(f"'{text[:40]}…' has {len(text):,} characters; an expression has at most {MAX_LENGTH:,}")
    if _HIDING.search(text):
        raise DataError(f"'{text}': write an expression without comments, and without quotes other than '…' and \"…\"")
    bare = _QUOTED.sub(" ", text).upper()  # as polars compares words
    if _QUERY.search(bare):
        raise DataError(f"'{text}' holds a query; write an expression over the columns of the table alone")
    if bare.count("BETWEEN") > MAX_BETWEEN or _depth(bare) > MAX_DEPTH:
        raise DataError(f"'{text}': write BETWEEN at most {MAX_BETWEEN} times, and at most {MAX_DEPTH} nested brackets")
    called = {word.lower() for word in re.findall(r"(\w+)\s*\(", bare)} - ROW_WISE
    if called:
        raise DataError(
            f"'{text}': unsupported function '{min(called)}'; a label is made of its own row, by functions of it"
        )
    if re.search(f"{_PAD}(?!{_PAD_WIDTH})", text.upper()):
        raise DataError(f"'{text}': pad a column to a plain number below 1,000")
    if growth(text) > MAX_GROWTH:
        raise DataError(
            f"'{text}': its REPLACEs may make a text {growth(text):,} times longer; at most {MAX_GROWTH:,} times is "
            "allowed"
        )
    try:
        return pl.sql_expr(quote_names(text, names))
    except (pl.exceptions.PanicException, OSError) as error:  # polars gives up; a file, though none may be named
        raise DataError(f"'{text}' cannot be read as an expression: {_first_line(error)}") from None


def growth(text: str) -> int:
    """How many times longer the REPLACEs of an expression can make a text, at most."""
    factor = 1
    for call in _REPLACE.finditer(text.upper()):
        given = [_literal(one) for one in _arguments(text, call.end())]
        if len(given) < 3 or given[2] is None:
            raise DataError(f"'{text}': the third argument of REPLACE must be a text in single quotes")
        old, new = given[1], given[2]
        # an empty text, and some regular expressions, match between any two characters
        anywhere = not old or call[0].startswith("REGEXP")
        factor *= 1 + len(new) if anywhere or not old else max(1, math.ceil(len(new) / len(old)))
    return factor


def _arguments(text: str, start: int) -> list[str]:
    """Arguments of a call whose bracket opens before ``start``."""
    depth, begin, found = 1, start, []
    for token in re.finditer(r"""'(?:[^']|'')*'|"[^"]*"|[(),]""", text[start:]):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth or (token[0] == "," and depth == 1):
            found.append(text[begin : start + token.start()])
            begin = start + token.end()
        if not depth:
            break
    return found


def _literal(argument: str) -> bytes | None:
    """The text of an argument that is a literal."""
    plain = argument.strip()
    return plain[1:-1].replace("''", "'").encode() if _LITERAL.fullmatch(plain) else None


def _check_output(text: str, expression: pl.Expr, frame: pl.DataFrame) -> None:
    """Refuse an expression that may produce far more text than its columns hold."""
    names = [name for name in expression.meta.root_names() if name in frame.columns]
    sizes = {name: int(frame[name].estimated_size()) for name in set(names)}
    widths = [int(width) for width in re.findall(f"{_PAD}{_PAD_WIDTH}", text.upper())]
    formats = 16 if "%" in text else 1  # a directive of a date format, of two characters, writes up to 30
    literals = formats * sum(len(literal.encode()) for literal in _LITERAL.findall(text)) + sum(widths)
    output = growth(text) * (sum(sizes[name] for name in names) + frame.height * literals)
    if output > max(MAX_OUTPUT, MAX_OUTPUT_RATIO * sum(sizes.values())):
        raise DataError(
            f"it may produce up to {output:,} bytes of labels from {sum(sizes.values()):,} bytes of columns; "
            "use fewer or shorter texts in it"
        )


def _depth(text: str) -> int:
    """Depth of nested brackets."""
    depth = deepest = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    return deepest


def column_of(frame: pl.DataFrame, name: str, what: str) -> pl.Series:
    """A column by name, or an error that lists the columns."""
    if name not in frame.columns:
        raise DataError(f"{what}: there is no column '{name}'; the columns are {_list(frame)}")
    return frame[name]


def _select(frame: pl.DataFrame, expression: pl.Expr, types: dict[str, str]) -> pl.Series:
    """The expression over the columns as numbers, or as text where it is about text, as ``LEFT(zip, 2)`` is."""
    try:
        return _cast(frame, types).select(expression).to_series()
    except pl.exceptions.ColumnNotFoundError:
        raise
    except pl.exceptions.PolarsError as error:
        try:
            return frame.select(expression).to_series()
        except pl.exceptions.PolarsError:
            raise error from None


def _cast(frame: pl.DataFrame, types: dict[str, str]) -> pl.DataFrame:
    """The frame with text columns as numbers; texts that are none become null."""
    given = {name: NUMBERS[kind] for name, kind in types.items() if frame.schema.get(name) == pl.String}
    return frame.with_columns(frame[name].cast(kind, strict=False) for name, kind in given.items())


def as_numbers_where_possible(frame: pl.DataFrame, expression: pl.Expr) -> pl.DataFrame:
    """The frame with those text columns that the expression reads as numbers, if all their values are."""
    names = [name for name in dict.fromkeys(expression.meta.root_names()) if frame.schema.get(name) == pl.String]
    return _cast(frame, {name: number_type(frame[name]) for name in names})


def as_labels(column: pl.Series) -> pl.Series:
    """A column as label text: text as written, whole numbers without a fraction, dates by ISO 8601."""
    if column.dtype == pl.String:
        return column
    if column.dtype.is_nested():
        raise DataError(f"column '{column.name}' of type {column.dtype} cannot be used as labels")
    if column.dtype.is_float():
        column = column.set(~column.is_finite(), None)
        whole = column.cast(pl.Int64, strict=False)
        # a null in the mask chooses the column's text, which is null there; fill_null would use polars' threads
        same = whole.cast(pl.Float64) == column.cast(pl.Float64)
        return whole.cast(pl.String).zip_with(same, column.cast(pl.String))
    if isinstance(column.dtype, pl.Date | pl.Datetime):
        check_calendar(column)
    try:
        if isinstance(column.dtype, pl.Datetime):
            return column.dt.strftime("%Y-%m-%d %H:%M:%S%.f" + ("%:z" if column.dtype.time_zone else ""))
        return column.cast(pl.String)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # also years that no calendar has
        raise DataError(f"column '{column.name}' of type {column.dtype} cannot be used as labels") from None


def _no_number(frame: pl.DataFrame, names: list[str]) -> str:
    """Names the first row whose text keeps a column from being numeric."""
    for name in names:
        if name in frame.columns and frame[name].dtype == pl.String:
            text = frame[name].cast(pl.Float64, strict=False).is_null() & frame[name].is_not_null()
            if text.any() and not text.all():
                row = int(text.arg_max() or 0)
                return f" (row {row + 1}: '{frame[name][row]}' in column '{name}' is not a number)"
    return ""


def _list(frame: Any) -> str:
    return ", ".join(frame.columns)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
