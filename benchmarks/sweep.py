"""Entries per second of one training pass of CP over the same tensor, rank and threads, as ratios.

    python benchmarks/sweep.py --threads 2 --out sweep.json

exact sweep        jointensor: every row of every mode solved by least squares, numba engine
sliced Adam        hand-written PyTorch: entries in memory, permuted once, sliced into batches
batched loader     hand-written PyTorch: DataLoader with a batch sampler over a TensorDataset
plain DataLoader   hand-written PyTorch: DataLoader(shuffle=True), entry by entry (a straw man, on a part)

A pass of Adam and an exact sweep are not the same work: a sweep does more for the fit. The median of several passes
is taken, one thing at a time. With --scaling, the exponent with which a sweep's time grows in the entries.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from jointensor import __version__
from jointensor.kernels import pick_engine
from jointensor.models.multilinear import Multilinear
from jointensor.training.als import Als
from jointensor.training.state import Entries

SHAPE = (183, 24, 1140, 1717)


def entries(count, shape=SHAPE, seed=0):
    """Cells with skewed labels, as places and times have them, and values around a planted level."""
    rng = np.random.default_rng(seed)
    indices = np.stack([(rng.random(count) ** 2 * size).astype(np.int64) for size in shape], axis=1)
    return torch.as_tensor(indices), torch.as_tensor(1 + rng.gamma(1.0, 1.0, count).astype(np.float32))


class Cp(torch.nn.Module):
    """What one writes by hand: one table per mode, a product, a sum."""

    def __init__(self, shape, rank):
        super().__init__()
        self.tables = torch.nn.ParameterList(torch.nn.Parameter(0.3 * torch.randn(size, rank)) for size in shape)

    def forward(self, indices):
        rows = [table.index_select(0, indices[:, n]) for n, table in enumerate(self.tables)]
        return torch.stack(rows).prod(dim=0).sum(dim=1)


def step(model, optimizer, indices, values):
    loss = (model(indices) - values).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def sliced_pass(model, optimizer, indices, values, batch):
    order = torch.randperm(len(values))
    for start in range(0, len(values), batch):
        chosen = order[start : start + batch]
        step(model, optimizer, indices[chosen], values[chosen])


def loader_pass(model, optimizer, indices, values, batch, *, batched):
    data = TensorDataset(indices, values)
    if batched:
        sampler = BatchSampler(RandomSampler(data), batch, drop_last=False)
        loader = DataLoader(data, sampler=sampler, batch_size=None)
    else:
        loader = DataLoader(data, batch_size=batch, shuffle=True)
    for some, truth in loader:
        step(model, optimizer, some, truth)


def seconds(work, repeats):
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def exact(indices, values, rank, engine, shape=SHAPE):
    g = Multilinear(shape, f"cp:{rank}")
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.1)
    sorted_ = Entries(indices, values).by_last_mode()  # as `fit` does
    indices, values = sorted_.indices, sorted_.values
    als = Als(g, indices, spread=float(values.std()), solver=pick_engine(engine, "cpu").solve_rows)
    als.ridge = 0.01
    als.sweep(values)  # compiled, and warm
    return lambda: als.sweep(values)


def rates(count, rank, batch, repeats):
    indices, values = entries(count)
    part = min(count, 200_000)
    model = Cp(SHAPE, rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    same = (model, optimizer, indices, values, batch)
    few = (model, optimizer, indices[:part], values[:part], batch)
    sliced_pass(*few)  # warm
    return {
        "exact sweep": count / seconds(exact(indices, values, rank, "numba"), repeats),
        "sliced Adam": count / seconds(lambda: sliced_pass(*same), repeats),
        "batched loader": count / seconds(lambda: loader_pass(*same, batched=True), repeats),
        "plain DataLoader": part / seconds(lambda: loader_pass(*few, batched=False), 1),
    }


def scaling(rank, counts=(100_000, 1_000_000, 10_000_000)):
    taken = [seconds(exact(*entries(count), rank, "numba"), 3) for count in counts]
    slope = np.polyfit(np.log(counts), np.log(taken), 1)[0]
    return {"entries": list(counts), "seconds": taken, "exponent": float(slope)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=2_600_000)
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = rates(options.entries, options.rank, options.batch, options.repeats)
    print(f"CP, rank {options.rank}, {options.entries:,} entries of {SHAPE}, {options.threads} threads")
    for name, rate in found.items():
        print(
            f"{name:18} {rate / 1e6:8.2f} M entries/s   exact sweep is {found['exact sweep'] / rate:6.1f} times as fast"
        )
    results = {"options": vars(options) | {"out": str(options.out)}, "entries_per_second": found}
    if options.scaling:
        results["scaling"] = scaling(options.rank)
        print(f"time of a sweep grows with entries ** {results['scaling']['exponent']:.3f}: {results['scaling']}")
    if options.out is not None:
        machine = {"cpus": os.cpu_count(), "machine": platform.processor() or platform.machine()}
        versions = {"jointensor": __version__, "torch": torch.__version__, "python": platform.python_version()}
        options.out.write_text(json.dumps(results | {"machine": machine, "versions": versions}, indent=2))


if __name__ == "__main__":
    main()
