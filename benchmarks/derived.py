"""Tensors that nothing was tuned on: parts, sums and transforms of real ones, and planted structures.

    python benchmarks/derived.py --data ../shared/data --out runs/derived
    for file in runs/derived/*.npz; do
        python benchmarks/auto.py $file --split-seeds 1 --budget 120 --out runs/robust
    done
    python benchmarks/auto.py --summary --out runs/robust

A search has to be as good as the best single model on them, too, whichever that is.
"""

import argparse
from pathlib import Path

import numpy as np

from jointensor.data.formats import read_tensor, write_tensor
from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.data.tensor import SparseTensor, cell_keys

ENTRIES = 40_000


def summed(tensor, columns, modes):
    """Sums of the entries that share their cell in other modes."""
    indices = np.stack(columns, axis=1)
    keys, first, inverse = np.unique(
        cell_keys(indices, [m.size for m in modes]), return_index=True, return_inverse=True
    )
    return SparseTensor(indices[first], np.bincount(inverse, tensor.values, len(keys)), modes)


def some(tensor, seed=0):
    """A sample of the entries; labels that are left without one go."""
    rng = np.random.default_rng(seed)
    tensor = tensor.take(np.sort(rng.permutation(len(tensor))[:ENTRIES]))
    columns, modes = [], []
    for mode, column in zip(tensor.modes, tensor.indices.T, strict=True):
        kept, new = np.unique(column, return_inverse=True)
        columns.append(new)
        modes.append(Mode(mode.name, len(kept), order=mode.order))
    return SparseTensor(np.stack(columns, axis=1), tensor.values, modes)


def only(tensor, mode, labels):
    return tensor.take(np.flatnonzero(np.isin(tensor.indices[:, tensor.mode(mode)], labels)))


def from_real(data):
    """Name and tensor of each."""

    def read(name):
        return read_tensor(str(data / f"{name}.npz")).tensor

    uber = read("uber_apr_jun")
    day, hour, lat, lon = uber.indices.T
    blocks = [Mode("day", 91, order="ordered"), Mode("hour", 24, order="cyclic"), Mode("lat", 12), Mode("lon", 12)]
    yield "uber_blocks", some(summed(uber, (day, hour, lat * 12 // 887, lon * 12 // 1410), blocks))
    yield "uber_week", some(only(uber, "date", range(7)))
    nyc = read("nyc_taxi")
    yield "nyc_fortnight", some(only(nyc, "hour", range(336)))
    pickup, dropoff, hours = nyc.indices.T
    folded = [*nyc.modes[:2], Mode("day", 61, order="ordered"), Mode("hour", 24, order="cyclic")]
    yield "nyc_folded", some(SparseTensor(np.stack((pickup, dropoff, hours // 24, hours % 24), 1), nyc.values, folded))
    yield "healthcare_counties", some(only(read("healthcare_hhs_county"), "county", range(0, 3223, 100)))
    ratings = read("ml_100k")
    user, movie, _ = ratings.indices.T
    matrix = SparseTensor(np.stack((user, movie), 1), ratings.values, ratings.modes[:2])
    yield "ml_matrix", some(matrix)
    yield "ml_liked", some(matrix.with_values((matrix.values >= 4).astype(np.float32)))
    nips = read("nips_0_12")
    yield "nips_sample_log", some(nips.with_values(np.log1p(nips.values)))
    enron = read("enron_sent")
    yield "enron_sample_log", some(enron.with_values(np.log1p(enron.values)))


def planted(seed=0):
    """Name and tensor of each: 40,000 of 250,000 cells, a tenth of the variance noise."""
    rng = np.random.default_rng(seed)
    shape = (50, 50, 100)
    cells = draw_cells(shape, ENTRIES, rng)
    cp = [rng.standard_normal((size, 5))[column] for size, column in zip(shape, cells.T, strict=True)]
    core = rng.standard_normal((4, 4, 4))
    rows = [rng.standard_normal((size, 4))[column] for size, column in zip(shape, cells.T, strict=True)]
    first, second, third = (rng.standard_normal((size, 3))[column] for size, column in zip(shape, cells.T, strict=True))
    time = cells[:, 2] / shape[2]
    signals = {
        "planted_cp": np.prod(cp, axis=0).sum(axis=1),
        "planted_tucker": np.einsum("abc,na,nb,nc->n", core, *rows, optimize=True),
        "planted_product": np.exp(0.5 * (first + second + third)).sum(axis=1),
        "planted_distances": np.linalg.norm(first - second + 0.5 * third, axis=1),
        "planted_waves": np.sin(2 * np.pi * (time * (1 + cells[:, 0] % 4) + first[:, 0])) * (1 + second[:, 0]),
        "planted_nothing": np.zeros(ENTRIES),
    }
    for name, signal in signals.items():
        noise = rng.standard_normal(ENTRIES) * (np.sqrt(0.1) * signal.std() or 1.0)
        modes = [Mode("a", 50), Mode("b", 50), Mode("day", 100, order="ordered")]
        yield name, SparseTensor(cells, (signal + noise).astype(np.float32), modes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, tensor in (*planted(), *from_real(options.data)):
        write_tensor(tensor, options.out / f"{name}.npz")
        print(
            f"{name}: {len(tensor):,} entries of {' x '.join(map(str, tensor.shape))}, spread {tensor.values.std():.4g}"
        )


if __name__ == "__main__":
    main()
