"""Random small tensors: shapes, densities, skew, values of all kinds, labels that need care."""

from __future__ import annotations

import math

import numpy as np

from jointensor import SparseTensor
from jointensor.data.modes import Mode

NAMES = ("user", "item", "place", "day", "kind")
ODD = ("a,b", 'say "x"', " lead", "ä ö", "#c", "NA", "nan", "1e3", "001", "x'y", "a;b", "tab\there", "ß", "-", "None")
SCALES = {"huge": 1e15, "extreme": 3e28, "tiny": 1e-15, "vanishing": 1e-30}
VALUES = ("reals", "reals", "ratings", "counts", "binary", "heavy", "constant", "zeros", "offset", "outlier", *SCALES)
LABELS = ("none", "text", "text", "codes", "numbers", "dates", "odd")


def random_shape(rng: np.random.Generator, largest: int = 14) -> tuple[int, ...]:
    """Two to five modes; some of them have a single label."""
    modes = int(rng.choice((2, 3, 3, 3, 4, 4, 5)))
    return tuple(round(math.exp(rng.uniform(0, math.log(largest)))) for _ in range(modes))


def random_cells(rng: np.random.Generator, shape: tuple[int, ...], most: int) -> np.ndarray:
    """Distinct cells, ``(entries, modes)``, evenly spread or crowded at the first labels."""
    wanted = int(min(most, max(1, math.prod(shape) * rng.choice((0.05, 0.3, 0.7, 1.0)))))
    if rng.random() < 0.5:
        columns = [rng.integers(size, size=4 * wanted) for size in shape]
    else:
        columns = [np.minimum(rng.zipf(1.6, 4 * wanted) - 1, size - 1) for size in shape]
    cells = np.unique(np.stack(columns, axis=1), axis=0)
    return rng.permutation(cells)[:wanted]


def random_values(rng: np.random.Generator, indices: np.ndarray, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """A planted sum of two products with noise, made into values of a kind."""
    factors = [rng.normal(size=(size, 2)) + 0.5 for size in shape]
    x = np.prod([f[indices[:, n]] for n, f in enumerate(factors)], axis=0).sum(axis=1)
    x = x / (float(x.std()) or 1.0) + 0.1 * rng.normal(size=len(x))
    if kind == "ratings":
        return np.clip(np.round(2 * (3 + x)) / 2, 0.5, 5)
    if kind == "counts":
        return rng.poisson(np.exp(np.clip(x, -3, 4))).astype(float)
    if kind == "binary":
        return (x > 0).astype(float)
    if kind == "heavy":
        return np.exp(2.5 * np.clip(x, -8, 8))
    if kind in ("constant", "zeros"):
        return np.full(len(x), 0.0 if kind == "zeros" else rng.choice((7.0, -0.3, 1e8)))
    if kind == "offset":
        return x + rng.choice((1e4, -1e6))
    if kind == "outlier":
        x[rng.integers(len(x))] = 1e6
        return x
    return x * SCALES.get(kind, 1.0)


def random_labels(rng: np.random.Generator, size: int, kind: str) -> tuple[str, ...] | None:
    """Labels of one mode; ``None`` for plain numbers."""
    if kind == "none":
        return None
    if kind == "odd":
        return tuple(rng.permutation([*ODD, *(f"o{n}" for n in range(size))])[:size].tolist())
    if kind == "codes":
        return tuple(f"{n:05d}" for n in rng.permutation(10 * size)[:size])
    if kind == "numbers":
        return tuple(repr(float(n)) for n in np.sort(rng.permutation(100)[:size]) / 4)
    if kind == "dates":
        return tuple(str(np.datetime64("2020-02-20") + int(n)) for n in np.sort(rng.permutation(60)[:size]))
    return tuple(f"t{n}" for n in rng.permutation(1000)[:size])


def random_tensor(
    rng: np.random.Generator, *, most: int = 250, values: str | None = None, labels: str | None = None
) -> tuple[SparseTensor, str]:
    """A tensor, and what its values are like."""
    shape = random_shape(rng)
    indices = random_cells(rng, shape, most)
    kind = values or str(rng.choice(VALUES))
    modes = []
    for n, size in enumerate(shape):
        texts = random_labels(rng, size, labels or str(rng.choice(LABELS)))
        order = str(rng.choice(("none", "none", "ordered", "cyclic")))
        modes.append(Mode(NAMES[n], size, texts, order))  # type: ignore[arg-type]
    return SparseTensor(indices, random_values(rng, indices, shape, kind), modes), kind


def as_cells(tensor: SparseTensor) -> dict[tuple[str, ...], float]:
    """Value by labels, whatever the order of entries and labels."""
    labels = [mode.decode(tensor.indices[:, n]) for n, mode in enumerate(tensor.modes)]
    return dict(zip(zip(*labels, strict=True), tensor.values.tolist(), strict=True))
