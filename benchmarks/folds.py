"""What folds are worth to a search: networks averaged over k folds, alone and beside other members.

    python benchmarks/folds.py ../shared/data/uber_apr_jun.npz --folds 4

Entries are cut off from the training entries and judge; test entries are never looked at. For every mix, the error of
the left-out fold that its weights come from, and the error of the cut-off entries by number of networks. `CHANCE` in
`jointensor.search.cross_validation` is from here.
"""

import argparse
import math
from itertools import combinations

import numpy as np

from jointensor.data.formats.files import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.search.cross_validation import CrossValidation, Trial
from jointensor.search.ensemble_selection import squared_error
from jointensor.search.portfolio import refit_candidate


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
    search = CrossValidation(join(inner.train, inner.valid), budget=math.inf, device=options.device)
    said = {name: answers(search, name, options.folds, inner.test.indices) for name in options.names}
    errors, truth = search.errors(), inner.test.values
    for size in range(1, len(said) + 1):
        for names in combinations(said, size):
            weights = errors.among(names).best_weights()
            left_out = math.sqrt(errors.of_mean(weights))
            by_count = [math.sqrt(squared_error(mixed(said, weights, k), truth)) for k in range(1, options.folds + 1)]
            shares = ", ".join(f"{weight:.0%} {name}" for name, weight in weights.items())
            print(f"{shares}: left out {left_out:.4g}; mean of 1, 2, …: {', '.join(f'{one:.4g}' for one in by_count)}")


def answers(search, name, folds, cells):
    """What each fit says of some cells: of networks one per fold, of others the one to all entries."""
    candidate = next(one for one in search.offered if one.name == name)
    trial = Trial(candidate)
    search.fit_all([(trial, fold) for fold in range(1 if candidate.refits else folds)])
    fits = list(trial.fits.values())
    if candidate.refits:
        fits = [refit_candidate(candidate, fits, search.tensor, **search.how, budget=math.inf)]
    return [search.clip(one.part.predict(cells)) for one in fits]


def mixed(said, weights, count):
    return sum(weight * np.mean(said[name][:count], axis=0, dtype=np.float64) for name, weight in weights.items())


if __name__ == "__main__":
    main()
