"""Writes chunks of entries to shards on disk: splits them, refuses duplicate cells, and counts entries per label.

Two passes. The first one keeps validation entries in memory, writes the test entries of every chunk to a shard, and
appends all entries to bucket files by a hash of their cells. In the second one each bucket, which is small, is read
whole, checked, and its training entries are written to a shard. Of several processes each has the buckets of its own
share of the cells.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.formats.base import Chunk
from jointensor.data.modes import Mode
from jointensor.data.shards import Shards, read_ahead, read_header, save_shard, write_header
from jointensor.data.split import TEST, TRAIN, VALID, SplitAssignment
from jointensor.data.split.assignment import mix
from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.data.values import ValueSummary
from jointensor.errors import ConfigError, DataError, RunError

BUCKET_SEED = 0x5A4D
"""Seed of the hash that chooses an entry's bucket; fixed, so that the same source gives the same shards."""


@dataclass(frozen=True)
class Share:
    """Which process of how many; each has the cells whose hash gives its rank."""

    rank: int = 0
    size: int = 1


ALL = Share()
"""The share of a single process."""


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor whose training and test entries are in shards on disk; of several processes, the share of one.

    The first process has the test entries of all, and every process all validation entries.
    """

    modes: tuple[Mode, ...]
    train: Shards
    test: Shards
    valid: SparseTensor
    """Validation entries in memory; a sample where there are more than ``SplitRule.max_valid``."""
    summary: ValueSummary
    """Of the training values, of all processes."""
    counts: tuple[NDArray[np.int64], ...]
    """Training entries of every label, ``(I_n,)`` for each mode, of all processes."""
    entries: int
    """Number of entries of all parts of the split."""
    how: str
    """How the split was drawn: ``permuted`` or ``hashed``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""
        return tuple(mode.size for mode in self.modes)


def write_shards(
    folder: Path,
    chunks: Iterable[Chunk],
    modes: tuple[Mode, ...],
    assignment: SplitAssignment,
    per_shard: int,
    rule: dict[str, Any],
    *,
    test: Iterable[Chunk] | None = None,
    share: Share = ALL,
) -> ShardedTensor:
    """Write the shards of a source; of several processes, of this one's share, with sums over that share alone.

    Parameters
    ----------
    folder
        Created; its contents are removed first.
    chunks
        All entries in their order, with valid indices and values.
    modes
        The modes of the tensor.
    assignment
        The part of the split that each entry belongs to.
    per_shard
        Approximate number of entries of a shard.
    rule
        Stored in the header; :func:`load_shards` takes these shards again for an equal rule.
    test
        Test entries from elsewhere, read after all chunks.
    share
        Which of the entries are kept.
    """
    if max(mode.size for mode in modes) > np.iinfo(np.int32).max:
        raise ConfigError("a mode with more than 2,147,483,647 labels cannot be stored in shards; leave out --memory")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        (folder / "buckets").mkdir(parents=True)
        count = max(1, math.ceil(assignment.entries / share.size / per_shard))
        kept: list[Chunk] = []
        held_out = _fill_buckets(folder / "buckets", chunks, assignment, count, share, kept)
        tests = _save_shards(folder, "test", held_out)
        if test is not None:
            tests = _save_shards(folder, "test", test)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from error
    valid = SparseTensor.part(np.concatenate([one for one, _ in kept]), np.concatenate([one for _, one in kept]), modes)
    summary, labels = ValueSummary(), tuple(np.zeros(mode.size, dtype=np.int64) for mode in modes)
    train = _save_shards(folder, "train", _read_buckets(folder / "buckets", modes, count, share, summary, labels))
    if not summary.n:
        raise ConfigError(f"split '{assignment.rule.rule}' leaves no training entries; lower the test share")
    shutil.rmtree(folder / "buckets")
    sharded = ShardedTensor(modes, train, tests, valid, summary, labels, assignment.entries, assignment.method)
    np.savez(folder / "counts.npz", *sharded.counts)
    np.savez(folder / "valid.npz", indices=sharded.valid.indices, values=sharded.valid.values)
    write_header(folder, _header(sharded, rule))
    return sharded


def load_shards(folder: Path, modes: tuple[Mode, ...], rule: dict[str, Any]) -> ShardedTensor | None:
    """The shards that :func:`write_shards` wrote for the same rule; ``None`` unless all of them are complete."""
    header = read_header(folder)
    if header is None or header.get("rule") != rule:
        return None
    try:
        train, test = (
            Shards(folder, name, tuple(header[name]["counts"]), tuple(header[name]["checksums"]))
            for name in ("train", "test")
        )
        with np.load(folder / "counts.npz") as counts, np.load(folder / "valid.npz") as valid:
            validation = SparseTensor.part(valid["indices"], valid["values"], modes)
            labels = tuple(counts[name] for name in counts.files)
        if not (train.whole() and test.whole()):
            return None
        return ShardedTensor(
            modes, train, test, validation, ValueSummary(**header["summary"]), labels, header["entries"], header["how"]
        )
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _header(sharded: ShardedTensor, rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "rule": rule,
        "entries": sharded.entries,
        "how": sharded.how,
        "summary": vars(sharded.summary),
        "train": sharded.train.to_dict(),
        "test": sharded.test.to_dict(),
    }


def _save_shards(folder: Path, name: str, chunks: Iterable[Chunk]) -> Shards:
    """Write a shard for every chunk that has entries."""
    counts: list[int] = []
    checksums: list[int] = []
    for indices, values in chunks:
        if len(values):
            checksums.append(save_shard(folder, name, len(counts), indices, values))
            counts.append(len(values))
    return Shards(folder, name, tuple(counts), tuple(checksums))


def _fill_buckets(
    folder: Path, chunks: Iterable[Chunk], assignment: SplitAssignment, count: int, share: Share, valid: list[Chunk]
) -> Iterator[Chunk]:
    """Append the entries of this share to buckets as ``modes + 2`` 32-bit numbers: indices, value, part of the split.

    Validation entries of all shares are added to ``valid``. Yields test entries: the first process has those of all.
    """
    start = 0
    for indices, values in chunks:
        n_modes, hashed, part = indices.shape[1], _hash(indices), assignment.of(start, len(values))
        start += len(values)
        mine = hashed % np.uint64(share.size) == share.rank
        valid.append((indices[part == VALID], values[part == VALID]))
        tested = (part == TEST) & (mine | (share.rank == 0))
        yield indices[tested], values[tested]
        bucket = (hashed[mine] // np.uint64(share.size) % np.uint64(count)).astype(
            np.uint16 if count < 65536 else np.uint32
        )
        records = np.empty((len(bucket), n_modes + 2), dtype=np.int32)
        records[:, :n_modes] = indices[mine]
        records[:, n_modes] = values[mine].view(np.int32)
        records[:, n_modes + 1] = part[mine]
        order = np.argsort(bucket, kind="stable")
        records = records[order]
        ends = np.cumsum(np.bincount(bucket, minlength=count))
        for k, (begin, end) in enumerate(zip(np.r_[0, ends[:-1]], ends, strict=True)):
            if end > begin:
                with (folder / f"{k:05d}").open("ab") as file:
                    records[begin:end].tofile(file)


def _hash(indices: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A pseudo-random number per cell, ``(entries,)``."""
    hashed = np.zeros(len(indices), dtype=np.uint64)
    for n in range(indices.shape[1]):
        hashed = mix(hashed ^ indices[:, n].astype(np.uint64), BUCKET_SEED + n)
    return hashed


def _read_buckets(
    folder: Path,
    modes: tuple[Mode, ...],
    count: int,
    share: Share,
    summary: ValueSummary,
    labels: tuple[NDArray[np.int64], ...],
) -> Iterator[Chunk]:
    """Training entries of every bucket; their values are added to ``summary``, their numbers by label to ``labels``."""
    width = len(modes) + 2

    def read(k: int) -> NDArray[np.int32]:
        path = folder / f"{k:05d}"
        if not path.exists():
            return np.empty((0, width), dtype=np.int32)
        records = np.fromfile(path, dtype=np.int32).reshape(-1, width)
        path.unlink()
        return records

    for records in read_ahead(read, range(count)):
        _refuse_duplicates(records[:, :-2], modes)
        chosen = records[records[:, -1] == TRAIN]
        if share.size > 1 and not len(chosen):  # shards of all processes are read in step
            raise ConfigError(f"there are too few training entries for {share.size} processes; start fewer")
        chosen = chosen[np.argsort(chosen[:, -3], kind="stable")]  # by the last mode
        indices, values = chosen[:, :-2], np.ascontiguousarray(chosen[:, -2]).view(np.float32)
        summary.update(values)
        for n, total in enumerate(labels):
            total += np.bincount(indices[:, n], minlength=len(total))
        yield indices, values


def _refuse_duplicates(indices: NDArray[np.int32], modes: tuple[Mode, ...]) -> None:
    """Refuse duplicate cells; all entries of a cell are in the same bucket."""
    keys = cell_keys(indices, [mode.size for mode in modes])
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if len(again):
        cell = indices[order[again[0]]]
        names = ", ".join(f"{mode.name}={mode.label(int(i))}" for mode, i in zip(modes, cell, strict=True))
        raise DataError(
            f"entries repeat a cell, for example ({names}); choose a rule for them (--duplicates sum, mean, count or "
            "last, for tables)"
        )
