"""Whole fits to real ratings: the shortest of several lengths that reaches a test error."""

import time

import numpy as np
from tensors import DATA

TARGETS = (0.94, 0.92)
"""Test RMSE. The first is what additive biases about reach; the second needs more."""


def parts():
    from jointensor import split
    from jointensor.data.formats.npz import read as read_npz

    return split(read_npz(DATA / "ml_100k.npz"), seed=0)


def jointensor_fits(split, *, quick):
    from jointensor import JointModel, Recipe, fit

    recipe = Recipe(linear_solver="als")
    for rank in (1,) if quick else (4, 10, 20):
        begin = time.perf_counter()
        model = JointModel(split.train.shape, (rank, 0), linear=f"mean+bias+cp:{rank}")
        result = fit(model, split, recipe, seed=0, device="cpu")
        yield f"mean+bias+cp:{rank}", time.perf_counter() - begin, result.predict(split.test.indices)


def myfm_fits(split, *, quick):
    import myfm
    from scipy.sparse import csr_matrix

    shape = split.train.shape
    first = np.concatenate([[0], np.cumsum(shape)[:-1]])

    def one_hot(indices):
        columns = (np.asarray(indices, np.int64) + first).ravel()
        ends = np.arange(0, len(columns) + 1, len(shape))
        return csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(indices), int(sum(shape))))

    train, test = one_hot(split.train.indices), one_hot(split.test.indices)
    for draws in (6,) if quick else (10, 20, 30, 50, 100):
        begin = time.perf_counter()
        model = myfm.MyFMRegressor(rank=10, random_seed=0)
        model.fit(train, split.train.values, n_iter=draws, n_kept_samples=draws - 5, group_shapes=list(shape))
        yield f"{draws} draws", time.perf_counter() - begin, model.predict(test)


def surprise_fits(split, *, quick):
    import pandas
    import surprise

    users, items = split.train.indices[:, 0], split.train.indices[:, 1]
    frame = pandas.DataFrame({"user": users, "item": items, "value": split.train.values})
    data = surprise.Dataset.load_from_df(frame, surprise.Reader(rating_scale=(1, 5))).build_full_trainset()
    for epochs in (1,) if quick else (10, 15, 20, 30):
        begin = time.perf_counter()
        model = surprise.SVD(n_epochs=epochs, random_state=0).fit(data)
        seconds = time.perf_counter() - begin
        yield f"{epochs} epochs", seconds, np.array([model.predict(u, i).est for u, i in split.test.indices[:, :2]])


def to_targets(fits, split, *, quick):
    rows = []
    for length, seconds, predicted in fits(split, quick=quick):
        error = float(np.sqrt(np.mean((np.asarray(predicted, np.float64) - split.test.values) ** 2)))
        rows.append({"fit": length, "seconds": seconds, "rmse": error})
    reached = {
        str(target): min((row["seconds"] for row in rows if row["rmse"] <= target), default=None) for target in TARGETS
    }
    return {"fits": rows, "seconds_to": reached, "best_rmse": min(row["rmse"] for row in rows)}
