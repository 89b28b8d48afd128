"""Joint models beside their halves: validation RMSE of R/F by nested training over the lower of R/0 and 0/F.

    python benchmarks/nested.py ../shared/data/walmart_sales.npz ../shared/data/nyc_taxi.npz --device cuda \\
        --linear 0,4,16,64,128 --nonlinear 0,4,16 --networks julia,costco,avocado,neurtn,neptune,mlp

The recipe is `default` with ``nested=true``, on the standard split. One JSON file per tensor, written after every fit:
a run that was stopped continues where it stopped. Test RMSE is recorded beside it and decides nothing.
"""

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from jointensor.atomic import write_json
from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe
from report import description

MAX_RATIO = 1.002
"""Up to this ratio a joint model counts as no worse than its halves."""


def provenance():
    """Where, when and with what."""
    return description(SimpleNamespace(quick=False, threads=torch.get_num_threads()), {})


def figures(parts, rank, network, options):
    """Errors and seconds of one fit."""
    recipe = make_recipe("default", nested=True, fall_back=False)
    model = JointModel(parts.train.shape, rank, linear=recipe.linear(rank[0]), nonlinear=network)
    begin = time.perf_counter()
    found = fit(model, parts, recipe, seed=options.seed, device=options.device)
    seconds = time.perf_counter() - begin
    errors = {name: rmse(found.predict(one.indices), one.values) for name, one in vars(parts).items()
              if name in ("valid", "test")}  # fmt: skip
    return {name: float(error) for name, error in errors.items()} | {"seconds": seconds, "first": found.first}


def fit_all(source, options):
    """All fits of one tensor, by ``R/F network``; those that are in the file already are kept."""
    path = options.out / f"{source.stem}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else provenance() | {"fits": {}}
    parts = split(read_tensor(source).tensor, seed=0)
    for r in options.linear:
        for f in options.nonlinear:
            for network in options.networks if f else ["none"]:
                name = f"{r}/{f} {network}"
                if (r or f) and name not in record["fits"]:
                    record["fits"][name] = figures(parts, (r, f), network if f else "julia", options)
                    write_json(path, record)
                    print(f"{source.stem} {name}: {record['fits'][name]}", flush=True)
    return record["fits"]


def ratios(fits):
    """Validation error of every joint model over that of its better half."""
    found = {}
    for name, one in fits.items():
        rank, network = name.split()
        r, f = rank.split("/")
        halves = [fits.get(f"{r}/0 none"), fits.get(f"0/{f} {network}")]
        if r != "0" and f != "0" and all(halves):
            found[name] = one["valid"] / min(half["valid"] for half in halves)
    return found


def main():
    def numbers(text):
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--linear", type=numbers, default=[0, 4, 16])
    parser.add_argument("--nonlinear", type=numbers, default=[0, 4, 16])
    parser.add_argument("--networks", type=lambda text: text.split(","), default=["julia"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "nested")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for source in options.sources:
        found = ratios(fit_all(source, options))
        worse = {name: ratio for name, ratio in found.items() if ratio > MAX_RATIO}
        print(
            f"{source.stem}: {len(found) - len(worse)} of {len(found)} joint models no worse than their halves", worse
        )


if __name__ == "__main__":
    main()
