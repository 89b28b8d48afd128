"""Synthetic tensors of any order, size, density, rank, skew and noise, generated entry by entry.

    value = Σ_r Π_n A_n(i_n, r)  +  Σ_f σ(Σ_n B_n(i_n, f) / √N)  +  noise

Cells come in chunks: the k-th cell is element k of a pseudo-random permutation of all cells, so that cells are distinct
without a list of them, and a tensor larger than memory can be written. :func:`~jointensor.data.synthetic.make_joint`
has any network as f, and keeps the parts of every value.
"""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split.assignment import mix
from jointensor.data.synthetic import draw_cells
from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import ConfigError
from jointensor.registry import nearest

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]

NONLINEARITIES: dict[str, Curve] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "sine": lambda x: np.sin(2.0 * x),
    "square": np.square,
    "step": np.sign,
}
"""Choices for σ."""


@dataclass(frozen=True)
class GeneratorLimits:
    """Limits of memory and of rejected draws."""

    chunk_entries: int = 1 << 18
    """Entries of a chunk; the first chunk sets the scales of the nonlinear part and of the noise."""
    max_in_memory: int = 20_000_000
    """Entries up to which a tensor is generated in memory."""
    max_skewed_labels: int = 10**8
    """Labels of a mode for which popularities are held in memory."""
    min_new_share: float = 0.05
    """Share of skewed draws that must be new cells; with less, the remaining cells are uniform."""
    feistel_rounds: int = 4
    """Rounds of the permutation of cells."""


LIMITS = GeneratorLimits()


@dataclass(frozen=True)
class SyntheticSpec:
    """Size, structure and noise of a synthetic tensor."""

    shape: tuple[int, ...]
    """Size of every mode, two at least."""
    entries: int
    """Number of observed cells."""
    rank: tuple[int, int] = (3, 0)
    """R and F."""
    nonlinearity: str = "tanh"
    """σ of the nonlinear part."""
    ratio: float = 1.0
    """Standard deviation of the nonlinear part, relative to that of the multilinear part."""
    skew: float = 0.0
    """Zipf exponent of how often labels occur; 0 for uniform labels, also where popular cells run out."""
    noise: float = 0.0
    """Standard deviation of the noise, relative to that of the noiseless values."""
    seed: int = 0
    """Seed of factors, cells and noise."""

    def __post_init__(self) -> None:
        if len(self.shape) < 2 or min(self.shape) < 1:
            raise ConfigError(f"shape {self.shape}: give two sizes or more, each at least 1")
        if not 0 < self.entries <= math.prod(self.shape):
            raise ConfigError(f"{self.entries:,} entries cannot be drawn from {math.prod(self.shape):,} cells")
        if min(self.rank) < 0 or sum(self.rank) == 0:
            raise ConfigError(f"rank {self.rank[0]}/{self.rank[1]} has no components; give at least one")
        if self.nonlinearity not in NONLINEARITIES:
            raise ConfigError(f"nonlinearity '{self.nonlinearity}': {nearest(self.nonlinearity, NONLINEARITIES)}")
        for name, value in (("ratio", self.ratio), ("skew", self.skew), ("noise", self.noise), ("seed", self.seed)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} {value}: give a finite number that is not negative")


@dataclass(frozen=True)
class Planted:
    """The factors of a synthetic tensor."""

    linear: tuple[NDArray[np.float32], ...]
    """One ``(I_n, R)`` per mode."""
    nonlinear: tuple[NDArray[np.float32], ...]
    """One ``(I_n, F)`` per mode."""
    nonlinear_scale: float
    """Factor of the nonlinear part."""


def generate(spec: SyntheticSpec) -> tuple[SparseTensor, Planted]:
    """Generate a tensor in memory; returns it with its factors.

    Examples
    --------
    >>> tensor, planted = generate(SyntheticSpec(shape=(20, 30, 10), entries=500, rank=(2, 3), skew=1.0))
    >>> tensor.shape, len(tensor), planted.linear[0].shape
    ((20, 30, 10), 500, (20, 2))
    """
    chunks = list(cell_chunks(spec))
    values = _Values(spec, chunks[0])
    tensor = SparseTensor(np.concatenate(chunks), np.concatenate([values(cells) for cells in chunks]), spec.shape)
    return tensor, Planted(values.linear, values.nonlinear, values.scale)


def write_large(spec: SyntheticSpec, path: Path) -> None:
    """Write the tensor of :func:`generate` as ``.npz``, not compressed; memory does not grow with its entries.

    Raises
    ------
    ConfigError
        If the labels are skewed: all cells would have to be in memory.
    """
    many = f"more than {LIMITS.max_in_memory:,} entries are generated in chunks"
    if spec.skew:
        raise ConfigError(f"{many}, with uniform labels; leave out --skew")
    if path.suffix != ".npz":
        raise ConfigError(f"{many}; give --out a name that ends in .npz")
    chunks = cell_chunks(spec)
    first = next(chunks)
    values = _Values(spec, first)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        tempfile.TemporaryFile(dir=path.parent) as scratch,
    ):
        with archive.open("indices.npy", "w", force_zip64=True) as file:
            _write_header(file, (spec.entries, len(spec.shape)), first.dtype)
            for cells in chain((first,), chunks):
                file.write(cells.tobytes())
                scratch.write(values(cells).tobytes())
        scratch.seek(0)
        with archive.open("values.npy", "w", force_zip64=True) as file:
            _write_header(file, (spec.entries,), np.dtype(np.float32))
            while block := scratch.read(LIMITS.chunk_entries):
                file.write(block)
        with archive.open("shape.npy", "w") as file:
            np.lib.format.write_array(file, np.array(spec.shape, dtype=np.int64))


def _write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


class _Values:
    """Values of cells; the nonlinear part and the noise are scaled by standard deviations over ``sample``."""

    def __init__(self, spec: SyntheticSpec, sample: NDArray[np.integer]) -> None:
        for_factors, _, self.for_noise = _generators(spec)
        self.curve = NONLINEARITIES[spec.nonlinearity]
        self.linear = _factors(spec.shape, spec.rank[0], for_factors)
        self.nonlinear = _factors(spec.shape, spec.rank[1], for_factors)
        self.scale = self.noise = 0.0
        if spec.rank[1]:
            spread = self._nonlinear(sample).std()
            target = spec.ratio * (self._multilinear(sample).std() if spec.rank[0] else 1.0)
            self.scale = float(target / spread) if spread else 1.0
        self.noise = spec.noise * float(self(sample).std(dtype=np.float64)) if spec.noise else 0.0

    def __call__(self, cells: NDArray[np.integer]) -> NDArray[np.float32]:
        """Values, ``(cells,)``."""
        values = self._multilinear(cells).astype(np.float32)
        if self.scale:
            values += np.float32(self.scale) * self._nonlinear(cells).astype(np.float32)
        if self.noise:
            values += np.float32(self.noise) * self.for_noise.standard_normal(len(cells), dtype=np.float32)
        return values

    def _multilinear(self, cells: NDArray[np.integer]) -> NDArray[np.float64]:
        product = np.ones((len(cells), self.linear[0].shape[1]))  # (cells, R)
        for n, table in enumerate(self.linear):
            product *= table[cells[:, n]]
        return product.sum(axis=1)

    def _nonlinear(self, cells: NDArray[np.integer]) -> NDArray[np.float64]:
        total = np.zeros((len(cells), self.nonlinear[0].shape[1]))  # (cells, F)
        for n, table in enumerate(self.nonlinear):
            total += table[cells[:, n]]
        return self.curve(total / math.sqrt(len(self.nonlinear))).sum(axis=1)


def _generators(spec: SyntheticSpec) -> list[np.random.Generator]:
    """Random generators of factors, cells and noise."""
    return np.random.default_rng(spec.seed).spawn(3)


def _factors(shape: Sequence[int], width: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], ...]:
    return tuple(rng.standard_normal((size, width), dtype=np.float32) for size in shape)


def cell_chunks(spec: SyntheticSpec) -> Iterator[NDArray[np.integer]]:
    """Distinct cells, ``(at most chunk_entries, modes)`` at a time."""
    dtype = np.int64 if max(spec.shape) > np.iinfo(np.int32).max else np.int32
    step = LIMITS.chunk_entries
    if spec.skew:
        cells = _skewed_cells(spec, _generators(spec)[1])
    elif not _numbered(spec):
        cells = draw_cells(spec.shape, spec.entries, _generators(spec)[1])
    else:
        for start in range(0, spec.entries, step):
            yield _permuted_cells(spec, start, min(step, spec.entries - start)).astype(dtype)
        return
    for start in range(0, spec.entries, step):
        yield cells[start : start + step].astype(dtype)


def _skewed_cells(spec: SyntheticSpec, rng: np.random.Generator) -> NDArray[np.int64]:
    """Distinct cells; labels of a mode occur about as often as ``rank ** -skew``, in a random order of labels."""
    if max(spec.shape) > LIMITS.max_skewed_labels:
        raise ConfigError(f"a mode of {max(spec.shape):,} labels is too large for skewed labels; leave out --skew")
    rankings = [rng.permutation(size) for size in spec.shape]
    cells = np.empty((0, len(spec.shape)), dtype=np.int64)
    while len(cells) < spec.entries:
        drawn = np.stack([_zipf(ranking, spec.skew, spec.entries, rng) for ranking in rankings], axis=1)
        before, cells = len(cells), _distinct(np.concatenate([cells, drawn]), spec.shape)
        if len(cells) - before < LIMITS.min_new_share * spec.entries:
            break
    start = 0
    while len(cells) < spec.entries:  # popular cells have run out
        count = min(spec.entries, math.prod(spec.shape) - start)
        more = _permuted_cells(spec, start, count) if _numbered(spec) else draw_cells(spec.shape, count, rng)
        cells = _distinct(np.concatenate([cells, more]), spec.shape)
        start += count
    return cells[: spec.entries]


def _zipf(ranking: NDArray[np.int64], skew: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Labels, the most popular one first in ``ranking``, in a random order."""
    popularity = np.arange(1, len(ranking) + 1, dtype=np.float64) ** -skew
    labels = np.repeat(ranking, rng.multinomial(count, popularity / popularity.sum()))
    rng.shuffle(labels)
    return labels


def _distinct(cells: NDArray[np.int64], shape: Sequence[int]) -> NDArray[np.int64]:
    """The first entry of each cell, in their order."""
    _, first = np.unique(cell_keys(cells, shape), return_index=True)
    return cells[np.sort(first)]


def _numbered(spec: SyntheticSpec) -> bool:
    """Whether every cell has a number of at most 62 bits."""
    return math.prod(spec.shape) < 2**62


def _permuted_cells(spec: SyntheticSpec, start: int, count: int) -> NDArray[np.int64]:
    """Elements of a random permutation of all cells: a Feistel network, repeated while it leads out of the tensor."""
    every = math.prod(spec.shape)
    half = np.uint64(max(1, math.ceil(math.log2(max(every, 2)) / 2)))
    found = _permute(np.arange(start, start + count, dtype=np.uint64), half, spec.seed)
    outside = np.flatnonzero(found >= every)
    while len(outside):
        found[outside] = _permute(found[outside], half, spec.seed)
        outside = outside[found[outside] >= every]
    return np.stack(np.unravel_index(found.astype(np.int64), spec.shape), axis=1)


def _permute(numbers: NDArray[np.uint64], half: np.uint64, seed: int) -> NDArray[np.uint64]:
    """A random permutation of all numbers of twice ``half`` bits."""
    low = np.uint64((1 << int(half)) - 1)
    left, right = numbers >> half, numbers & low
    for turn in range(LIMITS.feistel_rounds):
        left, right = right, left ^ (mix(right, 31 * seed + turn) & low)
    return (left << half) | right
