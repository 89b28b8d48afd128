"""Fits of tensors of several sizes within a fixed memory: peak memory, seconds per phase, entries per second.

    python benchmarks/large.py --entries 10e6 50e6 200e6 --both 10e6 --passes 9 --out benchmarks/results/large.json

Every tensor is drawn (four modes), fitted in a process of its own with ``--memory``, and removed; sizes up to
``--both`` also in memory, for the same number of sweeps and epochs. A small network, one warm start, two alternating
turns and one epoch of refinement. ``--passes 5`` also compares sweeps and epochs pass by pass, in one process and in
turn, so that a slow spell of the machine hits both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jointensor.atomic import write_json
from jointensor.bench.records import provenance

PROGRAM = [sys.executable, "-c", "from jointensor.cli import main; main()"]
SHAPE = "20000x10000x5000x1000"
RECIPE = {
    "ridges": "(0.01,)", "sweeps": 2, "follow": 0, "first": "linear", "warm_epochs": 1, "rounds": 1, "refine_epochs": 1,
    "cycle": 0, "fall_back": "false",
}  # fmt: skip


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds, and the most MiB that a process had in memory. This process is small: a child's figure starts at it."""
    begin = time.perf_counter()
    child = subprocess.Popen(PROGRAM + command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def fitted(source: Path, out: Path, options: list[str], rank: str) -> dict:
    changes = [word for name, value in RECIPE.items() for word in ("--set", f"{name}={value}")]
    seconds, peak = measured(
        ["fit", str(source), "--rank", rank, "--no-restart", "--out", str(out), *changes, *options]
    )
    metrics = json.loads((out / "metrics.json").read_text())
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    entries = metrics["entries"]["train"]
    phases = [{"phase": row["phase"], "seconds": row["seconds"], "entries_per_second": entries / row["seconds"],
               "train": row["train_loss"], "valid": row["valid_loss"]} for row in rows]  # fmt: skip
    return {
        "entries": metrics["entries"], "seconds": seconds, "peak_mib": peak, "test_rmse": metrics["test"]["rmse"],
        "bias_rmse": metrics["baselines"]["bias"]["test"]["rmse"], "epochs": phases,
        "training_seconds": sum(row["seconds"] for row in rows), "steps": metrics.get("steps"),
        "split": metrics["split"], "notes": metrics["notes"],
    }  # fmt: skip


def bench(entries: int, both: float, args: argparse.Namespace, folder: Path) -> dict:
    source = folder / "tensor.npz"
    drawn, drawing_peak = measured(
        ["data", "get", "synthetic", "--shape", SHAPE, "--entries", str(entries), "--rank", "3/3", "--ratio", "0.5",
         "--noise", "0.3", "--out", str(source)]
    )  # fmt: skip
    print(f"{entries:,} entries: drawn in {drawn:.0f} s, {drawing_peak:.0f} MiB", flush=True)
    found = {"entries": entries, "source_mib": source.stat().st_size / 2**20, "drawn_seconds": drawn,
             "drawing_peak_mib": drawing_peak}  # fmt: skip
    options = {"streamed": ["--memory", args.memory, "--stream"]} | ({"in_memory": []} if entries <= both else {})
    for name, given in options.items():
        found[name] = fitted(source, folder / "run", given, args.rank)
        one = found[name]
        print(f"  {name}: {one['seconds']:.0f} s, peak {one['peak_mib']:.0f} MiB, test RMSE {one['test_rmse']:.4f}")
        for row in one["epochs"]:
            print(f"    {row['phase']:<24}{row['seconds']:8.1f} s {row['entries_per_second']:12,.0f} entries/s")
        print(f"    {one['steps']}", flush=True)
    source.unlink()
    return found


def compared(entries: int, rank: str, passes: int, folder: Path) -> dict:
    """Entries per second of one sweep and of one epoch, from disk and in memory, taken alternately."""
    import numpy as np
    import torch
    from timing import alternate, clock, side
    from timing import compared as ratio

    from jointensor.data.formats import npz
    from jointensor.data.generate import SyntheticSpec, write_large
    from jointensor.data.shard_writer import write_shards
    from jointensor.data.split import SplitAssignment, SplitRule
    from jointensor.data.store import Entries, ShardedEntries
    from jointensor.data.tensor import SparseTensor
    from jointensor.kernels import pick_engine
    from jointensor.models.joint import JointModel
    from jointensor.solvers.sgd import FrozenHalf
    from jointensor.training.recipe import make_recipe
    from jointensor.training.trainer import Trainer

    shape = tuple(map(int, SHAPE.split("x")))
    write_large(SyntheticSpec(shape, entries, (3, 3), ratio=0.5, noise=0.3), folder / "tensor.npz")
    source = npz.scan(folder / "tensor.npz", 1 << 19)
    sides = SplitAssignment(SplitRule(), entries, folder / "sides", 10**9)
    dealt = write_shards(folder / "shards", source.chunks(), source.modes, sides, 1 << 22, {})
    blocks = list(dealt.train.blocks())
    whole = SparseTensor(
        np.concatenate([one.indices for one in blocks]), np.concatenate([one.values for one in blocks]), shape
    )
    recipe, place = make_recipe("default"), torch.device("cpu")
    numbers = tuple(map(int, rank.split("/")))
    valid = Entries.of(dealt.valid, place)
    sweeps, epochs = [], []
    for train in (ShardedEntries.of(dealt, place), Entries.of(whole, place).by_last_mode()):
        model = JointModel(shape, numbers, linear=recipe.linear(numbers[0]))
        one = Trainer(model, train, valid, recipe, engine=pick_engine("auto", "cpu"))
        one.engine.equip(model, short=recipe.precision == "short")
        one.start()
        exact = one.exact(model.multilinear)
        exact.als.ridge, exact.als.pull = 0.01, recipe.pull
        descent = one.sgd("benchmark", (model, 0.01))
        sweeps.append(lambda e=exact, t=one: e.epoch(None, FrozenHalf(), t.train))
        epochs.append(lambda d=descent, m=model, t=one: d.epoch(m.score, FrozenHalf(), t.train))
    found = {}
    for name, (ours, rival) in {"sweep": sweeps, "epoch": epochs}.items():
        mine, theirs = alternate(lambda f=ours: clock(f), lambda f=rival: clock(f), passes)
        found[name] = ratio(side(len(whole), mine), side(len(whole), theirs))
        cpu = [np.median([one.seconds * one.cores for one in side_]) for side_ in (mine, theirs)]
        found[name]["cpu_ratio"] = float(cpu[1] / cpu[0])
        print(f"  {name}: from disk {found[name]['ratio']:.2f} times the entries per second of memory "
              f"(quartiles {found[name]['quartiles'][0]:.2f} to {found[name]['quartiles'][1]:.2f}; "
              f"by processor time {found[name]['cpu_ratio']:.2f})", flush=True)  # fmt: skip
    return {"entries": entries, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=float, nargs="*", default=[2e6])
    parser.add_argument("--both", type=float, default=2e6, help="sizes up to this are also fitted in memory")
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--rank", default="4/4")
    parser.add_argument("--folder", type=Path, help="where tensors and runs are for a while")
    parser.add_argument("--passes", type=int, default=0, help="of sweeps and epochs at the size --both")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = [bench(int(entries), args.both, args, Path(folder)) for entries in args.entries]
    turns = None
    if args.passes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            turns = compared(int(args.both), args.rank, args.passes, Path(folder))
    facts = {"memory": args.memory, "rank": args.rank, "shape": SHAPE, "recipe": RECIPE}
    if args.out is not None:
        write_json(args.out, {**provenance(), **facts, "results": results, "in_turn": turns})


if __name__ == "__main__":
    main()
