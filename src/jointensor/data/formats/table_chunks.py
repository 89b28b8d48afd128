"""Tables and ``.tns`` files in chunks: two passes, one for labels and one for codes. Labels are held in memory.

Entries are what they would be if the file were read whole: those of a table sorted by index, rows that share a cell
merged by its rule; those of a ``.tns`` file in its order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from jointensor.data.external_sort import ROWS, CellFile, merged, records_of
from jointensor.data.formats.npz_chunks import ChunkedSource, checked
from jointensor.data.formats.reading import check_positions
from jointensor.data.formats.streaming import NotInParts, PartKinds
from jointensor.data.formats.tns import mode_of, numbers_of, read_maps
from jointensor.data.formats.unmapped import line_chunks, read_plainly
from jointensor.data.frames import ABSENCE, TableSpec, coded, make_mode, refuse_missing, values_of
from jointensor.data.modes import Mode
from jointensor.data.shard_writer import Chunk
from jointensor.errors import DataError, JointensorError


def scan_table(path: Path, spec: TableSpec, rows: int, scratch: Path, held: int = ROWS) -> ChunkedSource:
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
    parts = _Parts(path, spec, rows)
    try:
        modes = parts.modes()
        cells = CellFile(scratch / "cells", len(modes))
        for records in parts.records(modes):
            cells.append(records)
        rule = "count" if parts.counting else spec.duplicates
        chunks = [_keep(scratch, k, chunk) for k, chunk in enumerate(merged(cells, modes, rule, held))]
    except NotInParts as error:
        raise DataError(
            f"{path} cannot be read in parts ({error}); give a plain file whose rows speak for themselves, or leave "
            "out --memory"
        ) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DataError(f"{path} cannot be read as a table: {str(error).strip().splitlines()[0]}") from None
    notes = ((ABSENCE,) if parts.counting else ()) + tuple(parts.notes)
    entries = sum(count for _, count in chunks)
    resolved = replace(spec, modes=tuple(parts.expressions))
    return ChunkedSource(modes, entries, lambda: _kept(path, modes, [name for name, _ in chunks]), resolved, notes)


class _Parts:
    """A table read in parts, as often as it takes."""

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
        kinds, row = None, 0
        for frame in read_plainly(self.path, self.spec, self.rows):
            if kinds is None:
                kinds = PartKinds(frame, self.expressions)
                self.counting = self.spec.counts_rows(frame)
            if not frame.height:
                continue
            try:
                yield frame, self._evaluate(kinds, frame)
            except JointensorError as error:
                where = f" (rows counted from {row:,} on)" if row else ""
                raise DataError(f"{self.path}: {error}{where}") from None
            row += frame.height

    def _evaluate(self, kinds: PartKinds, frame: pl.DataFrame) -> list[pl.Series]:
        whole, before = kinds.whole(frame)
        labels = []
        for n, expression in enumerate(self.expressions):
            column, resolved, notes = expression.evaluate(whole)
            if expression.format is not None and resolved.format != expression.format:
                raise NotInParts("dates are not written alike in all of it")
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


def scan_tns(path: Path) -> ChunkedSource:
    """A ``.tns`` or ``.tns.gz`` file in its order."""
    entries, top = 0, None
    try:
        for numbers in _tns_chunks(path):
            entries += len(numbers)
            most = numbers[:, :-1].max(axis=0)
            top = most if top is None else np.maximum(top, most)
    except NotInParts as error:
        raise DataError(f"{path}: {error}") from None
    if top is None:
        raise DataError(f"{path} has no entries")
    maps = read_maps(path, len(top))
    modes = tuple(mode_of(int(size) - 1, *maps.get(n, (f"mode_{n}", None))) for n, size in enumerate(top))
    check_positions(path, modes, entries)
    return ChunkedSource(modes, entries, lambda: _tns_scan(path, modes))


def _tns_scan(path: Path, modes: tuple[Mode, ...]) -> Iterator[Chunk]:
    return checked(path, ((numbers[:, :-1] - 1, numbers[:, -1]) for numbers in _tns_chunks(path)), modes)


def _tns_chunks(path: Path) -> Iterator[np.ndarray]:
    """All lines as numbers, ``(entries, modes + 1)`` at a time."""
    line, fields = 1, 0
    for text in line_chunks(path):
        numbers = numbers_of(path, text, line)
        line += text.count(b"\n")
        if not len(numbers):
            continue
        fields = fields or numbers.shape[1]
        if numbers.shape[1] != fields or fields < 3:
            raise DataError(f"{path}: a line before line {line} has {numbers.shape[1]} fields, the first has {fields}")
        indices = numbers[:, :-1]
        if not (np.isfinite(indices) & (indices == np.floor(indices)) & (indices >= 1)).all():
            raise DataError(f"{path}: an index before line {line} is not a whole number from 1 on")
        yield numbers
