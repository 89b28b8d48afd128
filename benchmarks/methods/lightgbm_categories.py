"""LightGBM on labels as categories, and on positions of ordered modes."""

import lightgbm
import numpy as np

from jointensor.bench import Answer

CHOSEN = "leaves and trees by validation entries; then fitted to these, too"
PACKAGES = ("lightgbm",)
LEAVES, ROUNDS = (31, 127, 255), 5000


def columns(tensor, indices):
    ordered = [n for n, mode in enumerate(tensor.modes) if mode.order != "none"]
    return np.column_stack([indices, indices[:, ordered]]).astype(np.float64)  # a label that is new: -1


def data(tensor, reference=None):
    names = list(range(tensor.n_modes))
    return lightgbm.Dataset(columns(tensor, tensor.indices), tensor.values, reference, categorical_feature=names)


def settings(problem, leaves):
    return {"learning_rate": 0.05, "num_leaves": leaves, "num_threads": problem.cores, "max_bin": 255,
            "cat_smooth": 10.0, "seed": problem.seed, "verbose": -1}  # fmt: skip


def predict(problem):
    found = {}
    for leaves in LEAVES:
        train = data(problem.train)
        stop = lightgbm.early_stopping(50, verbose=False)
        model = lightgbm.train(settings(problem, leaves), train, ROUNDS, [data(problem.valid, train)], callbacks=[stop])
        found[leaves] = model.best_score["valid_0"]["l2"], model.best_iteration
    best = min(found, key=found.get)
    model = lightgbm.train(settings(problem, best), data(problem.everything), found[best][1])
    return Answer(model.predict(columns(problem.train, problem.cells)), {"leaves": best, "trees": found[best][1]})
