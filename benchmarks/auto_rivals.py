"""Packages that people use for the same tables, tuned on the validation entries and fitted again to all of them.

A rival is given the parts of a split and what was chosen on an earlier split of the same tensor, if there was one; it
returns its predictions of the test entries and its choice.
"""

import os
from functools import partial
from itertools import combinations

import numpy as np

from jointensor.data.tensor import join

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))


def rmse(predicted, truth):
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


def chosen(choices, error, known):
    """What has the least error, where it is not known yet and there is anything to choose."""
    if known is not None:
        return tuple(known) if isinstance(known, list) else known
    return choices[0] if len(choices) == 1 else min(choices, key=error)


def myfm(parts, known, ranks=(8, 16), samples=100, most=400_000):
    """Bayesian factorisation machine over one-hot labels; on two largest modes also who was seen with whom."""
    import myfm as package
    from scipy import sparse

    if len(parts.train) > most:
        ranks, samples = ranks[:1], 60  # one pass over a million entries takes seconds
    shape = parts.train.shape
    first, second = sorted(np.argsort(shape)[-2:].tolist())

    def features(indices, seen):
        at = np.arange(len(indices))
        ones = np.ones(len(indices))
        columns = [sparse.csr_matrix((ones, (at, indices[:, n])), (len(at), size)) for n, size in enumerate(shape)]
        if seen is not None:
            columns += [seen[0][indices[:, first]], seen[1][indices[:, second]]]
        return sparse.hstack(columns, format="csr")

    def implicit_feedback(tensor):
        pairs = np.unique(tensor.indices[:, [first, second]], axis=0)
        ones = sparse.csr_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (shape[first], shape[second]))
        both = []
        for matrix in (ones, ones.T.tocsr()):
            counts = np.maximum(np.asarray(matrix.sum(axis=1)).ravel(), 1)
            both.append(sparse.diags(counts**-0.5) @ matrix)
        return [one.tocsr() for one in both]

    def predict(train, asked, rank, implicit):
        seen = implicit_feedback(train) if implicit else None
        sizes = [*shape, *((shape[second], shape[first]) if implicit else ())]
        model = package.MyFMRegressor(rank=rank, random_seed=0)
        given = features(train.indices, seen), train.values.astype(np.float64)
        model.fit(*given, n_iter=samples, n_kept_samples=samples - 20, group_shapes=sizes)
        return model.predict(features(asked.indices, seen))

    implicit = (False, True) if len(parts.train) <= most else (False,)
    choices = [(rank, one) for rank in ranks for one in implicit]
    best = chosen(
        choices, lambda one: rmse(predict(parts.train, parts.valid, *one), parts.valid.values), known
    )  # fmt: skip
    return predict(join(parts.train, parts.valid), parts.test, *best), best


def surprise_model(name):
    def rival(parts, known, factors=(20, 50)):
        import surprise

        first, second = sorted(np.argsort(parts.train.shape)[-2:].tolist())
        if name == "SVDpp" and len(parts.train) > 300_000:
            raise RuntimeError("SVD++ would take hours on so many entries")

        def predict(train, asked, count):
            table = _frame(train, first, second)
            reader = surprise.Reader(rating_scale=(float(train.values.min()), float(train.values.max())))
            data = surprise.Dataset.load_from_df(table, reader).build_full_trainset()
            model = getattr(surprise, name)(n_factors=count, random_state=0).fit(data)
            pairs = asked.indices[:, [first, second]]
            return np.array([model.predict(int(u), int(i)).est for u, i in pairs])

        best = chosen(factors, lambda one: rmse(predict(parts.train, parts.valid, one), parts.valid.values), known)
        return predict(join(parts.train, parts.valid), parts.test, best), best

    return rival


def _frame(tensor, first, second):
    import pandas as pd

    return pd.DataFrame(
        {"user": tensor.indices[:, first], "item": tensor.indices[:, second], "rating": tensor.values.astype(float)}
    )


def encoded(train, asked, *, own, together):
    """Labels of ``asked``, and labels ``together``, by means and counts of ``train``; its own leave their fold out."""
    folds = np.random.default_rng(0).integers(5, size=len(train))
    mean = float(train.values.mean())
    columns = []
    for modes in (one for count in together for one in combinations(range(train.n_modes), count)):
        keys = [_key(one.indices, modes, train.shape) for one in (train, asked)]
        names, place = np.unique(keys[0], return_inverse=True)
        where = np.minimum(np.searchsorted(names, keys[1]), len(names) - 1)
        found = names[where] == keys[1]
        sums, counts = np.bincount(place, train.values, len(names)), np.bincount(place, minlength=len(names))
        if own:
            total, many = np.zeros(len(train)), np.zeros(len(train))
            for fold in range(5):
                here = folds == fold
                out = np.bincount(place[here], train.values[here], len(names))
                some = np.bincount(place[here], minlength=len(names))
                total[here], many[here] = (sums - out)[place[here]], (counts - some)[place[here]]
        else:
            total, many = np.where(found, sums[where], 0.0), np.where(found, counts[where], 0)
        columns += [(total + 5 * mean) / (many + 5), many]
    columns += [asked.indices[:, n] for n in range(train.n_modes)]
    return np.column_stack(columns)


def lightgbm(parts, known, leaves=(31, 127), rounds=2000, together=(1, 2)):
    """Boosted trees on labels and labels ``together`` encoded by out-of-fold means, with their counts."""
    import lightgbm as package

    def trained(train, count, size, stop=None):
        given = {
            "objective": "regression",
            "learning_rate": 0.05,
            "num_leaves": size,
            "verbose": -1,
            "num_threads": THREADS,
        }
        data = package.Dataset(encoded(train, train, own=True, together=together), train.values)
        if stop is None:
            return package.train(given, data, count)
        check = package.Dataset(encoded(train, stop, own=False, together=together), stop.values)
        return package.train(given, data, count, [check], callbacks=[package.early_stopping(50, verbose=False)])

    fits = {size: trained(parts.train, rounds, size, parts.valid) for size in ([known] if known else leaves)}
    size = chosen(list(fits), lambda one: fits[one].best_score["valid_0"]["l2"], known)
    everything = join(parts.train, parts.valid)
    model = trained(everything, fits[size].best_iteration, size)
    return model.predict(encoded(everything, parts.test, own=False, together=together)), size


def _key(indices, modes, shape):
    key = np.zeros(len(indices), dtype=np.int64)
    for n in modes:
        key = key * shape[n] + indices[:, n]
    return key


RIVALS = {"myfm": myfm, "svd": surprise_model("SVD"), "svd++": surprise_model("SVDpp"), "lightgbm": lightgbm}

OF_FOUR_MODES = {"lightgbm:3": partial(lightgbm, together=(1, 2, 3))}
"""With what `auto` sees of tensors of four modes, too."""
