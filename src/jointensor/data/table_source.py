"""Tables as tensors in chunks: passes for the types of columns, for labels, which are held in memory, and for cells.

Cells are those of the table read whole: sorted by index, rows that share a cell merged by its rule. They are sorted on
disk, by a radix sort: a file with more rows than fit in memory is divided by ranges of labels of one mode; a single
label with too many rows is divided by the next mode. Files that fit are sorted and merged in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.expressions import resolve_types
from jointensor.data.formats import scan_table
from jointensor.data.formats.base import ChunkedSource, checked
from jointensor.data.frames import (
    ABSENCE,
    LabelEvaluator,
    TableSpec,
    cell_frame,
    chunk_error,
    make_mode,
    merge_cells,
    values_of,
)
from jointensor.data.modes import Mode
from jointensor.errors import DataError, JointensorError

ROWS = 1 << 20
"""Rows that are divided at a time."""


def scan_table_source(path: Path, spec: TableSpec, rows: int, scratch: Path) -> ChunkedSource:
    """A table as a tensor.

    Parameters
    ----------
    path, spec
        The table, and how it becomes a tensor.
    rows
        Rows that are read at a time.
    scratch
        A folder for its cells while they are sorted.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    empty = next(iter(scan_table(path, spec, rows)))
    expressions = list(spec.modes)
    if any(one.text_columns(empty) for one in expressions):
        expressions = resolve_types(expressions, scan_table(path, spec, rows))
    evaluator = LabelEvaluator(expressions)
    found: list[pl.Series] = []
    for labels, _ in _rows(path, spec, rows, evaluator):
        fresh = [column.unique() for column in labels]
        found = [pl.concat([a, b]).unique() for a, b in zip(found, fresh, strict=True)] if found else fresh
    if not found:
        raise DataError(f"{path}: the table has no rows")
    modes = tuple(make_mode(one, labels) for one, labels in zip(evaluator.expressions, found, strict=True))
    cells = SortedCells(scratch, modes, spec.rule(empty))
    for labels, values in _rows(path, spec, rows, evaluator):
        cells.append(cell_frame(labels, modes, values))
    entries = cells.sort(rows)
    notes = ((ABSENCE,) if spec.counts_rows(empty) else ()) + tuple(evaluator.notes)
    resolved = replace(spec, modes=tuple(evaluator.expressions))
    return ChunkedSource(modes, entries, lambda: checked(path, cells.chunks(), modes), resolved, notes)


def _rows(
    path: Path, spec: TableSpec, rows: int, evaluator: LabelEvaluator
) -> Iterator[tuple[list[pl.Series], pl.Series]]:
    """Labels and values of the rows, in chunks."""
    row = 0
    for frame in scan_table(path, spec, rows):
        if not frame.height:
            continue
        try:
            found = evaluator.evaluate_complete(frame), values_of(frame, spec)
        except JointensorError as error:
            raise chunk_error(path, error, row) from None
        yield found
        row += frame.height


class SortedCells:
    """Rows of cells that are sorted and merged on disk.

    Parameters
    ----------
    folder
        An empty folder.
    modes
        The modes of the tensor.
    rule
        How rows of the same cell are merged, see :class:`~jointensor.data.frames.TableSpec`.
    """

    def __init__(self, folder: Path, modes: tuple[Mode, ...], rule: str) -> None:
        self.folder, self.modes, self.rule = folder, modes, rule
        columns = [(f"m{n}", np.int32) for n in range(len(modes))]
        self.unsorted = _CellFile(folder / "cells", np.dtype([*columns, ("value", np.float64)]))
        self.merged: list[Path] = []

    def append(self, rows: pl.DataFrame) -> None:
        """Add rows as :func:`~jointensor.data.frames.cell_frame` makes them."""
        records = np.empty(rows.height, self.unsorted.columns)
        for name in self.unsorted.columns.names or ():
            records[name] = rows[name].to_numpy()
        self.unsorted.append(records)

    def sort(self, rows: int) -> int:
        """Sort and merge all rows, at most ``rows`` at a time in memory; returns the number of cells."""
        cells = 0
        for records in self._sorted(self.unsorted, 0, rows):
            names = self.unsorted.columns.names or ()
            frame = pl.DataFrame({name: np.ascontiguousarray(records[name]) for name in names})
            frame = merge_cells(frame, self.rule, self.modes)
            self.merged.append(self.folder / f"merged-{len(self.merged):06d}.npz")
            np.savez(self.merged[-1], indices=frame.drop("value").to_numpy(), values=frame["value"].to_numpy())
            cells += frame.height
        return cells

    def chunks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Indices and values of all cells, in the order of their indices."""
        for file in self.merged:
            with np.load(file) as arrays:
                yield arrays["indices"], arrays["values"]

    def _sorted(self, cells: _CellFile, mode: int, rows: int) -> Iterator[NDArray[Any]]:
        """Rows in parts that fit in memory; all cells of a part come before those of the next."""
        if cells.rows <= rows:
            if cells.rows:
                (records,) = cells.read(rows)
                cells.path.unlink()
                yield records
            return
        if mode == len(self.modes):
            first = next(cells.read(1))[0]
            cell = ", ".join(f"{one.name}={one.label(int(first[f'm{n}']))}" for n, one in enumerate(self.modes))
            raise DataError(
                f"more than {rows:,} rows share the cell {cell}; aggregate them first, or leave out --memory"
            )
        for part in _divided(cells, f"m{mode}", self.modes[mode].size, rows):
            yield from self._sorted(part, mode + 1, rows)


class _CellFile:
    """Rows in a file, in their order."""

    def __init__(self, path: Path, columns: np.dtype[Any]) -> None:
        self.path, self.columns, self.rows = path, columns, 0

    def append(self, records: NDArray[Any]) -> None:
        with self.path.open("ab") as file:
            records.tofile(file)
        self.rows += len(records)

    def read(self, rows: int = ROWS) -> Iterator[NDArray[Any]]:
        """All rows, at most ``rows`` at a time."""
        for start in range(0, self.rows, rows):
            yield np.fromfile(self.path, self.columns, rows, offset=start * self.columns.itemsize)


def _divided(cells: _CellFile, mode: str, size: int, rows: int) -> list[_CellFile]:
    """Files of ranges of labels, each with at most ``rows`` rows or a single label."""
    counts = np.zeros(size, dtype=np.int64)
    for records in cells.read():
        counts += np.bincount(records[mode], minlength=size)
    part_of = np.empty(size, dtype=np.int64)
    part = held = 0
    for label, count in enumerate(counts.tolist()):
        if held and held + count > rows:
            part, held = part + 1, 0
        part_of[label] = part
        held += count
    parts = [_CellFile(cells.path.with_name(f"{cells.path.name}.{k}"), cells.columns) for k in range(part + 1)]
    for records in cells.read():
        member = part_of[records[mode]]
        order = np.argsort(member, kind="stable")
        edges = np.flatnonzero(np.diff(member[order])) + 1
        for chosen in np.split(order, edges):
            parts[member[chosen[0]]].append(records[chosen])
    cells.path.unlink()
    return [one for one in parts if one.rows]
