"""What folds are worth to a search: networks averaged over k folds, alone and beside other members.

    python benchmarks/folds.py ../shared/data/uber_apr_jun.npz --folds 4

Entries held out from the training entries measure the error; test entries are not used. For every weighted mean: the
error on the fold that its weights come from, and the error on the held-out entries by number of averaged networks.
`seed_variance_share` in `jointensor.search.settings` comes from this benchmark.
"""

import argparse
import math
from itertools import combinations

import numpy as np

from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.search.budget import SecondsBudget
from jointensor.search.cross_fit import CrossFitter
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.families import FitOptions, family_of
from jointensor.search.fit_store import FitStore
from jointensor.search.folds import fold_entries
from jointensor.search.interruption import Interruption
from jointensor.search.portfolio import candidates_for
from jointensor.search.screening import first_fold_errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--names", nargs="*", default=["trees", "tables", "julia:4/16"])
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--split-seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    parts = split(read_tensor(options.source).tensor, seed=options.split_seed)
    inner = split(join(parts.train, parts.valid), seed=50 + options.split_seed)
    data, how, results = fold_entries(join(inner.train, inner.valid), (), 0), FitOptions(device=options.device), {}
    fitter = CrossFitter(data, SecondsBudget(math.inf), how, FitStore(None, ""), Interruption())
    offered = {one.name: one for one in candidates_for(data.tensor)}
    predicted = {}
    for name in options.names:
        family = family_of(offered[name])
        fitter.fit(results, [(offered[name], fold) for fold in range(1 if family.refits else options.folds)])
        fits = list(results[name].fits.values())
        if family.refits:  # one fit to all entries predicts
            fits = [family.refit(offered[name], fits, data.tensor, how)]
        predicted[name] = [data.clip(part.predict(inner.test.indices)) for part in fits]
    errors, truth = first_fold_errors(data, results), inner.test.values
    for size in range(1, len(predicted) + 1):
        for names in combinations(predicted, size):
            weights = errors.among(names).best_weights()
            left_out = math.sqrt(errors.of_mean(weights))
            by_count = [
                math.sqrt(squared_error(mixed(predicted, weights, k), truth)) for k in range(1, options.folds + 1)
            ]
            shares = ", ".join(f"{weight:.0%} {name}" for name, weight in weights.items())
            print(f"{shares}: left out {left_out:.4g}; mean of 1, 2, …: {', '.join(f'{one:.4g}' for one in by_count)}")


def mixed(predicted, weights, count):
    return sum(weight * np.mean(predicted[name][:count], axis=0, dtype=np.float64) for name, weight in weights.items())


if __name__ == "__main__":
    main()
