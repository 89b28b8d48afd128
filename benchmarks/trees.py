"""Boosted trees: LightGBM with our bins against LightGBM with its own, same columns and stopping rule, one thread each.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python benchmarks/trees.py ../shared/data/enron_sent.npz …

The test entries of split seed 0 are taken away and never looked at; the rest is split anew. Both grow trees from the
training entries while the error of the validation entries falls, and are scored on the cut-off test entries of that
second split. Seconds are CPU seconds of growing and of predicting the test entries.
"""

import argparse
import time
from pathlib import Path

import lightgbm
import numpy as np

from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.metrics import measure
from jointensor.predictors import fit_trees
from jointensor.predictors import trees as settings
from jointensor.predictors.target_encoding import FOLDS, columns_of, encode, positions

PARAMS = {
    "objective": "regression", "num_leaves": settings.LEAVES, "min_data_in_leaf": settings.MIN_LEAF_ENTRIES,
    "min_sum_hessian_in_leaf": 0.0, "max_bin": 255, "min_data_in_bin": 1, "feature_pre_filter": False,
    "num_threads": 1, "deterministic": True, "force_col_wise": True, "seed": 0, "verbosity": -1,
}  # fmt: skip


def our_bins(parts):
    """What a search fits: seconds of growing and of predicting, predictions, number of trees."""
    begin = time.process_time()
    trees = fit_trees(parts.train, parts.valid)
    grown = time.process_time()
    predictions = trees.predict(parts.test.indices)
    return grown - begin, time.process_time() - grown, predictions, len(trees.roots)


def its_bins(parts):
    """The columns as they are, and LightGBM's own prediction."""
    begin = time.process_time()
    train, valid = parts.train, parts.valid
    generator = np.random.default_rng([0, 31])
    fold = generator.integers(FOLDS, size=len(train))
    encoders, own = encode(train, fold)
    chosen = np.sort(generator.permutation(len(train))[: settings.MAX_TRAIN_ENTRIES])
    columns = np.stack([column[chosen] for column in own + positions(train.indices)], axis=1)
    slow = len(train) <= settings.MAX_SLOW_ENTRIES
    params = PARAMS | {"learning_rate": settings.LEARNING_RATE if slow else settings.FAST_LEARNING_RATE}
    data = lightgbm.Dataset(columns, train.values[chosen], params=params)
    checked = np.stack(columns_of(encoders, valid.indices), axis=1)
    checked = lightgbm.Dataset(checked, valid.values, reference=data)
    stop = lightgbm.early_stopping(settings.PATIENCE, verbose=False)
    booster = lightgbm.train(params, data, settings.MAX_TREES, valid_sets=[checked], callbacks=[stop])
    grown = time.process_time()
    predictions = booster.predict(np.stack(columns_of(encoders, parts.test.indices), axis=1), num_threads=1)
    return grown - begin, time.process_time() - grown, predictions, booster.best_iteration


METHODS = {"our bins": our_bins, "its own bins": its_bins}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    small = split(read_tensor(str(options.sources[0])).tensor.take(np.arange(2000)), seed=0)
    our_bins(small)  # compiles
    print("| tensor | | RMSE | against the first | trees | grow s | predict s |\n|---|---|---:|---:|---:|---:|---:|")
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
