"""JSON lines: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from jointensor.data.formats.base import line_chunks, max_rows

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec


def scan(path: Path, spec: TableSpec | None, rows: int) -> Iterator[pl.DataFrame]:
    """A table, at most ``rows`` at a time; the first chunk is empty and has the columns.

    The file is read twice, since the type of a column is the one that all lines have in common.
    """
    empty = pl.DataFrame()
    for text in line_chunks(path):
        if text.strip():
            found = pl.read_ndjson(text, infer_schema_length=None).clear()
            empty = pl.concat([empty, found], how="diagonal_relaxed")
    yield empty
    for text in line_chunks(path):
        if text.strip():
            yield from pl.read_ndjson(text, schema=empty.schema).iter_slices(rows)


def sink(table: pl.LazyFrame, path: Path) -> None:
    """Write a table as it is computed."""
    table.sink_ndjson(path)


def count(path: Path, fields: int) -> int:
    """Rows, at most."""
    return max_rows(path, fields)


def explain(path: Path, spec: TableSpec | None) -> str | None:
    """Names the first line that is not a JSON object; ``None`` where all are."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip() and not isinstance(json.loads(line), dict):
                    return f"line {number} is not a JSON object"
            except (ValueError, RecursionError):
                return f"line {number} is not JSON (is the file cut off?)"
    return None
