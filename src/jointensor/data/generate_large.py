"""Synthetic tensors larger than memory: drawn, and written to an archive, in chunks.

The k-th cell is that of a random permutation of all cells at k, so that cells are distinct without anyone having to
remember them: a Feistel network of four rounds, walked on while it leads outside the tensor. Parts are scaled to each
other by the spread of a sample.
"""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.generate import NONLINEARITIES, Plan, _additive, _factors, _in_blocks, _multilinear
from jointensor.data.split.assignment import mix
from jointensor.errors import ConfigError

LARGE = 20_000_000
"""Entries above which a tensor is drawn in chunks."""

PIECE = 1 << 19
"""Entries of a piece."""

SAMPLE = 1 << 20
"""Entries whose spread scales the parts."""

ROUNDS = 4


def write_large(plan: Plan, path: Path) -> None:
    """Draw a tensor and write it as ``.npz``, not packed; memory does not grow with its entries.

    Raises
    ------
    ConfigError
        If a skew is asked for: cells that are drawn more often than others have to be remembered.
    """
    if plan.skew:
        raise ConfigError(f"more than {LARGE:,} entries are drawn in chunks, without a skew; leave out --skew")
    if path.suffix != ".npz":
        raise ConfigError(f"more than {LARGE:,} entries are written in chunks; give --out a name that ends in .npz")
    if math.prod(plan.shape) >= 2**62:
        raise ConfigError(f"shape {plan.shape}: cells that cannot be numbered in 62 bits cannot be drawn in chunks")
    values_of = _Values(plan)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        tempfile.TemporaryFile(dir=path.parent) as aside,
    ):
        with archive.open("indices.npy", "w", force_zip64=True) as file:
            _head(file, (plan.entries, len(plan.shape)), "<i4")
            for cells in chunks(plan):
                file.write(cells.tobytes())
                aside.write(values_of(cells).tobytes())
        aside.seek(0)
        with archive.open("values.npy", "w", force_zip64=True) as file:
            _head(file, (plan.entries,), "<f4")
            while data := aside.read(1 << 24):
                file.write(data)
        with archive.open("shape.npy", "w") as file:
            np.lib.format.write_array(file, np.array(plan.shape, dtype=np.int64))


def chunks(plan: Plan) -> Iterator[NDArray[np.int32]]:
    """All cells, ``(at most PIECE, modes)`` at a time."""
    for start in range(0, plan.entries, PIECE):
        yield _cells(plan, np.arange(start, min(start + PIECE, plan.entries), dtype=np.uint64))


class _Values:
    """Values of cells, their parts scaled to each other by a sample."""

    def __init__(self, plan: Plan) -> None:
        for_factors, _, self.for_noise = np.random.default_rng(plan.seed).spawn(3)
        self.plan, self.scale, self.noise = plan, 0.0, 0.0
        self.linear = _factors(plan.shape, plan.rank[0], for_factors)
        self.nonlinear = _factors(plan.shape, plan.rank[1], for_factors)
        sample = _cells(plan, np.arange(min(SAMPLE, plan.entries), dtype=np.uint64))
        if plan.rank[1]:
            spread = float(self._bent(sample).std(dtype=np.float64))
            straight = _in_blocks(sample, self.linear, _multilinear).std(dtype=np.float64) if plan.rank[0] else 1.0
            self.scale = plan.ratio * float(straight) / spread if spread else 1.0
        self.noise = plan.noise * float(self(sample).std(dtype=np.float64))

    def __call__(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        """One number per cell."""
        values = _in_blocks(cells, self.linear, _multilinear)
        if self.scale:
            values += np.float32(self.scale) * self._bent(cells)
        if self.noise:
            values += np.float32(self.noise) * self.for_noise.standard_normal(len(cells), dtype=np.float32)
        return values

    def _bent(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        curve = NONLINEARITIES[self.plan.nonlinearity]
        return _in_blocks(cells, self.nonlinear, lambda rows: _additive(rows, curve))


def _cells(plan: Plan, numbers: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The cells at some places of a random permutation of all."""
    every = math.prod(plan.shape)
    half = np.uint64(max(1, math.ceil(math.log2(max(every, 2)) / 2)))
    found = _permute(numbers, half, plan.seed)
    outside = np.flatnonzero(found >= every)
    while len(outside):
        found[outside] = _permute(found[outside], half, plan.seed)
        outside = outside[found[outside] >= every]
    return np.stack(np.unravel_index(found.astype(np.int64), plan.shape), axis=1).astype(np.int32)


def _permute(numbers: NDArray[np.uint64], half: np.uint64, seed: int) -> NDArray[np.uint64]:
    """A random permutation of all numbers of twice ``half`` bits."""
    low = np.uint64((1 << int(half)) - 1)
    left, right = numbers >> half, numbers & low
    for round_ in range(ROUNDS):
        left, right = right, left ^ (mix(right, 31 * seed + round_) & low)
    return (left << half) | right


def _head(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    header: dict[str, Any] = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
