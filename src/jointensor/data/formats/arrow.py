"""Arrow files, checked before polars reads them: it trusts offsets and sizes in a file, and a wrong one ends the
process.

The file: ``ARROW1``, messages (metadata and a body each), a footer with their positions, ``ARROW1``. Metadata are
FlatBuffers: tables whose fields are looked up by number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import polars as pl

from jointensor.data.formats.base import check_unpacked
from jointensor.data.formats.slices import height, slices
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

MAGIC = b"ARROW1"
BLOCK, PAIR = struct.Struct("<qi4xq"), struct.Struct("<qq")
"""Position of a message (offset, length of its metadata and of its body); an offset and a length, or two counts."""
DICTIONARY, BATCH = 2, 3
"""Types of messages that have a body."""


def scan(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """A table, at most ``rows`` at a time; the first chunk is empty and has the columns."""
    return slices(_checked(path), rows)


def sink(table: pl.LazyFrame, path: Path) -> None:
    """Write a table as it is computed."""
    table.sink_ipc(path)


def count(path: Path, fields: int) -> int:
    """Rows."""
    return height(_checked(path))


def _checked(path: Path) -> pl.LazyFrame:
    check_arrow(path)
    return pl.scan_ipc(path, glob=False)


class _Table:
    """A table of a FlatBuffer; offsets outside of the bytes raise ``struct.error``."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.lookup = at - self.number("<i", at)
        self.size = self.number("<H", self.lookup)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """The outermost table."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def number(self, kind: str, at: int) -> int:
        """A whole number at an offset."""
        if at < 0:
            raise struct.error("an offset before the beginning")
        return int(struct.unpack_from(kind, self.data, at)[0])

    def place(self, field: int) -> int | None:
        """Offset of a field; ``None`` if it is absent."""
        at = 4 + 2 * field
        offset = self.number("<H", self.lookup + at) if at + 2 <= self.size else 0
        return self.at + offset if offset else None

    def value(self, field: int, kind: str) -> int:
        """A number; 0 if it is absent."""
        at = self.place(field)
        return 0 if at is None else self.number(kind, at)

    def table(self, field: int) -> _Table | None:
        """A table within."""
        at = self.place(field)
        return None if at is None else _Table(self.data, at + self.number("<I", at))

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """Begin and length of a vector whose items take ``size`` bytes."""
        at = self.place(field)
        if at is None:
            return 0, 0
        begin = at + self.number("<I", at)
        count = self.number("<I", begin)
        if begin + 4 + count * size > len(self.data):
            raise struct.error("a list that does not end")
        return begin + 4, count

    def items(self, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Structures of a vector."""
        begin, count = self.vector(field, kind.size)
        return (kind.unpack_from(self.data, begin + n * kind.size) for n in range(count))


def check_arrow(path: Path) -> None:
    """Refuse a file whose metadata do not match it, or that unpacks to far more than data do."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            begin = file.read(8)
            file.seek(max(end - 10, 0))
            tail = file.read(10)
            if not begin.startswith(MAGIC) or not tail.endswith(MAGIC) or end < 20:
                raise struct.error("it is not an Arrow file (a stream of Arrow has to be written as a file)")
            last = end - 10 - struct.unpack_from("<i", tail)[0]  # where the footer begins
            if not 8 <= last < end - 10:
                raise struct.error("its footer has an impossible length")
            file.seek(last)
            footer, unpacked = _Table.root(file.read(end - 10 - last)), 0
            for field, kind in ((2, DICTIONARY), (3, BATCH)):
                for offset, length, body in footer.items(field, BLOCK):
                    if offset < 8 or length < 8 or body < 0 or offset + length + body > last:
                        raise struct.error("a message lies outside of it")
                    file.seek(offset)
                    batch = _batch_of(file.read(length), kind, body)
                    unpacked += _unpacked(file, batch, offset + length, body)
                    check_unpacked(path, unpacked)
    except (struct.error, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {error} (is the file cut off?)") from None


def _batch_of(message: bytes, kind: int, body: int) -> _Table:
    """Metadata of a batch of rows, or of the labels of a dictionary."""
    mark, size = struct.unpack_from("<Ii", message)
    begin = 8 if mark == 0xFFFFFFFF else 4  # files of Arrow before 0.15 have no mark
    if not 0 < (size if begin == 8 else mark) <= len(message) - begin:
        raise struct.error("a message has an impossible length")
    table = _Table.root(message[begin:])
    head = table.table(2)
    if head is not None and kind == DICTIONARY:
        head = head.table(1)
    if head is None or table.value(1, "<B") != kind or table.value(3, "<q") != body:
        raise struct.error("a message does not match the footer")
    return head


def _unpacked(file: BinaryIO, batch: _Table, begin: int, body: int) -> int:
    """Bytes that a batch takes in memory, at most eight for a number of a column; refuses what its body cannot hold."""
    rows, packed = batch.value(0, "<q"), batch.place(3) is not None
    if rows < 0:
        raise struct.error("a message has a negative number of rows")
    total = 0
    for length, missing in batch.items(1, PAIR):
        if length < 0 or not 0 <= missing <= length:
            raise struct.error("a column has an impossible number of rows")
        total += 8 * length
    for offset, length in batch.items(2, PAIR):
        if offset < 0 or length < 0 or offset + length > body:
            raise struct.error("a column lies outside of its message")
        if packed and length:
            file.seek(begin + offset)
            size = struct.unpack("<q", file.read(8))[0]
            if size < -1 or length < 8:
                raise struct.error("a packed column has an impossible length")
            total += max(size, 0)
    return total
