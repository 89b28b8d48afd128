"""Synthetic tensors larger than memory: drawn, and written to an archive, in chunks.

The k-th cell is element k of a pseudo-random permutation of all cells, so that cells are distinct without a list of
them: a Feistel network of four rounds, applied again while its result is outside the tensor. The nonlinear part is
scaled by the standard deviation of a sample.
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

from jointensor.data.generate import NONLINEARITIES, SyntheticSpec, _additive, _factors, _in_blocks, _multilinear
from jointensor.data.split.assignment import mix
from jointensor.errors import ConfigError

MAX_IN_MEMORY = 20_000_000
"""Entries up to which a tensor is drawn in memory."""

CHUNK_ENTRIES = 1 << 19
"""Entries of a chunk."""

SAMPLE_ENTRIES = 1 << 20
"""Entries of the sample that scales the parts."""

ROUNDS = 4


def write_large(spec: SyntheticSpec, path: Path) -> None:
    """Draw a tensor and write it as ``.npz``, not packed; memory does not grow with its entries.

    Raises
    ------
    ConfigError
        If there is a skew: cells that are drawn more often than others would have to be held in memory.
    """
    if spec.skew:
        raise ConfigError(f"more than {MAX_IN_MEMORY:,} entries are drawn in chunks, without a skew; leave out --skew")
    if path.suffix != ".npz":
        raise ConfigError(
            f"more than {MAX_IN_MEMORY:,} entries are written in chunks; give --out a name that ends in .npz"
        )
    if math.prod(spec.shape) >= 2**62:
        raise ConfigError(f"shape {spec.shape}: cells that cannot be numbered in 62 bits cannot be drawn in chunks")
    values_of = _Values(spec)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        tempfile.TemporaryFile(dir=path.parent) as aside,
    ):
        with archive.open("indices.npy", "w", force_zip64=True) as file:
            _head(file, (spec.entries, len(spec.shape)), "<i4")
            for cells in chunks(spec):
                file.write(cells.tobytes())
                aside.write(values_of(cells).tobytes())
        aside.seek(0)
        with archive.open("values.npy", "w", force_zip64=True) as file:
            _head(file, (spec.entries,), "<f4")
            while data := aside.read(1 << 24):
                file.write(data)
        with archive.open("shape.npy", "w") as file:
            np.lib.format.write_array(file, np.array(spec.shape, dtype=np.int64))


def chunks(spec: SyntheticSpec) -> Iterator[NDArray[np.int32]]:
    """All cells, ``(at most CHUNK_ENTRIES, modes)`` at a time."""
    for start in range(0, spec.entries, CHUNK_ENTRIES):
        yield _cells(spec, np.arange(start, min(start + CHUNK_ENTRIES, spec.entries), dtype=np.uint64))


class _Values:
    """Values of cells; the nonlinear part is scaled by a sample."""

    def __init__(self, spec: SyntheticSpec) -> None:
        for_factors, _, self.for_noise = np.random.default_rng(spec.seed).spawn(3)
        self.spec, self.scale, self.noise = spec, 0.0, 0.0
        self.linear = _factors(spec.shape, spec.rank[0], for_factors)
        self.nonlinear = _factors(spec.shape, spec.rank[1], for_factors)
        sample = _cells(spec, np.arange(min(SAMPLE_ENTRIES, spec.entries), dtype=np.uint64))
        if spec.rank[1]:
            spread = float(self._nonlinear(sample).std(dtype=np.float64))
            straight = _in_blocks(sample, self.linear, _multilinear).std(dtype=np.float64) if spec.rank[0] else 1.0
            self.scale = spec.ratio * float(straight) / spread if spread else 1.0
        self.noise = spec.noise * float(self(sample).std(dtype=np.float64))

    def __call__(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        """Values, ``(cells,)``."""
        values = _in_blocks(cells, self.linear, _multilinear)
        if self.scale:
            values += np.float32(self.scale) * self._nonlinear(cells)
        if self.noise:
            values += np.float32(self.noise) * self.for_noise.standard_normal(len(cells), dtype=np.float32)
        return values

    def _nonlinear(self, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        curve = NONLINEARITIES[self.spec.nonlinearity]
        return _in_blocks(cells, self.nonlinear, lambda rows: _additive(rows, curve))


def _cells(spec: SyntheticSpec, numbers: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Elements of a random permutation of all cells, ``(numbers, modes)``."""
    every = math.prod(spec.shape)
    half = np.uint64(max(1, math.ceil(math.log2(max(every, 2)) / 2)))
    found = _permute(numbers, half, spec.seed)
    outside = np.flatnonzero(found >= every)
    while len(outside):
        found[outside] = _permute(found[outside], half, spec.seed)
        outside = outside[found[outside] >= every]
    return np.stack(np.unravel_index(found.astype(np.int64), spec.shape), axis=1).astype(np.int32)


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
