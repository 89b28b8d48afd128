"""Observed entries of another file, over the modes of a tensor that is there already: test entries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.files import file_kind, read_queries, read_table
from jointensor.data.modes import Mode
from jointensor.errors import DataError

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec


def read_entries(
    path: Path | str, modes: tuple[Mode, ...], spec: TableSpec | None
) -> tuple[NDArray[np.integer], NDArray[Any]]:
    """Indices (-1 for labels that ``modes`` do not have) and values.

    Rows that share a cell are merged, and events counted, by the rule that made the tensor.
    """
    path = Path(path)
    if spec is not None and path.is_file() and file_kind(path) not in ("npz", "tns"):
        frame = read_table(path, spec)
        raw = all(e.text in frame.columns or set(e.columns()) <= set(frame.columns) for e in spec.modes)
        if raw and (spec.counts_rows(frame) or spec.duplicates != "error"):
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


def positions(indices: NDArray[np.integer], modes: tuple[Mode, ...], other: tuple[Mode, ...]) -> NDArray[np.int64]:
    """Indices over some modes as indices over other modes, matched by label; ``(entries, modes)``."""
    columns = []
    for n, (own, target) in enumerate(zip(modes, other, strict=True)):
        table = target.encode(own.label(i) for i in range(own.size))  # (I_n,)
        columns.append(table[indices[:, n]])
    return np.stack(columns, axis=1)
