"""TensorLy: CP by masked alternating least squares over all cells, for tensors that are small enough to be dense."""

import numpy as np
from tensorly.decomposition import parafac

from jointensor.bench import Answer

CHOSEN = "rank by validation entries; then fitted to these, too"
PACKAGES = ("tensorly",)
RANKS, SWEEPS, MOST = (1, 2, 4, 8, 16, 32), 100, 20_000_000


def predicted(train, cells, rank):
    mean = float(train.values.mean())
    dense, mask = np.zeros(train.shape, np.float32), np.zeros(train.shape, np.float32)
    dense[tuple(train.indices.T)], mask[tuple(train.indices.T)] = train.values - mean, 1.0
    weights, factors = parafac(dense, rank, n_iter_max=SWEEPS, init="random", mask=mask, tol=1e-6, random_state=0)
    known = (cells >= 0).all(axis=1)
    rows = np.prod([factor[np.maximum(cells[:, n], 0)] for n, factor in enumerate(factors)], axis=0)  # (cells, rank)
    return mean + np.where(known, rows @ weights, 0.0)


def predict(problem):
    if np.prod(problem.train.shape, dtype=float) > MOST:
        raise MemoryError(f"a dense tensor of shape {problem.train.shape} is too large")
    valid, errors = problem.valid, {}
    for rank in RANKS:
        errors[rank] = float(np.mean((predicted(problem.train, valid.indices, rank) - valid.values) ** 2))
    best = min(errors, key=errors.get)
    return Answer(predicted(problem.everything, problem.cells, best), {"rank": best})
