"""CatBoost on labels as categories, and on positions of ordered modes."""

import catboost
import numpy as np
import pandas

from jointensor.bench import Answer

CHOSEN = "depth and trees by validation entries; then fitted to these, too"
PACKAGES = ("catboost",)
DEPTHS, ROUNDS = (6, 8), 2000


def columns(tensor, indices):
    ordered = [n for n, mode in enumerate(tensor.modes) if mode.order != "none"]
    names = [f"label {n}" for n in range(tensor.n_modes)] + [f"position {n}" for n in ordered]
    table = pandas.DataFrame(np.column_stack([indices, indices[:, ordered]]), columns=names)
    return table.astype(dict.fromkeys(names[: tensor.n_modes], str))


def predict(problem):
    labels = list(range(problem.train.n_modes))

    def pool(tensor):
        return catboost.Pool(columns(tensor, tensor.indices), tensor.values, cat_features=labels)

    def grown(depth, trees, entries, stop=None):
        model = catboost.CatBoostRegressor(iterations=trees, depth=depth, thread_count=problem.cores, random_seed=0,
                                           verbose=False, allow_writing_files=False)  # fmt: skip
        return model.fit(pool(entries), eval_set=stop, early_stopping_rounds=50 if stop else None)

    fits = {depth: grown(depth, ROUNDS, problem.train, pool(problem.valid)) for depth in DEPTHS}
    best = min(fits, key=lambda depth: fits[depth].get_best_score()["validation"]["RMSE"])
    trees = fits[best].get_best_iteration() + 1
    model = grown(best, trees, problem.everything)
    return Answer(model.predict(columns(problem.train, problem.cells)), {"depth": best, "trees": trees})
