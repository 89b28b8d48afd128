"""Columnar files in chunks: one slice is open at a time, since pages of a file that polars maps count as memory."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl


def slices(table: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    """A table at most ``rows`` at a time; the first chunk is empty and has the columns."""
    yield table.collect_schema().to_frame()
    count = height(table)
    rows = min(rows, max(count, 1))
    for start in range(0, count, rows):
        yield table.slice(start, rows).collect()


def height(table: pl.LazyFrame) -> int:
    """Number of rows."""
    return int(table.select(pl.len()).collect().item())
