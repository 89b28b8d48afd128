"""FROSTT's text format: one entry per line, one-based indices, then the value; ``#`` starts a comment.

Labels come from ``.map`` files beside it, one label per line: ``mode-1-sender.map`` names the first mode
``sender`` and labels it; ``NAME.mode-1-sender.map`` does so for ``NAME.tns`` alone. Either may be
gzipped.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.formats.base import (
    Chunk,
    ChunkedSource,
    IndexedQueries,
    check_positions,
    checked,
    first_bytes,
    line_chunks,
    max_rows,
    unpack_gzip,
)
from jointensor.data.modes import Mode, guess_order
from jointensor.data.tensor import SparseTensor
from jointensor.errors import DataError

_SLASH = "%2F"
"""Stands for a slash of a mode's name in the name of its ``.map`` file."""

_BEGINNINGS = tuple(bytes([byte]) for byte in b"0123456789#+-.")
"""First bytes of entries; polars would unpack text that begins like a packed file, however large it becomes."""


def read(path: Path) -> SparseTensor:
    """A tensor from ``.tns`` or ``.tns.gz``, entries in file order."""
    chunks = list(_number_chunks(path))
    if not chunks:
        raise DataError(f"{path} has no entries")
    numbers = np.concatenate(chunks)
    modes = _modes(path, numbers[:, :-1].max(axis=0))
    check_positions(path, modes, len(numbers))
    try:
        return SparseTensor(numbers[:, :-1] - 1, numbers[:, -1], modes)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def write(tensor: SparseTensor, path: Path) -> None:
    """Write ``.tns`` or ``.tns.gz``, and a ``.map`` file beside it for every labelled mode."""
    _refuse_line_ends(tensor)
    table = pl.DataFrame({f"i{n}": tensor.indices[:, n].astype(np.int64) + 1 for n in range(tensor.n_modes)})
    text = table.with_columns(value=pl.Series(tensor.values)).write_csv(include_header=False, separator=" ")
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    stem = path.name.split(".tns")[0]
    for n, mode in enumerate(tensor.modes):
        if mode.labels is not None:
            name = mode.name.replace("/", _SLASH)
            lines = "".join(f"{label}\n" for label in mode.labels)
            path.with_name(f"{stem}.mode-{n + 1}-{name}.map").write_bytes(lines.encode())


def scan(path: Path, rows: int) -> ChunkedSource:
    """A tensor from ``.tns`` or ``.tns.gz``, entries in file order, a block of lines at a time."""
    entries, top = 0, np.zeros(0)
    for numbers in _number_chunks(path):
        most = numbers[:, :-1].max(axis=0)
        top = np.maximum(top, most) if entries else most
        entries += len(numbers)
    if not entries:
        raise DataError(f"{path} has no entries")
    modes = _modes(path, top)
    check_positions(path, modes, entries)

    def chunks() -> Iterator[Chunk]:
        return checked(path, ((numbers[:, :-1] - 1, numbers[:, -1]) for numbers in _number_chunks(path)), modes)

    return ChunkedSource(modes, entries, chunks)


def _number_chunks(path: Path) -> Iterator[NDArray[np.float64]]:
    """All lines as numbers, ``(entries, modes + 1)`` at a time; indices are whole numbers from 1 on."""
    line, fields = 1, 0
    for text in line_chunks(path):
        numbers = _numbers_of(path, text, line, fields)
        if len(numbers):
            fields = numbers.shape[1]
            _check_indices(path, numbers[:, :-1], text, line)
            yield numbers
        line += text.count(b"\n")


def _modes(path: Path, top: NDArray[np.float64]) -> tuple[Mode, ...]:
    """The modes whose largest indices, counted from 1, are ``top``; names and labels are from ``.map`` files."""
    maps = read_maps(path, len(top))
    modes = []
    for n, size in enumerate(top):
        name, labels = maps.get(n, (f"mode_{n}", None))
        if labels is not None and len(labels) < size:
            raise DataError(f"{path}: mode '{name}' has index {size:g}, but its .map file has {len(labels)} labels")
        try:
            order = guess_order(name, labels)
            modes.append(Mode(name, int(size) if labels is None else len(labels), labels, order))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    return tuple(modes)


def count(path: Path) -> tuple[int, int]:
    """Entries, at most, and modes, by the size of the file and its first line."""
    _, first = next(_data_lines(first_bytes(path, 1 << 16)), (0, ""))
    modes = max(len(first.split()) - 1, 1)
    return max_rows(path, modes + 1), modes


def read_queries(path: Path, *, values: bool) -> IndexedQueries:
    """Indices of a file, with the labels of its ``.map`` files, and values where they are asked for."""
    tensor = read(path)
    return IndexedQueries(tensor.indices, [mode.labels for mode in tensor.modes], tensor.values if values else None)


def _refuse_line_ends(tensor: SparseTensor) -> None:
    for mode in tensor.modes:
        wrong = next((label for label in mode.labels or () if "\n" in label or label.endswith("\r")), None)
        if wrong is not None:
            raise DataError(f"label {wrong!r} of mode '{mode.name}' has a line end, which .map files cannot hold")


def _read_bytes(path: Path) -> bytes:
    return unpack_gzip(path) if path.suffix == ".gz" else path.read_bytes()


def _numbers_of(path: Path, data: bytes, line: int, fields: int) -> NDArray[np.float64]:
    """Some lines as numbers, ``(entries, modes + 1)``, from line number ``line`` of the file on.

    ``fields``: of the entries before; 0 if these are the first.
    """
    first = next(_data_lines(data), None)
    if first is None:
        return np.empty((0, 0))
    fields = fields or len(first[1].split())
    if fields < 3:
        where = f"{path}, line {first[0] + line - 1}"
        raise DataError(f"{where}: {fields} fields in a line; a tensor needs at least two indices and a value")
    # FROSTT's own files have single blanks
    table = _parse(data, fields) if data[:1] in _BEGINNINGS else None
    return _parse_slowly(path, data, line, fields) if table is None else table.to_numpy()


def _parse(data: bytes, fields: int) -> pl.DataFrame | None:
    """Lines with single blanks as numbers; ``None`` where one is not."""
    schema = {f"f{n}": pl.Float64 for n in range(fields)}
    options: dict[str, Any] = {"separator": " ", "has_header": False, "comment_prefix": "#", "quote_char": None}
    try:
        table = pl.read_csv(io.BytesIO(data), schema=schema, **options)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return None if table.null_count().sum_horizontal()[0] else table


def _parse_slowly(path: Path, data: bytes, first: int, fields: int) -> NDArray[np.float64]:
    """The same for any blanks and for comments behind entries; names the first line that is wrong."""
    rows: list[list[float]] = []
    for number, line in _data_lines(data, first):
        words = line.split()
        if len(words) != fields:
            raise DataError(
                f"{path}, line {number}: {len(words)} fields, the first entry has {fields} (is the file cut off?)"
            )
        wrong = next((word for word in words if not _is_number(word)), None)
        if wrong is not None:
            raise DataError(f"{path}, line {number}: {wrong!r} is not a number")
        rows.append([float(word) for word in words])
    return np.array(rows)


def _data_lines(data: bytes, first: int = 1) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(io.BytesIO(data), start=first):
        line = raw.decode("utf-8", errors="replace").partition("#")[0].strip()
        if line:
            yield number, line


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word  # Python alone reads 1_000


def _check_indices(path: Path, indices: NDArray[np.float64], text: bytes, first: int) -> None:
    """Refuse indices that are not whole numbers from 1 on; ``text`` are their lines, from line ``first`` on."""
    for wrong, what in (
        (~np.isfinite(indices) | (indices != np.floor(indices)), "not a whole number"),
        (indices < 1, "below 1; indices are one-based"),
    ):
        if wrong.any():
            row, n = np.argwhere(wrong)[0]
            line, _ = next(islice(_data_lines(text, first), int(row), None))
            raise DataError(f"{path}, line {line}: index {indices[row, n]:g} of mode {n + 1} is {what}")


def read_maps(path: Path, n_modes: int) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Names and labels of modes, by position, from the ``.map`` files beside a tensor."""
    stem = re.escape(path.name.split(".tns")[0])
    found: dict[int, tuple[str, tuple[str, ...]]] = {}
    for pattern in (r"mode-(\d+)-(.+?)\.map(\.gz)?$", stem + r"[._-]mode-(\d+)-(.+?)\.map(\.gz)?$"):
        for file in sorted(path.parent.iterdir()):
            match = re.match(pattern, file.name)
            if match and 1 <= int(match[1]) <= n_modes and file.is_file():
                text = _read_bytes(file).decode("utf-8", errors="replace")
                labels = text.removesuffix("\n").split("\n")
                found[int(match[1]) - 1] = match[2].replace(_SLASH, "/"), tuple(x.removesuffix("\r") for x in labels)
    return found
