"""External sort of cells by index, with rows of the same cell merged: a radix sort by ranges of labels.

A file with more rows than fit in memory is divided by ranges of labels of one mode; a single label with too many rows
is divided by the next mode. Files that fit are sorted and merged in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.formats.base import Chunk
from jointensor.data.frames import merge_cells
from jointensor.data.modes import Mode
from jointensor.errors import DataError

ROWS = 1 << 20
"""Rows in memory at a time."""


class CellFile:
    """Rows of cells in a file: codes of all modes and a value of 64 bits each, in their order."""

    def __init__(self, path: Path, n_modes: int) -> None:
        self.path, self.n_modes, self.rows = path, n_modes, 0

    def append(self, records: NDArray[np.int32]) -> None:
        """Add rows, ``(rows, modes + 2)``."""
        with self.path.open("ab") as file:
            records.tofile(file)
        self.rows += len(records)

    def read(self, rows: int = ROWS) -> Iterator[NDArray[np.int32]]:
        """All rows, at most ``rows`` at a time."""
        width = self.n_modes + 2
        for start in range(0, self.rows, rows):
            count = min(rows, self.rows - start)
            yield np.fromfile(self.path, np.int32, count * width, offset=4 * start * width).reshape(-1, width)


def records_of(codes: Sequence[NDArray[np.integer]], values: NDArray[np.float64]) -> NDArray[np.int32]:
    """Codes of every mode and values as rows of a cell file."""
    records = np.empty((len(values), len(codes) + 2), dtype=np.int32)
    for n, column in enumerate(codes):
        records[:, n] = column
    records[:, -2:] = values.view(np.int32).reshape(-1, 2)
    return records


def merged(cells: CellFile, modes: tuple[Mode, ...], rule: str, rows: int = ROWS) -> Iterator[Chunk]:
    """One entry per cell, sorted by index, in chunks; the file is removed.

    Parameters
    ----------
    cells
        Rows in the order of the table.
    modes
        The modes of the tensor.
    rule
        How rows of the same cell are merged, see :class:`~jointensor.data.frames.TableSpec`.
    rows
        Approximate number of rows in memory at a time.
    """
    yield from _sorted(cells, modes, rule, 0, rows)


def _sorted(cells: CellFile, modes: tuple[Mode, ...], rule: str, mode: int, rows: int) -> Iterator[Chunk]:
    if cells.rows <= rows:
        if cells.rows:
            (records,) = cells.read(rows)
            cells.path.unlink()
            yield _merge(records, modes, rule)
        return
    if mode == len(modes):
        first = next(cells.read(1))[0]
        cell = ", ".join(f"{one.name}={one.label(int(i))}" for one, i in zip(modes, first, strict=False))
        raise DataError(f"more than {rows:,} rows share the cell {cell}; aggregate them first, or leave out --memory")
    for part in _divided(cells, modes[mode].size, mode, rows):
        yield from _sorted(part, modes, rule, mode + 1, rows)


def _divided(cells: CellFile, size: int, mode: int, rows: int) -> list[CellFile]:
    """Files of ranges of labels, each with at most ``rows`` rows or a single label."""
    counts = np.zeros(size, dtype=np.int64)
    for records in cells.read():
        counts += np.bincount(records[:, mode], minlength=size)
    part_of = np.empty(size, dtype=np.int64)
    part = held = 0
    for label, count in enumerate(counts.tolist()):
        if held and held + count > rows:
            part, held = part + 1, 0
        part_of[label] = part
        held += count
    parts = [CellFile(cells.path.with_name(f"{cells.path.name}.{k}"), cells.n_modes) for k in range(part + 1)]
    for records in cells.read():
        member = part_of[records[:, mode]]
        order = np.argsort(member, kind="stable")
        edges = np.flatnonzero(np.diff(member[order])) + 1
        for chosen in np.split(order, edges):
            parts[member[chosen[0]]].append(records[chosen])
    cells.path.unlink()
    return [one for one in parts if one.rows]


def _merge(records: NDArray[np.int32], modes: tuple[Mode, ...], rule: str) -> Chunk:
    values = np.ascontiguousarray(records[:, -2:]).view(np.float64)[:, 0]
    codes = {f"code_{n}": records[:, n] for n in range(len(modes))}
    cells = merge_cells(pl.DataFrame(codes).with_columns(value=pl.Series(values)), rule, modes)
    indices = cells.select(codes.keys()).to_numpy()
    return np.ascontiguousarray(indices, dtype=np.int32), cells["value"].to_numpy()
