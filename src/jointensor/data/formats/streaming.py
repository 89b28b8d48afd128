"""Tables that come and go in parts, so that memory does not grow with the file.

Queries are read, encoded and answered a chunk at a time. Some decisions belong to a whole table: whether a text column
holds numbers that an expression may reckon with, how dates are written, in which row an error is. Where a chunk
cannot know that it decides as the whole table would, :class:`NotInParts` is raised, and the caller reads all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import Full, Queue

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from jointensor.data.expressions import ModeExpression, as_numbers_where_possible, parse_sql
from jointensor.data.formats.arrow import check_arrow
from jointensor.data.formats.delimited import _named, _refuse_cut_line, first_line, guess_separator
from jointensor.data.formats.files import file_kind, query_spec
from jointensor.data.formats.parquet import check_parquet
from jointensor.data.frames import Encoder, TableSpec
from jointensor.data.modes import Mode
from jointensor.errors import DataError

Part = tuple[pl.DataFrame, NDArray[np.int64]]
"""Some rows of a table of queries as they were read, and their indices, ``(rows, modes)``."""

ROW_WISE = {
    "abs", "and", "between", "case", "cast", "ceil", "ceiling", "char_length", "coalesce", "concat", "concat_ws",
    "date", "date_part", "div", "else", "exp", "extract", "floor", "greatest", "if", "ifnull", "in", "initcap",
    "least", "left", "length", "ln", "log", "log10", "log2", "lower", "ltrim", "mod", "not", "nullif", "or", "pow",
    "power", "replace", "reverse", "right", "round", "rtrim", "sign", "sqrt", "strftime", "substr", "substring",
    "then", "trim", "try_cast", "upper", "when",
}  # fmt: skip
"""Words of SQL before a bracket that look at one row only; ``AVG(x)`` or ``RANK() OVER (…)`` need the whole table."""

PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", *(b"\x78" + bytes([level]) for level in (0x01, 0x5E, 0x9C, 0xDA)))
"""How files begin that are packed by gzip, zstd or zlib."""

_QUOTED = re.compile(r"""'(?:[^']|'')*'|"[^"]*\"""")


class NotInParts(Exception):
    """A table whose parts do not say enough; no error of the user's, since it can be read whole."""


def stream_queries(path: Path, modes: tuple[Mode, ...], spec: TableSpec | None, rows: int) -> Iterator[Part]:
    """The queries of a table in their order, at most ``rows`` at a time; one empty part where there are none.

    Raises
    ------
    NotInParts
        At any time: :func:`jointensor.data.formats.files.read_queries` then has to read the table whole, which also
        gives errors their row.
    """
    if not hasattr(pl.LazyFrame, "collect_batches"):
        raise NotInParts("this polars does not read in batches")
    try:
        encode: _PartEncoder | None = None
        for frame in read_in_parts(path, query_spec(path, spec), rows):
            encode = encode or _PartEncoder(frame, modes, spec)
            yield frame, encode(frame)
    except (DataError, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError) as error:
        raise NotInParts(str(error)) from error


def ahead(parts: Iterator[Part]) -> Generator[Part]:
    """The same parts; a thread makes the next one meanwhile, until the last one or until this is closed."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = pool.submit(next, parts, None)
            yield part


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> None:
    """Write a table that comes in parts, in the format that the file's name asks for; needs at least one part.

    A thread writes while the caller's iterator makes the next part.
    """
    parts = iter(frames)
    first = next(parts)
    ready: Queue[pl.DataFrame | None] = Queue(maxsize=1)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(_sink, ready, first.schema, path)
        try:
            for part in chain((first,), parts):
                _put(ready, part, written)
        finally:  # also when the iterator fails or is interrupted: the thread waits for an end
            _put(ready, None, written)
    written.result()


def _put(ready: Queue[pl.DataFrame | None], part: pl.DataFrame | None, written: Future[None]) -> None:
    """Hand a part over, unless nobody is there to take it any more."""
    while not written.done():
        try:
            return ready.put(part, timeout=0.1)
        except Full:
            continue
    written.result()
    return None


def _sink(ready: Queue[pl.DataFrame | None], schema: pl.Schema, path: Path) -> None:
    def parts(*_: object) -> Iterator[pl.DataFrame]:
        while (part := ready.get()) is not None:
            yield part

    table = register_io_source(parts, schema=schema)
    writers: dict[str, Callable[[Path], object]] = {
        "parquet": table.sink_parquet,
        "arrow": table.sink_ipc,
        "jsonl": table.sink_ndjson,
        "text": lambda place: table.sink_csv(place, separator="\t" if place.suffix == ".tsv" else ","),
    }
    try:
        writers[file_kind(path)](path)
    except pl.exceptions.PolarsError as error:
        raise OSError(str(error).strip().splitlines()[0]) from error


def read_in_parts(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """A table at most ``rows`` at a time; the first part is empty and shows the columns."""
    kind = file_kind(path)
    if kind == "text":
        yield from read_text_in_parts(path, spec, rows)
        return
    if kind == "jsonl" and any(sign in str(path) for sign in "*?["):
        raise NotInParts("polars would take the name for a pattern")
    if kind == "parquet":
        check_parquet(path)
        table = pl.scan_parquet(path, glob=False)
    else:
        if kind == "arrow":
            check_arrow(path)
        table = pl.scan_ipc(path, glob=False) if kind == "arrow" else pl.scan_ndjson(path, infer_schema_length=None)
    yield from _batches(table, rows)


TextParts = Callable[[Path, str, bool, pl.DataFrame], Iterator[pl.DataFrame]]
"""Reads a text table in parts, given its separator, whether it has a header, and its columns."""


def read_text_in_parts(
    path: Path, spec: TableSpec | None, rows: int, parts: TextParts | None = None
) -> Iterator[pl.DataFrame]:
    """Parts of a text table; blank lines are held back until something follows, since those at the end do not count."""
    with path.open("rb") as file:
        if file.read(4).startswith(PACKED):
            raise NotInParts("polars would unpack any amount of it")
    separator = (spec.separator if spec is not None else None) or guess_separator(path, first_line(path))
    header = spec is None or spec.header
    table = pl.scan_csv(path, separator=separator, has_header=header, infer_schema=False, glob=False)
    empty = table.collect_schema().to_frame()
    _refuse_cut_line(path, separator, empty)
    yield _named(path, empty, spec)
    held = empty
    for frame in _batches(table, rows) if parts is None else parts(path, separator, header, empty):
        filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
        end = int(filled[-1]) + 1 if len(filled) else 0
        if end:
            yield from _named(path, held, spec).iter_slices(rows)
            yield _named(path, frame.head(end), spec)
            held = empty
        held = pl.concat([held, frame.slice(end)])


def _batches(table: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    yield table.collect_schema().to_frame()
    yield from table.collect_batches(chunk_size=rows, maintain_order=True)


class PartKinds:
    """Sees to it that the text columns that expressions reckon with are taken alike in all parts of a table.

    Parameters
    ----------
    empty
        The table without its rows.
    expressions
        Of its modes.
    """

    def __init__(self, empty: pl.DataFrame, expressions: Iterable[ModeExpression]) -> None:
        self.reckoned = _reckoned(expressions, empty)
        """SQL expressions, those that may treat text as numbers."""
        self.telling: pl.DataFrame | None = None
        """Rows of the first part for which its columns are what they are: text, whole numbers or numbers."""
        self.kinds: list[pl.DataType] = []

    def whole(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """A part as it has to be evaluated: behind some rows of the first one; and how many these are."""
        if self.telling is None:
            self.telling, self.kinds = _telling(frame, self._text_columns(frame)), self._kinds(frame)
        whole = pl.concat([self.telling, frame]) if self.telling.height else frame
        if self._kinds(whole) != self.kinds:
            raise NotInParts("a column holds numbers in one part and text in another")
        return whole, self.telling.height

    def _text_columns(self, frame: pl.DataFrame) -> list[str]:
        names = dict.fromkeys(name for one in self.reckoned for name in one.meta.root_names())
        return [name for name in names if frame[name].dtype == pl.String]

    def _kinds(self, frame: pl.DataFrame) -> list[pl.DataType]:
        """What the text columns are for every expression that reads them."""
        return [as_numbers_where_possible(frame, one)[name].dtype for one in self.reckoned for name in _roots(one)]


class _PartEncoder:
    """Encodes one part after the other, as the whole table would be encoded."""

    def __init__(self, empty: pl.DataFrame, modes: tuple[Mode, ...], spec: TableSpec | None) -> None:
        self.encoder = Encoder(empty.columns, modes, spec)
        self.kinds = PartKinds(empty, self.encoder.expressions)

    def __call__(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        if not frame.height:
            return np.empty((0, len(self.encoder.modes)), dtype=np.int64)
        whole, before = self.kinds.whole(frame)
        indices, resolved = self.encoder.encode(whole)
        for one, after in zip(self.encoder.expressions, resolved, strict=True):
            if after.format not in (one.format, "date", "time"):
                raise NotInParts("dates are not written as in the training table")
        return indices[before:]


def _roots(expression: pl.Expr) -> list[str]:
    return list(dict.fromkeys(expression.meta.root_names()))


def _reckoned(expressions: Iterable[ModeExpression], table: pl.DataFrame) -> list[pl.Expr]:
    """The SQL among expressions; refuses what looks beyond its row, such as ``x - AVG(x)``."""
    found = []
    for one in expressions:
        if one.text in table.columns or one.order is not None:  # a column, or a short form for dates
            continue
        called = re.findall(r"(\w+)\s*\(", _QUOTED.sub(" ", one.text).lower())
        if not ROW_WISE.issuperset(called):
            raise NotInParts(f"{one.text} may look at other rows")
        found.append(parse_sql(one.text, table.columns))
    return found


def _telling(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """The first row of every column that is written like a code, that is no whole number, and that is no number."""
    rows: set[int] = set()
    for name in names:
        column = frame[name]
        tests = [column.str.contains(r"^[+-]?0\d").fill_null(value=False)]
        tests += [column.is_not_null() & column.cast(kind, strict=False).is_null() for kind in (pl.Int64, pl.Float64)]
        rows |= {int(test.arg_max() or 0) for test in tests if test.any()}
    return frame[sorted(rows)]
