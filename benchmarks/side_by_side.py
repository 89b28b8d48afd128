"""Five folds of JULIA 4/16 over one: seconds of fits side by side, one after the other, and of one alone.

    python benchmarks/side_by_side.py --device cuda
    python benchmarks/side_by_side.py --device cpu --entries 100000 --epochs 16 --spinning 2

Planted entries, refined for a fixed number of epochs, so that all fits do the same work. Each round measures one fit,
all folds side by side, and all folds one after the other; ratios are of the same round, and their median counts.
``--spinning`` starts as many processes that use a core each. The record goes to ``benchmarks/results``.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from jointensor.atomic import write_json
from jointensor.bench.records import provenance
from jointensor.data.split import FOLDS, Split
from jointensor.data.synthetic import make_joint
from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.models.joint import JointModel
from jointensor.search.executor import FitResult, Job, run_fits
from jointensor.search.folds import fold_entries
from jointensor.search.interruption import Interruption
from jointensor.search.workers import Workers
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

SHAPE = (300, 200, 100, 50)
"""Labels of the modes."""

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--entries", type=int, default=300_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="0: as many as a search takes")
    parser.add_argument("--spinning", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    data = fold_entries(make_joint(SHAPE, (4, 0), observed=options.entries, noise=0.3, seed=0)[0], (), 0)
    workers = Workers.of(device, options.entries).most if not options.workers else options.workers
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.spinning)]
    try:
        seconds_of(data, [0], 1, options)  # compiles
        if device.type == "cuda":
            seconds_of(data, range(FOLDS), workers, options)  # streams and their memory
        rounds = [measured(data, workers, options) for _ in range(options.rounds)]
    finally:
        for one in spinning:
            one.kill()
    names = ("one", "side_by_side", "in_turn")
    found = {name: median(row[name] for row in rounds) for name in names}
    found |= {f"{name}_over_one": median(row[name] / row["one"] for row in rounds) for name in names[1:]}
    given = {name: value for name, value in vars(options).items() if name not in ("out", "workers")}
    record = provenance() | {"command": " ".join(["python", *sys.argv]), **given, "workers": workers, "folds": FOLDS}
    record |= {"gpu": torch.cuda.get_device_name() if device.type == "cuda" else None, "rounds": rounds, **found}
    name = f"side_by_side_{device.type}{'_beside' if options.spinning else ''}.json"
    write_json(options.out or RESULTS / name, record)
    print(
        f"{options.device}, {options.entries:,} entries, {workers} at a time: one fit {found['one']:.1f} s, {FOLDS} "
        f"side by side {found['side_by_side_over_one']:.2f} times that, in turn {found['in_turn_over_one']:.2f} times"
    )


def measured(data, workers, options):
    """Seconds of one round."""
    return {
        "one": seconds_of(data, [0], 1, options),
        "side_by_side": seconds_of(data, range(FOLDS), workers, options),
        "in_turn": seconds_of(data, range(FOLDS), 1, options),
    }


def seconds_of(data, folds, workers, options):
    """Seconds of fits to folds by so many workers."""
    recipe = make_recipe(
        "default", fall_back=False, restarts=0, rounds=0, warm_epochs=1, refine_epochs=options.epochs,
        cycle=options.epochs, patience=0, tolerance=0.0,
    )  # fmt: skip

    def work(fold):
        train, valid = data.split(fold)
        model = JointModel(train.shape, (4, 16), linear=recipe.linear(4))
        none = train.take([])
        fit(model, Split(train, valid, none, rule="fold"), recipe, seed=0, device=options.device)
        return FitResult()

    begin = time.perf_counter()
    with Workers(workers, torch.device(options.device)) as threads:
        list(run_fits(SINGLE_PROCESS, [Job(lambda k=k: work(k)) for k in folds], Interruption(), workers=threads))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
