"""Seconds per pass on one NVIDIA GPU, at the size of the Enron tensor, beside hand-written PyTorch and the floor.

    python benchmarks/gpu.py --out benchmarks/results

exact sweep      every row of every mode solved by least squares
JULIA R/F        one epoch of the joint refinement, by `jointensor` (precision as the default recipe has it), compiled,
                 which a fit does with steps that have taken some seconds
  by hand        the same model in plain PyTorch, entries on the device, batches sliced from a permutation
  DataLoader     the same with a DataLoader over a TensorDataset on the host (some of the entries)
whole fit        `fit` with the default recipe from entries in host memory until it stops, in a new process with an
                 empty compile cache, and in another with a full one

The floor is the bytes that must move, over the bandwidth of a device copy measured in the same run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from jointensor.atomic import write_json, write_whole
from jointensor.bench.records import provenance
from jointensor.data.store import Entries
from jointensor.kernels import pick_engine
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.sgd import FrozenHalf
from jointensor.solvers.systems import SystemsInMemory
from jointensor.training.recipe import make_recipe
from jointensor.training.trainer import Trainer

SHAPE = (6066, 5699, 244268, 1176)
"""Enron's: sender, receiver, word, date."""

FLOAT = INDEX = 4
"""Bytes of a number and of a label on the device."""


def entries_on_device(count, shape=SHAPE):
    """Cells with skewed labels and values without structure: the time of a pass does not depend on them."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    draw = [torch.rand(count, device="cuda", generator=generator) ** 2 * size for size in shape]
    return Entries(
        torch.stack([one.int() for one in draw], dim=1), 1 + torch.rand(count, device="cuda", generator=generator)
    )


def seconds(work, passes=5):
    """Median of some passes after one that does not count."""
    work()
    taken = []
    for _ in range(passes):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2]


def copy_bandwidth(size=1 << 31):
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * size / seconds(lambda: target.copy_(source))


def sweep(entries, rank, shape=SHAPE):
    """One exact sweep, and the bytes it cannot do without: rows and labels of the other modes, targets, their order."""
    g = Multilinear(shape, f"cp:{rank}").cuda()
    engine = pick_engine("triton", "cuda")
    engine.equip(g)
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.1)
    ordered = entries.by_last_mode()
    als = Als(g, SystemsInMemory(g, ordered.indices, engine), spread=float(ordered.values.std()))
    als.ridge = 0.01
    others = len(shape) - 1
    per_entry = len(shape) * (others * (rank * FLOAT + INDEX) + 2 * INDEX) + others * rank * FLOAT
    return seconds(lambda: als.sweep(ordered.values)), per_entry * len(entries)


def epoch(entries, rank, batch, shape=SHAPE):
    """One epoch of joint refinement, and its bytes: Adam's over all tables in every step, the rows of every entry."""
    recipe = make_recipe("default", batch_size=batch, average=0.0)
    model = JointModel(shape, rank).cuda()
    engine = pick_engine("triton", "cuda")
    engine.equip(model, short=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.1)
    trainer = Trainer(model, entries, Entries(entries.indices[:0], entries.values[:0]), recipe, engine=engine)
    descent = trainer.sgd("benchmark", (model, 1e-3))
    replayed = seconds(lambda: descent.epoch(model.score, FrozenHalf(), entries), 3)
    descent.runner.compile()
    begin = time.perf_counter()
    descent.epoch(model.score, FrozenHalf(), entries)
    first = time.perf_counter() - begin
    steps = -(-len(entries) // batch)
    adam = 7 * FLOAT * model.n_parameters()  # parameter, gradient and two moments read, three of them written
    rows = 3 * FLOAT * len(shape) * sum(rank)  # read forwards and backwards, and their gradients added
    moved = steps * adam + len(entries) * (rows + (len(shape) + 2) * INDEX)
    return seconds(lambda: descent.epoch(model.score, FrozenHalf(), entries), 3), moved, replayed, first


def by_hand(entries, rank, batch, shape=SHAPE):
    """What one writes without us: `JointModel` in plain torch, a permutation, slices, Adam."""
    model = JointModel(shape, rank).cuda()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def one_pass():
        order = torch.randperm(len(entries), device="cuda")
        for start in range(0, len(entries), batch):
            chosen = order[start : start + batch]
            step(model, optimizer, entries.indices[chosen], entries.values[chosen])

    begin = time.perf_counter()  # one pass: a first one costs nothing extra here
    one_pass()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def loader(entries, rank, batch, part=400_000, shape=SHAPE):
    """The same with batches from a DataLoader on the host; seconds as for all entries."""
    model = JointModel(shape, rank).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = TensorDataset(entries.indices[:part].cpu(), entries.values[:part].cpu())

    def one_pass():
        for indices, values in DataLoader(
            data, sampler=BatchSampler(RandomSampler(data), batch, drop_last=False), batch_size=None
        ):
            step(model, optimizer, indices.cuda(), values.cuda())

    return seconds(one_pass, 1) * len(entries) / part


def step(model, optimizer, indices, values):
    loss = (model(indices) - values).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def whole_fits(count):
    """`fit` in two new processes: the first compiles, the second finds what it compiled."""
    with tempfile.TemporaryDirectory() as cache:
        places = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        command = [sys.executable, str(Path(__file__).with_name("gpu_fit.py")), str(count)]
        found = {}
        for name in ("cold", "warm"):
            done = subprocess.run(command, env=os.environ | places, capture_output=True, text=True, check=False)
            found[name] = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-2000:]}
    return found


def measure(options):
    bandwidth = copy_bandwidth()
    entries = entries_on_device(options.entries)
    print(
        f"{torch.cuda.get_device_name()}: copies at {bandwidth / 1e12:.2f} TB/s; {options.entries:,} entries of {SHAPE}"
    )
    results = {"bandwidth": bandwidth, "sweep": {}, "epoch": {}, "entries": {}}
    for rank in (4, 16, 32):
        results["sweep"][rank] = show(f"exact sweep, R = {rank}", *sweep(entries, rank), bandwidth)
    for rank in ((16, 4), (4, 16)):
        for batch in (16_384, 131_072):
            taken, moved, replayed, first = epoch(entries, rank, batch)
            name = f"JULIA {rank[0]}/{rank[1]}, batch {batch:,}"
            hand = by_hand(entries, rank, batch)
            row = show(name, taken, moved, bandwidth) | {"replayed": replayed, "first": first, "by hand": hand}
            print(
                f"{'':34} by hand {hand:.2f} s, {hand / taken:.1f} times as long; replayed, but not compiled "
                f"{replayed:.3f} s; first compiled epoch {first:.1f} s"
            )
            results["epoch"][name] = row
    slow = loader(entries, (16, 4), 16_384)
    results["loader"] = {"seconds": slow, "batch": 16_384}
    ratio = slow / results["epoch"]["JULIA 16/4, batch 16,384"]["seconds"]
    print(f"{'JULIA 16/4 with a DataLoader':34} {slow:.0f} s, {ratio:.0f} times as long")
    for count in (options.entries // 16, options.entries // 4):
        part = Entries(entries.indices[:count], entries.values[:count])
        results["entries"][count] = show(f"exact sweep, {count:,} entries", *sweep(part, 16), bandwidth)
    del entries
    torch.cuda.empty_cache()
    results["fit"] = whole_fits(options.entries)
    for name, found in results["fit"].items():
        print(f"whole fit, {name}: {found}")
    return results


def show(name, taken, moved, bandwidth):
    floor = moved / bandwidth
    print(
        f"{name:34} {taken:.4f} s   {moved / 1e9:6.1f} GB, floor {floor:.4f} s, {floor / taken:.0%} of it reached",
        flush=True,
    )
    return {"seconds": taken, "bytes": moved, "floor": floor}


def draw(results, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    panel = figure.subplots()
    rows = {f"exact sweep, R = {rank}": row for rank, row in results["sweep"].items()} | results["epoch"]
    names = list(rows)
    panel.barh(names, [rows[name]["seconds"] for name in names], color="#1f6f8b", label="jointensor")
    panel.plot([rows[name]["floor"] for name in names], names, "k|", markersize=14, label="bytes / copy bandwidth")
    hand = [name for name in names if "by hand" in rows[name]]
    panel.plot([rows[name]["by hand"] for name in hand], hand, "o", color="#c0392b", label="hand-written PyTorch")
    panel.set_xscale("log")
    panel.set_xlabel("seconds per pass")
    panel.legend(frameon=False)
    panel.invert_yaxis()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=39_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    results = measure(options)
    results |= provenance(["triton"])
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / "gpu.json", results)
    write_whole(options.out / "gpu.png", lambda half: draw(results, half))


if __name__ == "__main__":
    main()
