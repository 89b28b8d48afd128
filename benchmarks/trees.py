"""Boosted trees: ours against LightGBM, with the same columns, the same stopping rule, and one thread each.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python benchmarks/trees.py ../shared/data/enron_sent.npz …

Needs ``pip install lightgbm``. The test entries of split seed 0 are taken away and never looked at; the rest is split
anew. Both grow trees from the training entries while the error of the validation entries falls, and are scored on the
cut-off test entries of that second split. Seconds are CPU seconds of growing and of predicting the test entries.

``lightgbm`` gets the columns as they are and bins them itself; ``lightgbm, our bins`` gets the numbers of our bins.
"""

import argparse
import time
from pathlib import Path

import lightgbm
import numpy as np

from jointensor.data.formats.files import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.metrics import measure
from jointensor.predictors import fit_trees
from jointensor.predictors import trees as settings
from jointensor.predictors.target_encoding import PARTS, binned, columns_of, edges_of, encode, positions

PARAMS = {
    "objective": "regression", "num_leaves": settings.LEAVES, "min_data_in_leaf": settings.LEAST,
    "min_sum_hessian_in_leaf": 0.0, "max_bin": 255, "min_data_in_bin": 1, "feature_pre_filter": False,
    "num_threads": 1, "deterministic": True, "force_col_wise": True, "seed": 0, "verbosity": -1,
}  # fmt: skip


def ours(parts):
    """Our trees: seconds of growing and of predicting, predictions, number of trees."""
    begin = time.process_time()
    trees = fit_trees(parts.train, parts.valid)
    grown = time.process_time()
    predictions = trees.predict(parts.test.indices)
    return grown - begin, time.process_time() - grown, predictions, len(trees.roots)


def theirs(parts, our_bins, **changes):
    """The same by LightGBM."""
    begin = time.process_time()
    train, valid = parts.train, parts.valid
    generator = np.random.default_rng([0, 31])
    part = generator.integers(PARTS, size=len(train))
    encoders, own = encode(train, part)
    chosen = np.sort(generator.permutation(len(train))[: settings.MOST])
    columns = [column[chosen] for column in own + positions(train.indices)]
    edges = np.stack([edges_of(column) for column in columns]) if our_bins else None

    def table(columns):
        return binned(columns, edges) if our_bins else np.stack(columns, axis=1)

    params = PARAMS | {"learning_rate": settings.RATE if len(train) <= settings.MANY else settings.FAST} | changes
    data = lightgbm.Dataset(table(columns), train.values[chosen], params=params)
    checked = lightgbm.Dataset(table(columns_of(encoders, valid.indices)), valid.values, reference=data)
    stop = lightgbm.early_stopping(settings.PATIENCE, verbose=False)
    booster = lightgbm.train(params, data, settings.ROUNDS, valid_sets=[checked], callbacks=[stop])
    grown = time.process_time()
    predictions = booster.predict(table(columns_of(encoders, parts.test.indices)), num_threads=1)
    return grown - begin, time.process_time() - grown, predictions, booster.best_iteration


METHODS = {
    "ours": ours,
    "lightgbm": lambda parts: theirs(parts, our_bins=False),
    "lightgbm, our bins": lambda parts: theirs(parts, our_bins=True, max_bin=256),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    small = split(read_tensor(str(options.sources[0])).tensor.take(np.arange(2000)), seed=0)
    ours(small)  # compiles
    print("| tensor | | RMSE | against ours | trees | grow s | predict s |\n|---|---|---:|---:|---:|---:|---:|")
    for path in options.sources:
        outer = split(read_tensor(str(path)).tensor, seed=0)
        parts = split(join(outer.train, outer.valid), seed=100)
        first = None
        for name in options.methods:
            grow, ask, predictions, count = METHODS[name](parts)
            rmse = measure(np.asarray(predictions, dtype=np.float64), parts.test.values).rmse
            first = first or rmse
            cells = f"{rmse:.4f} | {rmse / first - 1:+.2%} | {count} | {grow:.1f} | {ask:.2f}"
            print(f"| {path.stem} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
