"""Entries in shards on disk, read one shard at a time, so that memory does not grow with their number.

A shard is a file of indices and a file of values, plain NumPy arrays. Which shard an entry is in is random (a hash of
its cell), so that one shard is a sample of all entries, and both entries of a duplicate cell are in the same shard.
Inside a shard, entries are in the order of their labels in the last mode, which exact sweeps read fastest. Indices are
mapped, a shard at a time, so that they are not copied; mapped pages count as memory.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import write_json
from jointensor.errors import RunError

Key = TypeVar("Key")
Item = TypeVar("Item")

HEADER = "shards.json"


@dataclass(frozen=True)
class Block:
    """Some entries in memory."""

    indices: NDArray[np.int32]  # (entries, modes)
    values: NDArray[np.float32]  # (entries,)
    column: NDArray[np.float32] | None = None  # (entries,)
    """One more number per entry, if it was requested."""

    def __len__(self) -> int:
        return len(self.values)

    def shuffled(self, rng: np.random.Generator) -> Block:
        """The same entries in a random order."""
        order = rng.permutation(len(self))
        column = None if self.column is None else self.column[order]
        return Block(self.indices[order], self.values[order], column)


@dataclass(frozen=True)
class Shards:
    """A folder of entries; ``NAME-0000.indices.npy``, ``NAME-0000.values.npy`` and so on.

    Parameters
    ----------
    folder, name
        Where the files are, and how they begin.
    counts
        Entries of every shard.
    checksums
        Of the indices and values of every shard.
    """

    folder: Path
    name: str
    counts: tuple[int, ...]
    checksums: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.counts)

    def read(self, k: int, column: str | None = None, values: str = "values") -> Block:
        """One shard, with one more column where it is named; ``values`` may name a column that stands for them."""
        extra = None if column is None else _load(self.path(k, column))
        return Block(_map(self.path(k, "indices")), _load(self.path(k, values)), extra)

    def blocks(
        self,
        column: str | None = None,
        values: str = "values",
        order: Sequence[int] | None = None,
        rng: np.random.Generator | None = None,
    ) -> Iterator[Block]:
        """All shards, the next one being read while the last one is used.

        Parameters
        ----------
        column, values
            As for :meth:`read`.
        order
            Which shards, in which order; all of them without it.
        rng
            Shuffles the entries of every shard; without it they come as they are.
        """

        def read(k: int) -> Block:
            block = self.read(k, column, values)
            return block if rng is None else block.shuffled(rng)

        return read_ahead(read, range(len(self.counts)) if order is None else order)

    def read_column(self, k: int, column: str) -> NDArray[Any]:
        """A column of a shard that :meth:`write_column` wrote; mapped."""
        return _map(self.path(k, column))

    def write_column(self, k: int, column: str, numbers: NDArray[Any]) -> None:
        """Write one or more numbers per entry of a shard, replacing the column if it exists."""
        path = self.path(k, column)
        try:  # writing over a file is faster than a new one, and without a buffer arrays are not copied
            with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
                np.save(file, numbers, allow_pickle=False)
                file.truncate()
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror or error}") from error

    def path(self, k: int, column: str) -> Path:
        """The file of a column."""
        return self.folder / f"{self.name}-{k:04d}.{column}.npy"

    def whole(self) -> bool:
        """Whether the checksums of all files match."""
        try:
            return all(checksum(self.read(k)) == expected for k, expected in enumerate(self.checksums))
        except (OSError, ValueError, RunError):
            return False

    def to_dict(self) -> dict[str, Any]:
        """Counts and checksums for the header."""
        return {"counts": list(self.counts), "checksums": list(self.checksums)}


def read_ahead(read: Callable[[Key], Item], keys: Sequence[Key]) -> Iterator[Item]:
    """``read`` of every key in turn; a thread reads the next one meanwhile.

    The thread ends with the iterator: after the last item, when the iterator is closed, or with what ``read`` raised.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        coming: deque[Future[Item]] = deque()
        for key in keys:
            coming.append(pool.submit(read, key))
            if len(coming) > 1:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def save_shard(folder: Path, name: str, k: int, indices: NDArray[np.int32], values: NDArray[np.float32]) -> int:
    """Write the k-th shard; returns its checksum."""
    block = Block(np.ascontiguousarray(indices), np.ascontiguousarray(values))
    one = Shards(folder, name, (), ())
    _save(one.path(k, "indices"), block.indices)
    _save(one.path(k, "values"), block.values)
    return checksum(block)


def checksum(block: Block) -> int:
    """CRC-32 of indices and values."""
    return zlib.crc32(block.values.data, zlib.crc32(block.indices.data))


def write_header(folder: Path, facts: dict[str, Any]) -> None:
    """Write the header, the last of all files: it marks the shards as complete."""
    write_json(folder / HEADER, facts)


def read_header(folder: Path) -> dict[str, Any] | None:
    """The header of a folder of shards; ``None`` where they are incomplete."""
    try:
        data = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _load(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _map(path: Path) -> NDArray[Any]:
    """The same array mapped, copy on write: changes stay in memory."""
    try:
        if hasattr(os, "posix_fadvise"):  # where the system takes advice: read it while others are worked on
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        return np.asarray(np.load(path, allow_pickle=False, mmap_mode="c"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _save(path: Path, array: NDArray[Any]) -> None:
    try:
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
