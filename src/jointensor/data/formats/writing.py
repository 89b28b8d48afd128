"""Tables that are written in chunks, so that memory does not grow with their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import Full, Queue

import polars as pl
from polars.io.plugins import register_io_source

from jointensor.data.formats import _table_format


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> None:
    """Write a table of at least one chunk, in the format of the file's name.

    A thread writes while the caller's iterator makes the next chunk.
    """
    chunks = iter(frames)
    first = next(chunks)
    ready: Queue[pl.DataFrame | None] = Queue(maxsize=1)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(_sink, ready, first.schema, path)
        try:
            for chunk in chain((first,), chunks):
                _put(ready, chunk, written)
        finally:  # also when the iterator fails or is interrupted: the thread waits for an end
            _put(ready, None, written)
    written.result()


def _put(ready: Queue[pl.DataFrame | None], chunk: pl.DataFrame | None, written: Future[None]) -> None:
    """Hand a chunk over, unless the writer has ended."""
    while not written.done():
        try:
            return ready.put(chunk, timeout=0.1)
        except Full:
            continue
    written.result()
    return None


def _sink(ready: Queue[pl.DataFrame | None], schema: pl.Schema, path: Path) -> None:
    def chunks(*_: object) -> Iterator[pl.DataFrame]:
        while (chunk := ready.get()) is not None:
            yield chunk

    try:
        _table_format(path).module.sink(register_io_source(chunks, schema=schema), path)
    except pl.exceptions.PolarsError as error:
        raise OSError(str(error).strip().splitlines()[0]) from error
