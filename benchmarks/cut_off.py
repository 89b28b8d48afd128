"""Trees and nearest neighbours on entries held out from the training entries: what parts of a search are worth.

    python benchmarks/cut_off.py ../shared/data/enron_sent.npz ../shared/data/nyc_taxi.npz
    python benchmarks/cut_off.py ../shared/data/enron_sent.npz --models julia:4/16 julia:0/20

The test entries of split seed 0 are not used; the others are split again. Trees are those of three
folds, and their mean is the prediction; nearest neighbours are fitted to the residuals of held-out entries.
"""

import argparse
import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.metrics import measure
from jointensor.predictors import fit_trees
from jointensor.predictors import target_encoding as columns
from jointensor.predictors.residual_stack import fit_residual_stack
from jointensor.runs.model_specs import parse_model
from jointensor.training.fit import fit

FOLDS = 3


@contextmanager
def pairs_only():
    """Trees as they would be without columns for all labels but one."""
    with patch.object(columns, "MIN_SHARING", np.inf):
        yield


def trees_of_folds(known, test):
    """Out-of-fold predictions of trees, their mean prediction for the test entries, and the folds."""
    folds = np.random.default_rng(5).integers(FOLDS, size=len(known))
    out_of_fold, mean = np.zeros(len(known)), np.zeros(len(test))
    for fold in range(FOLDS):
        out = np.flatnonzero(folds == fold)
        trees = fit_trees(known.take(np.flatnonzero(folds != fold)), known.take(out))
        out_of_fold[out] = trees.predict(known.indices[out])
        mean += trees.predict(test.indices) / FOLDS
    return out_of_fold, mean, folds


def show(tensor, name, predicted, test, begin):
    figures = measure(np.asarray(predicted, dtype=np.float64), test.values)
    seconds = time.perf_counter() - begin
    print(f"| {tensor} | {name} | {figures.rmse:.4f} | {figures.mae:.4f} | {seconds:.0f} |", flush=True)


def run(path, models):
    outer = split(read_tensor(str(path)).tensor, seed=0)
    parts = split(join(outer.train, outer.valid), seed=100)
    known, test, begin = join(parts.train, parts.valid), parts.test, time.perf_counter()
    if known.n_modes > 3:
        with pairs_only():
            show(path.stem, "trees, labels and pairs", trees_of_folds(known, test)[1], test, begin)
        begin = time.perf_counter()
    out_of_fold, mean, folds = trees_of_folds(known, test)
    show(path.stem, "trees", mean, test, begin)
    begin = time.perf_counter()
    residuals, modes = known.values - out_of_fold, range(known.n_modes)
    stack = fit_residual_stack(known, residuals, folds, tables=False, along=(), beside=modes)
    added = sum((model.predict(test.indices) for model in stack.models), np.zeros(len(test)))
    show(path.stem, "+".join(["trees", *stack.names]), mean + added, test, begin)
    for text in models:
        begin, spec = time.perf_counter(), parse_model(text)
        recipe = spec.recipe("default")
        found = fit(spec.make(known.shape, recipe), parts, recipe, device="cpu")
        show(path.stem, text, found.predict(test.indices), test, begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--models", nargs="*", default=(), help="models of `compare` to fit as well")
    options = parser.parse_args()
    print("| tensor | | RMSE | MAE | s |\n|---|---|---:|---:|---:|")
    for path in options.sources:
        run(path, options.models)


if __name__ == "__main__":
    main()
