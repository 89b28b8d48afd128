"""Delimited text, plain or gzipped: every column is text, as it is written."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import polars as pl

from jointensor.data.formats.reading import unpack_gzip
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

_GZIP = b"\x1f\x8b"
_PACKED = (_GZIP, b"x\x01", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
"""What polars would unpack by itself, however large it becomes: gzip, zlib and zstd."""
_TAIL = 1 << 16
_SNIFFED = 1 << 12
"""Characters that are enough to guess a separator; the guess takes long for long lines."""


def read_text(path: Path, spec: TableSpec | None = None) -> pl.DataFrame:
    """A table; blank lines at its end are left out."""
    line = first_line(path)
    separator = (spec.separator if spec is not None else None) or guess_separator(path, line)
    header = spec is None or spec.header
    try:
        source = io.BytesIO(unpack_gzip(path)) if _is_gzip(path) else path
        frame = pl.read_csv(source, separator=separator, has_header=header, infer_schema=False, glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = _wrong_line(path, separator) or (str(error).strip().splitlines() or ["polars gives up"])[0]
        raise DataError(f"{path} cannot be read as a table: {reason}") from None
    frame = _without_blank_end(frame)
    _refuse_cut_line(path, separator, frame)
    return _named(path, frame, spec)


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
    try:
        with _open(path) as file:
            block = file.read(_TAIL)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked: {error} (is the file cut off?)") from None
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
    return gzip.open(path) if _is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def _wrong_line(path: Path, separator: str) -> str | None:
    """Says which line is not like the first; ``None`` where all are."""
    start, width = 1, 0
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


def _without_blank_end(frame: pl.DataFrame) -> pl.DataFrame:
    filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
    return frame.head(int(filled[-1]) + 1 if len(filled) else 0)


def _refuse_cut_line(path: Path, separator: str, frame: pl.DataFrame) -> None:
    """Refuse a last line that has neither all its fields nor a line end, even where those fields are not needed."""
    with _open(path) as file:
        if isinstance(file, gzip.GzipFile):
            return  # a gzipped file that was cut does not unpack
        file.seek(max(0, path.stat().st_size - _TAIL))
        line = file.read().rpartition(b"\n")[2].decode("utf-8", errors="replace")
    if line and '"' not in line and line.count(separator) + 1 < frame.width:
        raise DataError(
            f"{path}: the last row ({frame.height}) has {line.count(separator) + 1} of {frame.width} fields "
            "and no line end: the file is cut off"
        )
