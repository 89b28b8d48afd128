"""Queries of a table in chunks, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.formats import scan_table
from jointensor.data.formats.base import NeedsWholeTable
from jointensor.data.frames import LabelEncoder, TableSpec
from jointensor.data.modes import Mode
from jointensor.data.queries import query_spec
from jointensor.data.row_wise import ChunkTypes
from jointensor.errors import DataError

QueryChunk = tuple[pl.DataFrame, NDArray[np.int64]]
"""Some rows of a table of queries as they were read, and their indices, ``(rows, modes)``."""


def scan_queries(path: Path, modes: tuple[Mode, ...], spec: TableSpec | None, rows: int) -> Iterator[QueryChunk]:
    """The queries of a table in their order, at most ``rows`` at a time; the first chunk is empty.

    Raises
    ------
    NeedsWholeTable
        At any time: :func:`jointensor.data.queries.read_queries` then has to read the table whole, which also
        gives errors their row.
    """
    try:
        encode: _ChunkEncoder | None = None
        for frame in scan_table(path, query_spec(path, spec), rows):
            encode = encode or _ChunkEncoder(frame, modes, spec)
            yield frame, encode(frame)
    except (DataError, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError) as error:
        raise NeedsWholeTable(str(error)) from error


def ahead(chunks: Iterator[QueryChunk]) -> Generator[QueryChunk]:
    """The same chunks; a thread makes the next one meanwhile, until the last one or until this is closed."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, chunks, None)
            yield chunk


class _ChunkEncoder:
    """Encodes one chunk after the other, as the whole table would be encoded."""

    def __init__(self, empty: pl.DataFrame, modes: tuple[Mode, ...], spec: TableSpec | None) -> None:
        self.encoder = LabelEncoder(empty.columns, modes, spec)
        self.types = ChunkTypes(empty, self.encoder.expressions)

    def __call__(self, frame: pl.DataFrame) -> NDArray[np.int64]:
        if not frame.height:
            return np.empty((0, len(self.encoder.modes)), dtype=np.int64)
        whole, before = self.types.with_witnesses(frame)
        indices, resolved = self.encoder.encode(whole)
        for one, after in zip(self.encoder.expressions, resolved, strict=True):
            if after.format not in (one.format, "date", "time"):
                raise NeedsWholeTable("dates are not written as in the training table")
        return indices[before:]
