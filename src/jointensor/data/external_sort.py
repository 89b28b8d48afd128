"""External sort of cells by index, by DuckDB, with rows of the same cell merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.frames import merge_cells
from jointensor.data.modes import Mode
from jointensor.errors import DataError, RunError

SORT_MEMORY = "150MB"
"""DuckDB's ``memory_limit``. With it, 12 and 60 million rows of three modes take about 100 MB more than the libraries
(``benchmarks/ingest.py``)."""


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
        self.names = [f"m{n}" for n in range(len(modes))]
        self.files: list[Path] = []
        columns = ", ".join(f"{name} INTEGER" for name in self.names)
        with self._storage():
            self.base = duckdb.connect(str(folder / "cells.duckdb"))
            for setting in (
                f"memory_limit = '{SORT_MEMORY}'", "threads = 1", f"temp_directory = '{_quoted(folder)}'",
                "enable_progress_bar = false", "enable_external_access = false",
            ):  # fmt: skip
                self.base.execute(f"SET {setting}")
            self.base.execute(f"CREATE TABLE cells ({columns}, value DOUBLE)")

    def append(self, rows: pl.DataFrame) -> None:
        """Add rows as :func:`~jointensor.data.frames.cell_frame` makes them."""
        with self._storage():
            self.base.register("block", {name: rows[name].to_numpy() for name in (*self.names, "value")})
            self.base.execute("INSERT INTO cells SELECT * FROM block")
            self.base.unregister("block")

    def sort(self, rows: int) -> int:
        """Sort and merge all rows, about ``rows`` at a time in memory; returns the number of cells."""
        cells = 0
        with self._storage():
            self.base.execute(f"CREATE TABLE sorted AS SELECT * FROM cells ORDER BY {', '.join(self.names)}, rowid")
            self.base.execute("DROP TABLE cells")
            for frame in self._merged(rows):
                self.files.append(self.folder / f"merged-{len(self.files):06d}.npz")
                np.savez(self.files[-1], indices=frame.drop("value").to_numpy(), values=frame["value"].to_numpy())
                cells += frame.height
            self.base.close()
        (self.folder / "cells.duckdb").unlink()
        return cells

    def chunks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Indices and values of all cells, in the order of their indices."""
        for file in self.files:
            with np.load(file) as arrays:
                yield arrays["indices"], arrays["values"]

    def _merged(self, rows: int) -> Iterator[pl.DataFrame]:
        """Merged cells; rows of the last cell of a block wait for the next block."""
        (count,) = self.base.execute("SELECT count(*) FROM sorted").fetchone() or (0,)
        waiting: list[pl.DataFrame] = []
        for start in range(0, count, rows):
            query = f"SELECT * FROM sorted WHERE rowid >= {start} AND rowid < {start + rows} ORDER BY rowid"
            block = pl.concat([*waiting, pl.DataFrame(self.base.execute(query).fetchnumpy())])
            last = 0 if start + rows >= count else self._rows_of_last_cell(block, rows)
            waiting = [block.tail(last)]
            if last < block.height:
                yield merge_cells(block.head(block.height - last), self.rule, self.modes)

    def _rows_of_last_cell(self, block: pl.DataFrame, rows: int) -> int:
        cell = block.row(-1)
        same = block.select(pl.all_horizontal(pl.col(name) == i for name, i in zip(self.names, cell, strict=False)))
        last = int(same.to_series().sum())
        if last > rows:
            labels = ", ".join(f"{mode.name}={mode.label(int(i))}" for mode, i in zip(self.modes, cell, strict=False))
            raise DataError(
                f"more than {rows:,} rows share the cell {labels}; aggregate them first, or leave out --memory"
            )
        return last

    @contextmanager
    def _storage(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise RunError(f"cells cannot be sorted in {self.folder}: {str(error).splitlines()[0]}") from error


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
