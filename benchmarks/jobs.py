"""One measurement in a process of its own: ``python benchmarks/jobs.py KIND NAME [--quick]`` prints it as JSON.

Of its own, so that the threads are set before any library is loaded, peak memory belongs to one thing alone, and a
rival that crashes takes nothing with it. For the same reason libraries are imported where they are used: the memory of
a rival is not to hold torch.
"""

import argparse
import json
import os
import sys
import time
from functools import partial

import numpy as np
import rivals
import tensors
from ratings import jointensor_fits, myfm_fits, parts, surprise_fits, to_targets
from targets import reach
from timing import alternate, clock, compared, exponent, peak_mib, side

ITERATIONS = 3
"""Of TensorLy in one pass, so that what it does once weighs less."""


def problem(name, size):
    """Shape, entries and rank that a rival can take."""
    if name == "tensorly":
        data = tensors.planted(size)
        return data.shape, data.indices, data.values, size.rank
    count = size.part if name == "plain DataLoader" else size.entries
    return tensors.SHAPE, *tensors.skewed(count), size.rank


def rival_pass(name, size, shape, indices, values, rank):
    """One pass to be timed, and how often it goes through the entries."""
    if name in ("pyttb", "pygenten"):
        run = rivals.pyttb_run if name == "pyttb" else rivals.genten_run
        return rivals.one_epoch(run, shape, indices, values, rank, size.batch), 1
    if name == "tensorly":
        return partial(clock, rivals.tensorly_run(shape, indices, values, rank, ITERATIONS)), ITERATIONS
    from torch_rivals import Cp, Trainer

    trainer = Trainer(Cp(shape, rank), indices, values, size.batch)
    way = {"sliced Adam": trainer.sliced, "batched loader": trainer.batched, "plain DataLoader": trainer.plain}[name]
    return partial(clock, way), 1


def throughput(name, size):
    from ours import sweeper

    given = problem(name, size)
    rival, times = rival_pass(name, size, *given)
    mine, theirs = alternate(partial(clock, sweeper(*given)), rival, size.passes)
    count = len(given[2])
    return compared(side(count, mine), side(count * times, theirs))


def memory(name, size):
    """Peak of the process with one pass of one thing in it, beside what it was before that."""
    given = problem(name, size)
    before = peak_mib()
    if name == "exact sweep":
        from ours import sweeper

        sweeper(*given)()
    else:
        rival_pass(name, size, *given)[0]()
    return {"peak_mib": peak_mib(), "before_mib": before, "entries": len(given[2])}


def scaling(_name, size):
    return {name: growth(name, size) for name in ("entries", "modes", "rank")}


def growth(name, size):
    """Times of an exact sweep as one thing grows."""
    from ours import sweeper

    shape, count, rank = tensors.SHAPE, size.growing[-2], size.rank
    grown = {"entries": size.growing, "modes": size.modes, "rank": size.ranks}[name]
    seconds = []
    for value in grown:
        if name == "modes":
            shape = (183, 24, 1140, 1717, 60)[:value]
        count, rank = (value if name == "entries" else count), (value if name == "rank" else rank)
        sweep = sweeper(shape, *tensors.skewed(count, shape), rank)
        seconds.append(float(np.median([clock(sweep).seconds for _ in range(size.passes)])))
    last = exponent(list(grown[-2:]), seconds[-2:])  # fixed costs flatter the fit over all sizes
    return {"of": list(grown), "seconds": seconds, "exponent": exponent(list(grown), seconds), "last_exponent": last}


def paper(_name, size):
    """An epoch of the recipe's joint refinement against a loop by hand over the same model, both by Adam."""
    import torch
    from torch_rivals import Julia, Trainer

    from jointensor import JointModel, Recipe
    from jointensor.data.store import Entries
    from jointensor.solvers.sgd import FrozenHalf
    from jointensor.training.trainer import Trainer as Fitting

    indices, values = tensors.skewed(size.entries // 4)
    recipe = Recipe()
    model = JointModel(tensors.SHAPE, (4, 16))
    entries = Entries(torch.as_tensor(indices), torch.as_tensor(values))
    fitting = Fitting(model, entries, Entries(entries.indices[:0], entries.values[:0]), recipe)
    fitting.start()
    descent = fitting.sgd("benchmark", (model.multilinear, recipe.lr_linear), (model.nonlinear, recipe.lr_nonlinear))
    by_hand = Trainer(Julia(tensors.SHAPE, 4, 16), indices, values, recipe.batch_size)
    epoch = partial(descent.epoch, model.score, FrozenHalf(), entries)
    mine, theirs = alternate(partial(clock, epoch), partial(clock, by_hand.sliced), size.passes)
    return compared(side(len(values), mine), side(len(values), theirs))


def ratings(name, size):
    quick = size is tensors.QUICK
    if name == "jointensor":
        from ours import sweeper

        sweeper((9, 9), *tensors.skewed(100, (9, 9)), 2)  # compiled
    fits = {"jointensor": jointensor_fits, "myfm": myfm_fits, "scikit-surprise": surprise_fits}[name]
    return to_targets(fits, parts(), quick=quick)


def end_to_end(name, _size):
    from jointensor import JointModel, evaluate, fit, split
    from jointensor.data.formats.npz import read as read_npz

    divided = split(read_npz(tensors.DATA / "uber_apr_jun.npz"), seed=0)
    begin = time.perf_counter()
    result = fit(JointModel(divided.train.shape, (4, 16)), divided, name, seed=0, device="cpu")
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "rmse": evaluate(result, divided.test)["rmse"], "outcome": result.outcome}


KINDS = {
    "throughput": throughput,
    "memory": memory,
    "scaling": scaling,
    "paper": paper,
    "ratings": ratings,
    "target": lambda name, size: reach(name, tensors.planted(size), size),
    "end_to_end": end_to_end,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    size = tensors.QUICK if options.quick else tensors.Sizes()
    found = KINDS[options.kind](options.name, size)
    torch = sys.modules.get("torch")
    found["torch_threads"] = None if torch is None else torch.get_num_threads()
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # GenTen aborts when the interpreter takes its tensors down


if __name__ == "__main__":
    main()
