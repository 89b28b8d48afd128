"""Parquet files, checked before polars reads them: it trusts offsets and sizes in a file, and a wrong one ends the
process.

The file: ``PAR1``, pages, metadata, the length of the metadata, ``PAR1``. Metadata and page headers are structures of
Thrift's compact protocol, whose fields have numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import polars as pl

from jointensor.data.formats.base import check_unpacked
from jointensor.data.formats.slices import height, slices
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

MAGIC = b"PAR1"
MAX_NESTING = 64
"""Depth of nested structures."""
BOOLEANS, BYTE, NUMBERS, DOUBLE, TEXT, LISTS, STRUCTURE = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
"""Types of fields in Thrift's compact protocol."""
ROW_GROUPS, ROWS = 4, 3
COLUMNS, GROUP_ROWS = 1, 3
FILE, COLUMN = 1, 3
VALUES, UNPACKED, PACKED, FIRST_PAGE, DICTIONARY = 5, 6, 7, 9, 11
"""Numbers of fields: of the file, of a row group, of a column chunk, and of its metadata."""
PAGE_UNPACKED, PAGE_PACKED, LABELS, PAGES = 2, 3, 7, (5, 7, 8)
"""Numbers of fields of a page header: its sizes, and the headers by type of page, whose first fields are counts."""
HEAD = 1 << 13
"""Bytes that are enough for a page header, unless it has long texts."""


def scan(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """A table, at most ``rows`` at a time; the first chunk is empty and has the columns."""
    return slices(_checked(path), rows)


def sink(table: pl.LazyFrame, path: Path) -> None:
    """Write a table as it is computed."""
    table.sink_parquet(path)


def count(path: Path, fields: int) -> int:
    """Rows."""
    return height(_checked(path))


def _checked(path: Path) -> pl.LazyFrame:
    check_parquet(path)
    return pl.scan_parquet(path, glob=False)


class _WrongError(Exception):
    """Metadata that do not match the file."""


class _Thrift:
    """Reads one structure as a dictionary of its fields."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def whole(self) -> int:
        """A whole number, seven bits to a byte."""
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift > 63:
                raise _WrongError("a number in its metadata does not end")

    def signed(self) -> int:
        """A whole number that may be negative."""
        number = self.whole()
        return (number >> 1) ^ -(number & 1)

    def skip(self, size: int) -> None:
        """Skip bytes."""
        if size > len(self.data) - self.at:
            raise _WrongError("its metadata end too early")
        self.at += size

    def structure(self, deep: int = 0) -> dict[int, Any]:
        """Fields by their numbers; those that are not needed are ``None``."""
        if deep > MAX_NESTING:
            raise _WrongError("its metadata do not end")
        fields: dict[int, Any] = {}
        number = 0
        while head := self.data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.signed()
            fields[number] = self.value(head & 15, deep)
        self.at += 1
        return fields

    def value(self, kind: int, deep: int, *, listed: bool = False) -> Any:
        """One field, or one item of a list."""
        if kind in BOOLEANS or kind == BYTE:
            self.skip(1 if listed or kind == BYTE else 0)
        elif kind in NUMBERS:
            return self.signed()
        elif kind == DOUBLE:
            self.skip(8)
        elif kind == TEXT:
            self.skip(self.whole())
            return True
        elif kind in LISTS:
            return self.listed(deep)
        elif kind == STRUCTURE:
            return self.structure(deep + 1)
        else:
            raise _WrongError("its metadata have a field of an unknown type")
        return None

    def listed(self, deep: int) -> list[Any]:
        """Items of a list."""
        head = self.data[self.at]
        self.at += 1
        count = head >> 4 if head >> 4 < 15 else self.whole()
        if count > len(self.data) - self.at or deep > MAX_NESTING:
            raise _WrongError("a list in its metadata does not end")
        return [self.value(head & 15, deep + 1, listed=True) for _ in range(count)]


def check_parquet(path: Path) -> None:
    """Refuse a file whose metadata do not match it, or that unpacks to far more than data do."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - 8, 0))
            tail = file.read(8)
            begin = end - 8 - struct.unpack_from("<I", tail)[0]
            if not tail.endswith(MAGIC) or begin < len(MAGIC):
                raise _WrongError("it is not a Parquet file")
            file.seek(begin)
            about = _Thrift(file.read(end - 8 - begin)).structure()
            _check_groups(path, file, about, begin)
    except (struct.error, IndexError, AttributeError, TypeError, KeyError) as error:
        raise DataError(f"{path} cannot be read as a table: its metadata are wrong ({error})") from None
    except (_WrongError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {error} (is the file cut off?)") from None


def _check_groups(path: Path, file: BinaryIO, about: dict[int, Any], end: int) -> None:
    """Check that every column chunk lies before ``end``, and that their unpacked size is plausible."""
    rows = unpacked = 0
    for group in about[ROW_GROUPS]:
        rows += group[GROUP_ROWS]
        for column in group[COLUMNS]:
            if FILE in column:
                raise _WrongError("its columns are in another file")
            known = column[COLUMN]
            first = min(known[FIRST_PAGE], known.get(DICTIONARY) or known[FIRST_PAGE])
            if first < len(MAGIC) or known[PACKED] < 0 or first + known[PACKED] > end:
                raise _WrongError("a column lies outside of it")
            if known[VALUES] < 0 or known[UNPACKED] < 0 or group[GROUP_ROWS] < 0:
                raise _WrongError("a column has a negative size")
            unpacked += max(known[UNPACKED], 8 * known[VALUES], 8 * group[GROUP_ROWS])
            check_unpacked(path, unpacked)
            _check_pages(file, (first, first + known[PACKED], end), known[VALUES])
    if rows != about[ROWS]:
        raise _WrongError("its row groups have another number of rows than the file")


def _check_pages(file: BinaryIO, places: tuple[int, int, int], values: int) -> None:
    """Check that the pages of a column chunk are contiguous, and that none has more values than the chunk.

    ``places``: where the pages begin, where they should end (old writers are off by a few bytes), and where all chunks
    end.
    """
    at, last, end = places
    while at < last:
        head, size = _page(file, at, end)
        counts = [part.get(1, 0) for kind in PAGES if isinstance(part := head.get(kind), dict)]
        # a dictionary may have more labels than there are values
        if min(head[PAGE_UNPACKED], head[PAGE_PACKED], *counts) < 0 or (
            LABELS not in head and max(counts, default=0) > values
        ):
            raise _WrongError("a page has an impossible size")
        at += size + head[PAGE_PACKED]
    if at > end:
        raise _WrongError("a page lies outside of it")


def _page(file: BinaryIO, at: int, end: int) -> tuple[dict[int, Any], int]:
    """A page header, and its length."""
    for length in (HEAD, end - at):
        file.seek(at)
        read = _Thrift(file.read(min(length, end - at)))
        try:
            return read.structure(), read.at
        except (IndexError, _WrongError):
            if length >= end - at:
                raise
    raise _WrongError("a page does not begin")
