"""Queries and test entries: entries of a file over the modes of a tensor that is there already.

Polars is imported where a table is read: archives need NumPy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats import CHUNK_ROWS, check_file, format_of, read_table, scan_source, scan_table
from jointensor.data.formats.base import ALL_ROWS, Chunk, ChunkedSource
from jointensor.data.modes import UNSEEN, Mode
from jointensor.data.shards import read_ahead
from jointensor.data.split.gaps import Asked
from jointensor.data.tensor import check_whole
from jointensor.errors import DataError

if TYPE_CHECKING:
    import polars as pl

    from jointensor.data.frames import TableSpec


Item = TypeVar("Item")

MAX_NEW = 1_000_000
"""Positions without a text, beyond the labels of a mode, that queries may have."""


@dataclass(frozen=True)
class Queries:
    """Entries to predict, in file order."""

    indices: NDArray[np.integer]
    """Shape ``(queries, modes)``, -1 for labels the tensor does not have."""
    values: NDArray[np.floating[Any]] | None
    """Observed values, if they were requested."""
    frame: pl.DataFrame | None = None
    """The table as it was read, for tables."""
    given: NDArray[np.integer] | None = None
    """The indices as they were written, for archives."""


def read_queries(path: Path | str, modes: tuple[Mode, ...], spec: TableSpec | None, *, values: bool) -> Queries:
    """Entries to predict or, with ``values``, to compare with, in any readable format."""
    path = Path(path)
    check_file(path)
    kind = format_of(path)
    if kind.tensor:
        found = kind.module.read_queries(path, values=values)
        return Queries(_within(found.indices, modes, found.labels, path), found.values, given=found.indices)
    import polars as pl  # noqa: PLC0415 - only for tables

    from jointensor.data.frames import query_values  # noqa: PLC0415

    frames, indices = zip(*scan_queries(path, modes, spec, ALL_ROWS), strict=True)
    frame = pl.concat(frames)
    try:
        return Queries(np.concatenate(indices), query_values(frame, spec) if values else None, frame)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_asked(path: Path | str, modes: tuple[Mode, ...], spec: TableSpec | None) -> Asked:
    """Cells of a file whose values will be asked for, in any readable format; values beside them do not matter."""
    path = Path(path)
    check_file(path)
    kind = format_of(path)
    if kind.tensor:
        found = kind.module.read_queries(path, values=False)
        _check_indices(found.indices, modes, path)
        wider = tuple(
            _wider(mode, found.indices[:, n], own)
            for n, (mode, own) in enumerate(zip(modes, found.labels, strict=True))
        )
        indices = _within(found.indices, wider, found.labels, path)
        if (indices == UNSEEN).any():
            row, n = np.argwhere(indices == UNSEEN)[0]
            raise DataError(f"{path}: query {row} has an index for mode '{modes[n].name}' that stands for no label")
    else:
        import polars as pl  # noqa: PLC0415 - only for tables

        from jointensor.data.frames import encode_wider  # noqa: PLC0415

        frames = list(scan_table(path, query_spec(path, spec), ALL_ROWS))
        try:
            indices, wider = encode_wider(pl.concat(frames), modes, spec)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    if not len(indices):
        raise DataError(f"{path} has no cells; give those that are to be predicted, or leave this file out")
    return Asked(indices, wider, str(path))


def _wider(mode: Mode, column: NDArray[np.integer], labels: Sequence[str] | None) -> Mode:
    """A mode with all labels of a column: its own texts, or its positions."""
    if mode.labels is None:
        return mode.with_numbers([str(int(column.max(initial=0)))])
    if labels is None:
        return mode.with_more(map(str, range(mode.size, min(int(column.max(initial=0)) + 1, mode.size + MAX_NEW))))
    return mode.with_more(labels[int(i)] for i in np.unique(column) if i < len(labels))


def scan_queries(
    path: Path, modes: tuple[Mode, ...], spec: TableSpec | None, rows: int
) -> Iterator[tuple[pl.DataFrame, NDArray[np.int64]]]:
    """Queries of a table in file order, at most ``rows`` at a time, with their indices; the first chunk is empty."""
    from jointensor.data.frames import LabelEncoder, chunk_error  # noqa: PLC0415 - polars only for tables

    encoder, row = None, 0
    for frame in scan_table(path, query_spec(path, spec), rows):
        try:
            encoder = encoder or LabelEncoder(frame.columns, modes, spec)
            indices = encoder.encode(frame)
        except DataError as error:
            raise chunk_error(path, error, row) from None
        yield frame, indices
        row += frame.height


def ahead(chunks: Iterator[Item]) -> Generator[Item]:
    """The same chunks; a thread makes the next one meanwhile, until the last one or until this is closed."""
    for chunk in read_ahead(lambda _: next(chunks, None), range(sys.maxsize)):
        if chunk is None:
            return
        yield chunk


def read_entries(
    path: Path | str, modes: tuple[Mode, ...], spec: TableSpec | None
) -> tuple[NDArray[np.integer], NDArray[Any]]:
    """Indices (-1 for labels that ``modes`` do not have) and values.

    Rows that share a cell are merged, and events counted, by the rule that made the tensor.
    """
    path = Path(path)
    if spec is not None and path.is_file() and not format_of(path).tensor:
        frame = read_table(path, spec)
        if _merges_rows(frame, spec):
            from jointensor.data.frames import frame_to_cells  # noqa: PLC0415 - polars only for tables

            cells = frame_to_cells(frame, spec)
            return positions(cells.indices, cells.modes, modes), cells.values
    queries = read_queries(path, modes, spec, values=True)
    values = np.asarray(queries.values, dtype=np.float64)
    if values.shape != (len(queries.indices),):
        raise DataError(f"{path}: {values.shape} values for {len(queries.indices)} entries")
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise DataError(f"{path}: entry {row} has the value {values[row]}; values must be finite")
    return queries.indices, values


def scan_entries(path: Path, modes: tuple[Mode, ...], spec: TableSpec | None, scratch: Path) -> Iterator[Chunk]:
    """The same entries as :func:`read_entries` gives, in chunks; ``scratch``: a folder for cells that are sorted."""
    check_file(path)
    if format_of(path).tensor:
        yield from _over(modes, scan_source(path, None, scratch), path)
        return
    from jointensor.data.frames import chunk_error, query_values  # noqa: PLC0415 - polars only for tables
    from jointensor.data.table_source import scan_table_source  # noqa: PLC0415

    if spec is not None and _merges_rows(next(scan_table(path, spec, CHUNK_ROWS)), spec):
        yield from _over(modes, scan_table_source(path, spec, CHUNK_ROWS, scratch), path)
        return
    row = 0
    for frame, indices in scan_queries(path, modes, spec, CHUNK_ROWS):
        try:
            values = query_values(frame, spec)
        except DataError as error:
            raise chunk_error(path, error, row) from None
        if not (np.abs(values) <= np.finfo(np.float32).max).all():
            raise DataError(
                f"{path}: a value among rows {row} to {row + len(values)} is not a finite number of 32 bits"
            )
        yield indices.astype(np.int32), values.astype(np.float32)
        row += len(values)


def _over(modes: tuple[Mode, ...], source: ChunkedSource, path: Path) -> Iterator[Chunk]:
    """Chunks of a source with indices over other modes, matched by label."""
    labels = [mode.labels for mode in source.modes]
    for indices, values in source.chunks():
        yield _within(indices, modes, labels, path).astype(np.int32), values


def _merges_rows(frame: pl.DataFrame, spec: TableSpec) -> bool:
    """Whether a table has the columns of the training table, whose rows are counted or merged."""
    raw = all(e.text in frame.columns or set(e.columns()) <= set(frame.columns) for e in spec.modes)
    return raw and (spec.counts_rows(frame) or spec.duplicates != "error")


def positions(indices: NDArray[np.integer], modes: tuple[Mode, ...], other: tuple[Mode, ...]) -> NDArray[np.int64]:
    """Indices over some modes as indices over other modes, matched by label; ``(entries, modes)``."""
    columns = []
    for n, (own, target) in enumerate(zip(modes, other, strict=True)):
        table = target.encode(own.label(i) for i in range(own.size))  # (I_n,)
        columns.append(table[indices[:, n]])
    return np.stack(columns, axis=1)


def query_spec(path: Path, spec: TableSpec | None) -> TableSpec | None:
    """The rules for a table of queries: it may have a header where the source had none."""
    if spec is None or format_of(path).name != "delimited":
        return spec
    from jointensor.data.formats.delimited import fields_of, first_line, guess_separator  # noqa: PLC0415

    line = first_line(path)
    separator = spec.separator if spec.separator and spec.separator in line else guess_separator(path, line)
    spec = replace(spec, separator=separator)
    fields = set(fields_of(line, separator))
    named = all(mode.name in fields or fields.issuperset(mode.columns(fields)) for mode in spec.modes)
    return replace(spec, header=True, columns=None) if named else spec


def _within(
    indices: NDArray[Any], modes: tuple[Mode, ...], labels: Sequence[Sequence[str] | None], path: Path
) -> NDArray[np.int64]:
    """Indices of queries, by label where their file has ``labels``; what the tensor does not have is -1."""
    _check_indices(indices, modes, path)
    found = np.full(indices.shape, UNSEEN, dtype=np.int64)  # (queries, modes)
    for n, (mode, own) in enumerate(zip(modes, labels, strict=True)):
        table = None if own is None or mode.labels is None else mode.encode(own)  # (labels of the queries,)
        known = indices[:, n] < (mode.size if table is None else len(table))
        positions = indices[known, n].astype(np.int64)
        found[known, n] = positions if table is None else table[positions]
    return found


def _check_indices(indices: NDArray[Any], modes: tuple[Mode, ...], path: Path) -> None:
    """Refuse indices of another number of modes, and what is no position."""
    if indices.ndim != 2 or indices.shape[1] != len(modes):
        raise DataError(f"{path}: queries have shape {indices.shape}, the tensor has {len(modes)} modes")
    try:
        check_whole(indices, [mode.name for mode in modes])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if (indices < 0).any():
        row, n = np.argwhere(indices < 0)[0]
        raise DataError(
            f"{path}: query {row} has index {int(indices[row, n])} for mode '{modes[n].name}'; indices start at 0"
        )
