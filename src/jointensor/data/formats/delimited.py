"""Delimited text, plain or gzipped: every column is text, as it is written. The format of any unknown suffix."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import polars as pl

from jointensor.data.formats.base import GZIP, first_bytes, is_gzip, line_chunks, max_rows
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

_PACKED = (GZIP, b"x\x01", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
"""How files begin that polars would unpack, whatever their size: gzip, zlib and zstd."""
_TAIL = 1 << 16
_SNIFFED = 1 << 12
"""Characters that are enough to guess a separator; the guess takes long for long lines."""


def sink(table: pl.LazyFrame, path: Path) -> None:
    """Write a table as it is computed; ``.tsv`` with tabs, any other name with commas."""
    table.sink_csv(path, separator="\t" if path.suffix == ".tsv" else ",")


def count(path: Path, fields: int) -> int:
    """Rows, at most."""
    return max_rows(path, fields)


def _separator(path: Path, spec: TableSpec | None) -> str:
    return (spec.separator if spec is not None else None) or guess_separator(path, first_line(path))


def scan(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """A table, at most ``rows`` at a time; the first chunk is empty and has the columns.

    Blank rows are held back until another row follows, since blank rows at the end do not count.
    """
    separator = _separator(path, spec)
    empty = blank = None
    height = 0
    for text in line_chunks(path, quoted=True):
        frame = _parse(text, separator, has_header=spec is None or spec.header, columns=empty)
        if empty is None or blank is None:
            empty = blank = frame.clear()
            yield _named(path, empty, spec)
        filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
        end = int(filled[-1]) + 1 if len(filled) else 0
        if end:
            for part in (blank, frame.head(end)):
                height += part.height
                yield from _named(path, part, spec).iter_slices(rows)
            blank = empty
        blank = pl.concat([blank, frame.slice(end)])
    if empty is None:
        raise DataError(f"{path} is empty")
    _refuse_cut_line(path, separator, empty.width, height)


def _parse(text: bytes, separator: str, *, has_header: bool, columns: pl.DataFrame | None) -> pl.DataFrame:
    """Some lines as a table; the first lines may have a header, later ones have the ``columns`` of the first."""
    if columns is None:
        return pl.read_csv(io.BytesIO(text), separator=separator, has_header=has_header, infer_schema=False)
    # a header of our own: without one, a short first line would decide how many columns there are
    header = separator.join(f"c{n}" for n in range(columns.width)).encode()
    frame = pl.read_csv(io.BytesIO(header + b"\n" + text), separator=separator, infer_schema=False)
    return frame.rename(dict(zip(frame.columns, columns.columns, strict=True)))


def _named(path: Path, frame: pl.DataFrame, spec: TableSpec | None) -> pl.DataFrame:
    """Columns by the names the user gave; ``column_1``, ``column_2`` … where there is no header either."""
    if spec is None or (spec.header and spec.columns is None):
        return frame
    names = spec.columns or tuple(f"column_{n + 1}" for n in range(frame.width))
    if len(names) != frame.width:
        raise DataError(f"{path} has {frame.width} columns, but --columns names {len(names)}")
    if len(set(names)) != len(names):
        raise DataError(f"--columns must name every column of {path} differently, got {', '.join(names)}")
    return frame.rename(dict(zip(frame.columns, names, strict=True)))


def first_line(path: Path) -> str:
    """The first line of a text file; refuses files that are not text."""
    block = first_bytes(path, _TAIL)
    if block.startswith(_PACKED):
        raise DataError(f"{path} is packed (twice, or not by gzip); unpack it first")
    if b"\0" in block:
        raise DataError(f"{path} is not text: it holds zero bytes (if it is an archive, unpack it first)")
    line, end, _ = block.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    try:
        return line.decode("utf-8", errors="strict" if end or len(block) < _TAIL else "replace").rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(f"{path} cannot be read as a table: line 1 is not UTF-8 text") from None


def guess_separator(path: Path, line: str) -> str:
    """The separator of delimited text, from its name or its first line."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    usual = {".csv": ",", ".tsv": "\t"}.get(suffix)
    if usual is not None and usual in line:  # a .csv may well be separated by semicolons
        return usual
    try:
        return csv.Sniffer().sniff(line[:_SNIFFED], delimiters="\t,;|").delimiter
    except csv.Error:
        return ","


def fields_of(line: str, separator: str) -> list[str]:
    """The fields of one line."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:  # a line end of another kind, a field without an end
        return [line]


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def explain(path: Path, spec: TableSpec | None) -> str | None:
    """Names the first line that is not like the first one; ``None`` where all are."""
    separator, start, width = _separator(path, spec), 1, 0
    with _open(path) as file:
        rows = csv.reader(_decoded(file), delimiter=separator, strict=True)
        try:
            for row in rows:
                width = width or len(row)
                if len(row) > width:
                    return f"line {start} has {len(row)} fields, the first line has {width}"
                start = rows.line_num + 1
        except csv.Error:
            return f"line {start}: a quoted field does not end (is the file cut off?)"
        except UnicodeDecodeError:
            return f"line {rows.line_num + 1} is not UTF-8 text"
        except (OSError, EOFError, zlib.error) as error:
            return f"{error} (is the file cut off?)"
    return None


def _decoded(file: IO[bytes]) -> Iterator[str]:
    for line in file:
        yield line.decode("utf-8")


def _refuse_cut_line(path: Path, separator: str, width: int, height: int) -> None:
    """Refuse a last line that has neither all its fields nor a line end, even where those fields are not needed."""
    with _open(path) as file:
        if isinstance(file, gzip.GzipFile):
            return  # a gzipped file that was cut does not unpack
        file.seek(max(0, path.stat().st_size - _TAIL))
        line = file.read().rpartition(b"\n")[2].decode("utf-8", errors="replace")
    if line and '"' not in line and line.count(separator) + 1 < width:
        raise DataError(
            f"{path}: the last row ({height}) has {line.count(separator) + 1} of {width} fields "
            "and no line end: the file is cut off"
        )
