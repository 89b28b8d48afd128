"""Seconds to a given error on held-out entries of a planted tensor."""

import time

import numpy as np
from tensors import Planted, Sizes

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Epochs of whole runs where the factors cannot be looked at in between; the shortest that gets there counts."""


def stepwise(step, rmse, target, budget):
    """Steps until the error is reached; looking at the error is not timed."""
    spent, error = 0.0, np.inf
    while spent < budget:
        begin = time.perf_counter()
        step()
        spent += time.perf_counter() - begin
        error = rmse()
        if error <= target:
            return spent, error
    return None, error


def by_length(run, target, budget):
    """Whole runs of growing length; ``run(length)`` returns seconds and error."""
    best = np.inf
    for length in LENGTHS:
        seconds, error = run(length)
        best = min(best, error)
        if error <= target:
            return seconds, error
        if seconds > budget / 1.5:
            break
    return None, best


def ours(problem: Planted, size: Sizes, seed, _rate):
    from ours import exact, sweeper

    sweeper(problem.shape, problem.indices[:100], problem.values[:100], problem.rank)  # compiled
    begin = time.perf_counter()
    g, als, values = exact(problem.shape, problem.indices, problem.values, problem.rank, scale=(0.0, 0.5), seed=seed)
    als.ridge = 0.0001
    made = time.perf_counter() - begin  # sorting the entries is part of the time
    seconds, error = stepwise(
        lambda: als.sweep(values),
        lambda: problem.rmse([table.detach().numpy() for table in g.cp.tables]),
        problem.target,
        size.budget,
    )
    return None if seconds is None else made + seconds, error


def sliced(problem, size, seed, rate):
    import torch
    from torch_rivals import Cp, Trainer

    torch.manual_seed(seed)
    trainer = Trainer(Cp(problem.shape, problem.rank), problem.indices, problem.values, size.batch, lr=rate)
    tables = [table.detach() for table in trainer.model.tables]
    return stepwise(trainer.sliced, lambda: problem.rmse(tables), problem.target, size.budget)


def _sampled(run):
    def reach(problem, size, seed, rate):
        from rivals import pyttb_tensor

        tensor = pyttb_tensor(problem.shape, problem.indices, problem.values)

        def whole(length):
            factors, weights, seconds = run(tensor, problem.rank, size.batch, length, rate, seed)
            return seconds, problem.rmse(factors, weights)

        return by_length(whole, problem.target, size.budget)

    return reach


def pyttb(problem, size, seed, rate):
    from rivals import pyttb_run

    return _sampled(pyttb_run)(problem, size, seed, rate)


def genten(problem, size, seed, rate):
    from rivals import genten_run

    return _sampled(genten_run)(problem, size, seed, rate)


def tensorly(problem, size, seed, _rate):
    from rivals import tensorly_run

    def whole(length):
        work = tensorly_run(problem.shape, problem.indices, problem.values, problem.rank, length, seed)
        begin = time.perf_counter()
        weights, factors = work()
        return time.perf_counter() - begin, problem.rmse(factors, weights)

    return by_length(whole, problem.target, size.budget)


REACH = {"exact sweeps": ours, "sliced Adam": sliced, "pyttb": pyttb, "pygenten": genten, "tensorly": tensorly}
WITHOUT_RATE = ("exact sweeps", "tensorly")


def reach(name: str, problem: Planted, size: Sizes) -> dict:
    """Median over random starts, one that fails counting as longest; the learning rate is chosen by the first start."""
    rates = (None,) if name in WITHOUT_RATE else size.rates
    first = {rate: REACH[name](problem, size, 0, rate) for rate in rates}
    best = min(rates, key=lambda rate: (_or_never(first[rate][0]), first[rate][1]))
    runs = [first[best], *(REACH[name](problem, size, seed, best) for seed in range(1, size.seeds))]
    middle = float(np.median([_or_never(seconds) for seconds, _ in runs]))
    return {
        "target": problem.target,
        "noise": problem.noise,
        "rate": best,
        "seconds": middle if np.isfinite(middle) else None,
        "each": [seconds for seconds, _ in runs],
        "rmse": [error for _, error in runs],
        "budget": size.budget,
    }


def _or_never(seconds):
    return np.inf if seconds is None else seconds
