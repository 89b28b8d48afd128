"""Writes chunks of entries to shards on disk: splits them, refuses duplicate cells, and counts entries per label.

Two passes: every chunk is appended to bucket files by a hash of its cells; then each bucket, which is small, is read
whole, checked, divided into training, validation and test entries, and written as one shard of each.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
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
class ShardedTensor:
    """A tensor whose training and test entries are in shards on disk."""

    modes: tuple[Mode, ...]
    train: Shards
    test: Shards
    valid: SparseTensor
    """Validation entries in memory; a sample where there are more than ``SplitRule.max_valid``."""
    summary: ValueSummary
    """Of the training values."""
    counts: tuple[NDArray[np.int64], ...]
    """Training entries of every label, ``(I_n,)`` for each mode."""
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
) -> ShardedTensor:
    """Write the shards of a source.

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
    """
    if max(mode.size for mode in modes) > np.iinfo(np.int32).max:
        raise ConfigError("a mode with more than 2,147,483,647 labels cannot be stored in shards; leave out --memory")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        (folder / "buckets").mkdir(parents=True)
        count = max(1, math.ceil(assignment.entries / per_shard))
        _fill_buckets(folder / "buckets", chunks, assignment, count)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from error
    sharded = _buckets_to_shards(folder, modes, assignment, count)
    shutil.rmtree(folder / "buckets")
    write_header(folder, _header(sharded, rule))
    np.savez(folder / "counts.npz", *sharded.counts)
    np.savez(folder / "valid.npz", indices=sharded.valid.indices, values=sharded.valid.values)
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


def _fill_buckets(folder: Path, chunks: Iterable[Chunk], assignment: SplitAssignment, count: int) -> None:
    """Append every entry to its bucket as ``modes + 2`` 32-bit numbers: indices, value, part of the split."""
    start = 0
    for indices, values in chunks:
        n_modes = indices.shape[1]
        bucket = (_hash(indices) % np.uint64(count)).astype(np.uint16 if count < 65536 else np.uint32)
        records = np.empty((len(values), n_modes + 2), dtype=np.int32)
        records[:, :n_modes] = indices
        records[:, n_modes] = values.view(np.int32)
        records[:, n_modes + 1] = assignment.of(start, len(values))
        order = np.argsort(bucket, kind="stable")
        records = records[order]
        ends = np.cumsum(np.bincount(bucket, minlength=count))
        for k, (begin, end) in enumerate(zip(np.r_[0, ends[:-1]], ends, strict=True)):
            if end > begin:
                with (folder / f"{k:05d}").open("ab") as file:
                    records[begin:end].tofile(file)
        start += len(values)


def _hash(indices: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A pseudo-random number per cell, ``(entries,)``."""
    hashed = np.zeros(len(indices), dtype=np.uint64)
    for n in range(indices.shape[1]):
        hashed = mix(hashed ^ indices[:, n].astype(np.uint64), BUCKET_SEED + n)
    return hashed


def _buckets_to_shards(folder: Path, modes: tuple[Mode, ...], assignment: SplitAssignment, count: int) -> ShardedTensor:
    """Turn every bucket into one training and one test shard."""
    shape = tuple(mode.size for mode in modes)
    labels = tuple(np.zeros(size, dtype=np.int64) for size in shape)
    summary, kept = ValueSummary(), []
    written: dict[str, tuple[list[int], list[int]]] = {"train": ([], []), "test": ([], [])}
    width = len(modes) + 2

    def read(k: int) -> NDArray[np.int32]:
        path = folder / "buckets" / f"{k:05d}"
        if not path.exists():
            return np.empty((0, width), dtype=np.int32)
        records = np.fromfile(path, dtype=np.int32).reshape(-1, width)
        path.unlink()
        return records

    for records in read_ahead(read, range(count)):
        indices, part = records[:, :-2], records[:, -1]
        _refuse_duplicates(indices, modes)
        values = np.ascontiguousarray(records[:, -2]).view(np.float32)
        for name, one in (("train", TRAIN), ("test", TEST)):
            chosen = np.flatnonzero(part == one)
            if len(chosen):
                chosen = chosen[np.argsort(indices[chosen, -1], kind="stable")]
                counts, checksums = written[name]
                checksums.append(save_shard(folder, name, len(counts), indices[chosen], values[chosen]))
                counts.append(len(chosen))
            if one == TRAIN:
                summary.update(values[chosen])
                for n, total in enumerate(labels):
                    total += np.bincount(indices[chosen, n], minlength=len(total))
        held = part == VALID
        kept.append((indices[held], values[held]))
    if not summary.n:
        raise ConfigError(f"split '{assignment.rule.rule}' leaves no training entries; lower the test share")
    valid = SparseTensor.part(np.concatenate([one for one, _ in kept]), np.concatenate([one for _, one in kept]), modes)
    train, test = (Shards(folder, name, tuple(c), tuple(s)) for name, (c, s) in written.items())
    return ShardedTensor(modes, train, test, valid, summary, labels, assignment.entries, assignment.method)


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
