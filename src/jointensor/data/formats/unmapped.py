"""Tables in parts without mapped files: pages of a file that polars maps count as memory, all of them in the end.

Text is read in blocks that end with a line; of Parquet and Arrow files one slice is open at a time.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from jointensor.data.formats.arrow import check_arrow
from jointensor.data.formats.files import file_kind
from jointensor.data.formats.parquet import check_parquet
from jointensor.data.formats.reading import check_unpacked
from jointensor.data.formats.streaming import NotInParts, read_text_in_parts
from jointensor.data.frames import TableSpec
from jointensor.errors import DataError

CHUNK = 1 << 24
"""Bytes of a text file that are read at a time."""


def read_plainly(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """A table in parts, as :func:`~jointensor.data.formats.streaming.read_in_parts`; text by blocks of bytes."""
    kind = file_kind(path)
    if kind == "text":
        yield from read_text_in_parts(path, spec, rows, _text_parts)
    elif kind == "jsonl":
        yield from _json_parts(path)
    else:
        check_parquet(path) if kind == "parquet" else check_arrow(path)
        table = pl.scan_parquet(path, glob=False) if kind == "parquet" else pl.scan_ipc(path, glob=False)
        yield table.collect_schema().to_frame()
        for start in range(0, int(table.select(pl.len()).collect().item()), rows):
            yield table.slice(start, rows).collect()


def _text_parts(path: Path, separator: str, header: bool, empty: pl.DataFrame) -> Iterator[pl.DataFrame]:  # noqa: FBT001 - as the table has it
    for chunk in line_chunks(path, quoted=True):
        if header:
            yield pl.read_csv(io.BytesIO(chunk), separator=separator, infer_schema=False)
        elif chunk.strip():
            schema = empty.schema
            yield pl.read_csv(io.BytesIO(chunk), separator=separator, has_header=False, schema=schema)
        else:
            yield empty.clear(chunk.count(b"\n"))  # blank lines: rows without anything
        header = False


def _json_parts(path: Path) -> Iterator[pl.DataFrame]:
    """Types are those that all lines have in common, as if they were read at once."""
    heads = (pl.read_ndjson(chunk, infer_schema_length=None).clear() for chunk in line_chunks(path) if chunk.strip())
    empty = next(heads, pl.DataFrame())
    for head in heads:
        empty = pl.concat([empty, head], how="diagonal_relaxed")
    yield empty
    for chunk in line_chunks(path):
        if chunk.strip():
            yield pl.read_ndjson(chunk, schema=empty.schema)


def line_chunks(path: Path, *, quoted: bool = False) -> Iterator[bytes]:
    """Whole lines of a text file, plain or gzipped, some at a time; ``quoted``: fields in quotes may hold lines."""
    rest, size = b"", 0
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            while block := file.read(CHUNK):
                size += len(block)
                if packed:
                    check_unpacked(path, size)
                data = rest + block
                cut = _end_of_line(data, quoted=quoted)
                if len(data) - cut > 2 * CHUNK:
                    raise NotInParts(f"there is a line, or a field in quotes, of more than {2 * CHUNK:,} bytes")
                rest = data[cut:]
                if cut:
                    yield data[:cut]
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error} (is the file cut off?)") from None
    if rest:
        yield rest


def _end_of_line(data: bytes, *, quoted: bool) -> int:
    """Where the last whole line ends."""
    cut = data.rfind(b"\n") + 1
    while quoted and cut and data.count(b'"', 0, cut) % 2:
        cut = data.rfind(b"\n", 0, cut - 1) + 1
    return cut
