"""Entries that come in pieces, dealt to shards: split, checked for cells that occur twice, and counted on the way.

Two passes: every piece goes to bucket files by a hash of its cells; then each bucket, which is small, is read whole,
checked, divided into training, validation and test entries, and written as a shard of each.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.modes import Mode
from jointensor.data.shards import Shards, read_ahead, read_header, save_shard, write_header
from jointensor.data.split_assignment import TEST, TRAIN, VALID, Sides, mix
from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import ConfigError, DataError, RunError

Piece = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Indices ``(entries, modes)`` and values of some entries."""

LARGE_SEED = 0x5A4D
"""Of the hash that deals entries; it is always the same, so that the same source gives the same shards."""


@dataclass
class Summary:
    """Running sums of values."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""
    low: float = math.inf
    high: float = -math.inf

    def update(self, values: NDArray[np.float32]) -> None:
        """Add some values (the parallel form of Welford's sums, which does not cancel)."""
        if not len(values):
            return
        exact = values.astype(np.float64)
        mean, total = float(exact.mean()), self.n + len(values)
        shift = mean - self.mean
        self.squares += float(np.sum((exact - mean) ** 2)) + shift**2 * self.n * len(values) / total
        self.mean += shift * len(values) / total
        self.n = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    @property
    def spread(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.squares / self.n) if self.n else 0.0


@dataclass(frozen=True)
class Dealt:
    """A tensor on disk, split."""

    modes: tuple[Mode, ...]
    train: Shards
    test: Shards
    valid: SparseTensor
    """Validation entries in memory; a sample, where there are very many."""
    summary: Summary
    """Of the training values."""
    counts: tuple[NDArray[np.int64], ...]
    """Training entries of every label, ``(I_n,)`` for each mode."""
    entries: int
    """All of them, on any side."""
    how: str
    """How the split was made: ``permuted`` or ``hashed``."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""
        return tuple(mode.size for mode in self.modes)


def deal(
    folder: Path, pieces: Iterable[Piece], modes: tuple[Mode, ...], sides: Sides, per_shard: int, rule: dict[str, Any]
) -> Dealt:
    """Write the shards of a source.

    Parameters
    ----------
    folder
        Made here; anything in it is removed.
    pieces
        The entries in their order, checked one by one already.
    modes
        The axes.
    sides
        Of every entry.
    per_shard
        About how many entries a shard has.
    rule
        What a header must say for :func:`dealt_before` to take these shards again.
    """
    if max(mode.size for mode in modes) > np.iinfo(np.int32).max:
        raise ConfigError("a mode with more than 2,147,483,647 labels cannot be kept on disk; leave out --memory")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        (folder / "buckets").mkdir(parents=True)
        count = max(1, math.ceil(sides.entries / per_shard))
        _fill_buckets(folder / "buckets", pieces, sides, count)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from error
    dealt = _finish(folder, modes, sides, count)
    shutil.rmtree(folder / "buckets")
    write_header(folder, _header(dealt, rule))
    np.savez(folder / "counts.npz", *dealt.counts)
    np.savez(folder / "valid.npz", indices=dealt.valid.indices, values=dealt.valid.values)
    return dealt


def dealt_before(folder: Path, modes: tuple[Mode, ...], rule: dict[str, Any]) -> Dealt | None:
    """What :func:`deal` wrote for the same rule, if all of it is there unharmed."""
    header = read_header(folder)
    if header is None or header.get("rule") != rule:
        return None
    try:
        train, test = (
            Shards(folder, name, tuple(header[name]["counts"]), tuple(header[name]["checksums"]))
            for name in ("train", "test")
        )
        with np.load(folder / "counts.npz") as counts, np.load(folder / "valid.npz") as valid:
            kept = SparseTensor(valid["indices"], valid["values"], modes)
            labels = tuple(counts[name] for name in counts.files)
        if not (train.whole() and test.whole()):
            return None
        return Dealt(modes, train, test, kept, Summary(**header["summary"]), labels, header["entries"], header["how"])
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _header(dealt: Dealt, rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "rule": rule,
        "entries": dealt.entries,
        "how": dealt.how,
        "summary": vars(dealt.summary),
        "train": dealt.train.to_dict(),
        "test": dealt.test.to_dict(),
    }


def _fill_buckets(folder: Path, pieces: Iterable[Piece], sides: Sides, count: int) -> None:
    """Append every entry to the bucket of its cell, as ``modes + 2`` numbers of 32 bits: indices, value, side."""
    start = 0
    for indices, values in pieces:
        n_modes = indices.shape[1]
        bucket = (_hash(indices) % np.uint64(count)).astype(np.uint16 if count < 65536 else np.uint32)
        records = np.empty((len(values), n_modes + 2), dtype=np.int32)
        records[:, :n_modes] = indices
        records[:, n_modes] = values.view(np.int32)
        records[:, n_modes + 1] = sides.of(start, len(values))
        order = np.argsort(bucket, kind="stable")
        records = records[order]
        ends = np.cumsum(np.bincount(bucket, minlength=count))
        for k, (begin, end) in enumerate(zip(np.r_[0, ends[:-1]], ends, strict=True)):
            if end > begin:
                with (folder / f"{k:05d}").open("ab") as file:
                    records[begin:end].tofile(file)
        start += len(values)


def _hash(indices: NDArray[np.int32]) -> NDArray[np.uint64]:
    """One random-looking number per cell."""
    hashed = np.zeros(len(indices), dtype=np.uint64)
    for n in range(indices.shape[1]):
        hashed = mix(hashed ^ indices[:, n].astype(np.uint64), LARGE_SEED + n)
    return hashed


def _finish(folder: Path, modes: tuple[Mode, ...], sides: Sides, count: int) -> Dealt:
    """Turn every bucket into shards."""
    shape = tuple(mode.size for mode in modes)
    labels = tuple(np.zeros(size, dtype=np.int64) for size in shape)
    summary, kept = Summary(), []
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
        indices, side = records[:, :-2], records[:, -1]
        _refuse_duplicates(indices, modes)
        values = np.ascontiguousarray(records[:, -2]).view(np.float32)
        for name, one in (("train", TRAIN), ("test", TEST)):
            chosen = np.flatnonzero(side == one)
            if len(chosen):
                chosen = chosen[np.argsort(indices[chosen, -1], kind="stable")]
                counts, checksums = written[name]
                checksums.append(save_shard(folder, name, len(counts), indices[chosen], values[chosen]))
                counts.append(len(chosen))
            if one == TRAIN:
                summary.update(values[chosen])
                for n, total in enumerate(labels):
                    total += np.bincount(indices[chosen, n], minlength=len(total))
        held = side == VALID
        kept.append((indices[held], values[held]))
    if not summary.n:
        raise ConfigError(f"split '{sides.how.rule}' leaves no training entries; lower the test share")
    valid = SparseTensor(np.concatenate([one for one, _ in kept]), np.concatenate([one for _, one in kept]), modes)
    train, test = (Shards(folder, name, tuple(c), tuple(s)) for name, (c, s) in written.items())
    return Dealt(modes, train, test, valid, summary, labels, sides.entries, sides.record)


def _refuse_duplicates(indices: NDArray[np.int32], modes: tuple[Mode, ...]) -> None:
    """All entries of a cell are in one bucket, so that looking into every bucket finds all that occur twice."""
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
