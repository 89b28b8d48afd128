"""LightGBM on labels, pairs and triples of labels, encoded by out-of-fold means and counts."""

from itertools import combinations

import lightgbm
import numpy as np

from jointensor.bench import Answer
from jointensor.data.tensor import cell_keys

CHOSEN = "leaves, trees and triples by validation entries; then fitted to these, too"
PACKAGES = ("lightgbm",)
SETTINGS, ROUNDS, FOLDS, PRIOR = [(31, 2), (127, 2), (127, 3)], 5000, 5, 5.0


def encoded(train, indices, most, own):
    """Mean and count of every label and of labels together, and positions; training entries leave their fold out."""
    fold = np.random.default_rng(0).integers(FOLDS, size=len(train)) if own else np.zeros(len(train), dtype=int)
    mean, found = float(train.values.mean()), []
    for modes in (list(one) for count in range(1, most + 1) for one in combinations(range(train.n_modes), count)):
        asked = np.where(indices[:, modes] < 0, 0, indices[:, modes])
        keys = cell_keys(np.concatenate([train.indices[:, modes], asked]), [train.shape[n] for n in modes])
        row = np.unique(keys, return_inverse=True)[1]
        mine, theirs = row[: len(train)], row[len(train) :]
        sums, counts = np.bincount(mine, train.values, row.max() + 1), np.bincount(mine, minlength=row.max() + 1)
        total, many = sums[theirs].astype(float), counts[theirs].astype(float)
        for k in range(FOLDS) if own else ():
            here = fold == k
            total[here] -= np.bincount(mine[here], train.values[here], len(sums))[mine[here]]
            many[here] -= np.bincount(mine[here], minlength=len(sums))[mine[here]]
        unknown = (indices[:, modes] < 0).any(axis=1)
        total[unknown], many[unknown] = 0.0, 0.0
        found += [(total + PRIOR * mean) / (many + PRIOR), many]
    return np.column_stack([*found, indices])


def predict(problem):
    def grown(train, size, most, rounds, stop=None):
        how = {"learning_rate": 0.05, "num_leaves": size, "num_threads": problem.cores, "seed": 0, "verbose": -1}
        data = lightgbm.Dataset(encoded(train, train.indices, most, own=True), train.values)
        if stop is None:
            return lightgbm.train(how, data, rounds)
        check = lightgbm.Dataset(encoded(train, stop.indices, most, own=False), stop.values)
        return lightgbm.train(how, data, rounds, [check], callbacks=[lightgbm.early_stopping(50, verbose=False)])

    tried = [one for one in SETTINGS if one[1] < problem.train.n_modes or one[1] == 2]
    fits = {one: grown(problem.train, *one, ROUNDS, problem.valid) for one in tried}
    best = min(fits, key=lambda one: fits[one].best_score["valid_0"]["l2"])
    model = grown(problem.everything, *best, fits[best].best_iteration)
    chosen = {"leaves": best[0], "labels together": best[1], "trees": fits[best].best_iteration}
    return Answer(model.predict(encoded(problem.everything, problem.cells, best[1], own=False)), chosen)
