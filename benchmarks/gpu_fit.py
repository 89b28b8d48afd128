"""One whole fit at the size of the Enron tensor, for benchmarks/gpu.py: prints what it took as JSON."""

import json
import sys
import time

import numpy as np
import torch
from gpu import SHAPE

from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

NOISE = 0.5


def planted(count, seed=0):
    """A few components and an interaction that none of them has, with noise; made on the device, kept on the host."""
    torch.manual_seed(seed)
    drawn = torch.stack([(torch.rand(count, device="cuda") ** 2 * size).long() for size in SHAPE], dim=1)
    keys = torch.zeros_like(drawn[:, 0])
    for n, size in enumerate(SHAPE):
        keys = keys * size + drawn[:, n]
    once = torch.cat([keys.new_ones(1, dtype=torch.bool), keys.sort().values.diff() != 0])
    indices = drawn[keys.argsort()[once]]
    indices = indices[torch.randperm(len(indices), device="cuda")].int()
    count = len(indices)
    tables = [torch.randn(size, 5, device="cuda") for size in SHAPE]
    value = torch.ones(count, 5, device="cuda")
    for n, table in enumerate(tables):
        value *= 0.5 + 0.5 * table[indices[:, n].long()]
    mixed = torch.relu(sum(table[indices[:, n].long(), 0] for n, table in enumerate(tables[:3])))
    values = 2 + value.sum(dim=1) + 0.5 * mixed + NOISE * torch.randn(count, device="cuda")
    return indices.cpu().numpy(), values.cpu().numpy()


def main():
    count = int(sys.argv[1])
    torch.cuda.init()
    indices, values = planted(count + count // 5)
    torch.cuda.empty_cache()
    begin = time.perf_counter()
    tensor = SparseTensor(indices, values, SHAPE)
    checked = time.perf_counter() - begin
    cells = [tensor.take(part) for part in parts_of(count, len(values))]
    recipe = make_recipe("default")
    begin = time.perf_counter()
    model = JointModel(SHAPE, (16, 4), linear=recipe.linear(16))
    found = fit(model, Split(*cells, rule="first", seed=0), recipe, device="cuda")
    taken = time.perf_counter() - begin
    truth = cells[2]
    rows = found.history
    phases = {
        name: [sum(row.phase == name for row in rows), sum(row.seconds for row in rows if row.phase == name)]
        for name in dict.fromkeys(row.phase for row in rows)
    }
    figures = {
        "seconds": taken,
        "seconds_to_check_entries": checked,
        "outcome": found.outcome,
        "first": found.first,
        "epochs_and_seconds": phases,
        "seconds_outside_epochs": taken - sum(spent for _, spent in phases.values()),
        "test_rmse": float(rmse(found.predict(truth.indices), truth.values)),
        "noise": NOISE,
        "spread": float(np.std(values)),
    }
    json.dump(figures, sys.stdout)


def parts_of(count, total):
    """Training, validation and test entries; they are in random order as they come."""
    half = (total - count) // 2
    return np.arange(count), np.arange(count, count + half), np.arange(count + half, total)


if __name__ == "__main__":
    main()
