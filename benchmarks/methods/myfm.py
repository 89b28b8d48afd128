"""myFM: Bayesian factorisation machine over one-hot labels, with who was seen with whom where that helps."""

import myfm
import numpy as np
from scipy import sparse

from jointensor.bench import Answer

CHOSEN = "rank, samples and implicit labels by validation entries; then fitted to these, too"
PACKAGES = ("myfm",)
SETTINGS = [(rank, samples, implicit) for rank in (8, 16, 32) for samples in (100, 200) for implicit in (False, True)]
MOST_IMPLICIT = 400_000  # entries: with more, one fit takes hours


def features(train, cells, implicit):
    """One-hot labels, none for one that is new; then those seen together with either of the two largest modes."""
    rows, shape = np.arange(len(cells)), train.shape
    first, second = sorted(np.argsort(shape)[-2:].tolist())
    found = []
    for n, size in enumerate(shape):
        known = cells[:, n] >= 0
        found.append(sparse.csr_matrix((np.ones(known.sum()), (rows[known], cells[known, n])), (len(cells), size)))
    if implicit:
        pairs = np.unique(train.indices[:, [first, second]], axis=0)
        seen = sparse.csr_matrix((np.ones(len(pairs)), pairs.T), (shape[first], shape[second]))
        for one_hot, together in ((found[first], seen), (found[second], seen.T.tocsr())):
            counts = np.maximum(np.asarray(together.sum(axis=1)).ravel(), 1)
            found.append((one_hot @ sparse.diags(counts**-0.5) @ together).tocsr())
    return sparse.hstack(found, format="csr"), [one.shape[1] for one in found]


def predicted(train, cells, rank, samples, implicit):
    known, sizes = features(train, train.indices, implicit)
    model = myfm.MyFMRegressor(rank=rank, random_seed=0)
    model.fit(known, train.values.astype(float), n_iter=samples, n_kept_samples=samples - 20, group_shapes=sizes)
    return model.predict(features(train, cells, implicit)[0])


def predict(problem):
    valid, errors = problem.valid, {}
    for one in SETTINGS:
        if one[2] and len(problem.train) > MOST_IMPLICIT:
            continue
        errors[one] = float(np.mean((predicted(problem.train, valid.indices, *one) - valid.values) ** 2))
    best = min(errors, key=errors.get)
    chosen = dict(zip(("rank", "samples", "implicit"), best, strict=True))
    return Answer(predicted(problem.everything, problem.cells, *best), chosen)
