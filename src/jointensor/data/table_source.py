"""Tables as tensors in chunks: passes for the types of columns, for labels, which are held in memory, and for cells.

Cells are those of the table read whole: sorted by index, rows that share a cell merged by its rule.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from jointensor.data.expressions import resolve_types
from jointensor.data.external_sort import SortedCells
from jointensor.data.formats import scan_table
from jointensor.data.formats.base import ChunkedSource, checked
from jointensor.data.frames import ABSENCE, LabelEvaluator, TableSpec, cell_frame, chunk_error, make_mode, values_of
from jointensor.errors import DataError, JointensorError


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
