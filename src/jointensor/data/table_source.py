"""Tables as tensors in chunks: one pass for labels, which are held in memory, and one for codes.

Cells are those of the table read whole: sorted by index, rows that share a cell merged by its rule.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from jointensor.data.external_sort import ROWS, CellFile, merged, records_of
from jointensor.data.formats import scan_table
from jointensor.data.formats.base import Chunk, ChunkedSource, NeedsWholeTable, checked
from jointensor.data.frames import ABSENCE, TableSpec, coded, make_mode, refuse_missing, values_of
from jointensor.data.modes import Mode
from jointensor.data.row_wise import ChunkTypes
from jointensor.errors import DataError, JointensorError


def scan_table_source(path: Path, spec: TableSpec, rows: int, scratch: Path, held: int = ROWS) -> ChunkedSource:
    """A table as a tensor.

    Parameters
    ----------
    path, spec
        The table, and what it means.
    rows
        Rows that are read at a time.
    scratch
        A folder for its cells while they are sorted.
    held
        Cells that are sorted at a time.

    Raises
    ------
    DataError
        If the table is at fault, or if only all its rows together can say what is meant.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    table = _TableChunks(path, spec, rows)
    try:
        modes = table.modes()
        cells = CellFile(scratch / "cells", len(modes))
        for records in table.records(modes):
            cells.append(records)
        rule = "count" if table.counting else spec.duplicates
        chunks = [_keep(scratch, k, chunk) for k, chunk in enumerate(merged(cells, modes, rule, held))]
    except NeedsWholeTable as error:
        raise DataError(
            f"{path} cannot be read in chunks ({error}); change the column or expression, or leave out --memory"
        ) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {str(error).strip().splitlines()[0]}") from None
    notes = ((ABSENCE,) if table.counting else ()) + tuple(table.notes)
    entries = sum(count for _, count in chunks)
    resolved = replace(spec, modes=tuple(table.expressions))
    return ChunkedSource(modes, entries, lambda: _kept(path, modes, [name for name, _ in chunks]), resolved, notes)


class _TableChunks:
    """A table read in table, as often as it takes."""

    def __init__(self, path: Path, spec: TableSpec, rows: int) -> None:
        self.path, self.spec, self.rows = path, spec, rows
        self.expressions = list(spec.modes)
        self.counting = False
        self.notes: list[str] = []

    def modes(self) -> tuple[Mode, ...]:
        """The first pass: all labels of every mode."""
        found: list[pl.Series] = []
        for _, labels in self._labels():
            fresh = [column.unique() for column in labels]
            found = [pl.concat([a, b]).unique() for a, b in zip(found, fresh, strict=True)] if found else fresh
        if not found:
            raise DataError(f"{self.path}: the table has no rows")
        return tuple(make_mode(one, labels) for one, labels in zip(self.expressions, found, strict=True))

    def records(self, modes: tuple[Mode, ...]) -> Iterator[np.ndarray]:
        """The second pass: codes and values."""
        enums = [pl.Enum(mode.labels or ()) for mode in modes]
        for frame, labels in self._labels():
            codes = [coded(one, enum).to_numpy() for one, enum in zip(labels, enums, strict=True)]
            yield records_of(codes, np.ascontiguousarray(values_of(frame, self.spec).to_numpy(), dtype=np.float64))

    def _labels(self) -> Iterator[tuple[pl.DataFrame, list[pl.Series]]]:
        """Parts of the table, and the labels of their rows."""
        types, row = None, 0
        for frame in scan_table(self.path, self.spec, self.rows):
            if types is None:
                types = ChunkTypes(frame, self.expressions)
                self.counting = self.spec.counts_rows(frame)
            if not frame.height:
                continue
            try:
                yield frame, self._evaluate(types, frame)
            except JointensorError as error:
                where = f" (rows counted from {row:,} on)" if row else ""
                raise DataError(f"{self.path}: {error}{where}") from None
            row += frame.height

    def _evaluate(self, types: ChunkTypes, frame: pl.DataFrame) -> list[pl.Series]:
        whole, before = types.with_witnesses(frame)
        labels = []
        for n, expression in enumerate(self.expressions):
            column, resolved, notes = expression.evaluate(whole)
            if expression.format is not None and resolved.format != expression.format:
                raise NeedsWholeTable("dates are not written alike in all of it")
            column = column.slice(before)
            refuse_missing(column, f"mode '{expression.name}'")
            self.expressions[n] = resolved
            self.notes += [note for note in notes if note not in self.notes]
            labels.append(column)
        return labels


def _keep(scratch: Path, k: int, chunk: Chunk) -> tuple[Path, int]:
    """Put a chunk of merged cells aside; where, and how many they are."""
    path = scratch / f"merged-{k:06d}.npz"
    np.savez(path, indices=chunk[0], values=chunk[1])
    return path, len(chunk[1])


def _kept(path: Path, modes: tuple[Mode, ...], files: list[Path]) -> Iterator[Chunk]:
    def stored() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for file in files:
            with np.load(file) as arrays:
                yield arrays["indices"], arrays["values"]

    return checked(path, stored(), modes)
