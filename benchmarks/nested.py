"""Joint models beside their halves: validation RMSE of R/F by nested training over the lower of R/0 and 0/F.

    python benchmarks/nested.py ../shared/data/walmart_sales.npz ../shared/data/nyc_taxi.npz --device cuda --jobs 8
    python benchmarks/nested.py --table

The recipe is `default` with ``nested=true``, on the standard split. Test RMSE is recorded, too, and decides nothing.
"""

import argparse
from pathlib import Path

from joint_fits import Model, add_options, fit_all, fits_in, numbers, words

from jointensor.bench.records import origin

RESULTS = Path(__file__).with_name("results")

MAX_RATIO = 1.002
"""Up to this ratio a joint model counts as no worse than its halves."""
NETWORKS = ["julia", "costco", "avocado", "neurtn", "neptune", "mlp"]


def ratios(fits):
    """Validation error of every joint model over that of its better half."""
    found = {}
    for name, one in fits.items():
        rank, network, *changes = name.split()
        r, f = map(int, rank.split("/"))
        halves = [fits.get(half.name(changes)) for half in (Model(r, 0), Model(0, f, network))]
        if r and f and all(halves):
            found[name] = one["valid"] / min(half["valid"] for half in halves)
    return found


def table(folder):
    """A row per tensor and split, and every joint model that is worse than a half."""
    fits, facts = fits_in(folder)
    rows = ["| tensor | split | no worse than its halves | worst ratio | of |", "|---|---:|---:|---:|---|"]
    worse = []
    for (tensor, split), mine in fits.items():
        found = ratios(mine)
        if found:
            worst = max(found, key=found.get)
            good = sum(ratio <= MAX_RATIO for ratio in found.values())
            rows.append(f"| {tensor} | {split} | {good} of {len(found)} | {found[worst]:.4f} | {worst} |")
        worse += [
            f"- {tensor} split {split}, {name}: {ratio:.4f}" for name, ratio in found.items() if ratio > MAX_RATIO
        ]
    return "\n".join(
        [*rows, "", *(worse or [f"All are at most {MAX_RATIO} times the better half."]), "", origin(facts)]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--linear", type=numbers, default=[0, 4, 16, 64, 128], help="R")
    parser.add_argument("--nonlinear", type=numbers, default=[0, 4, 16], help="F")
    parser.add_argument("--networks", type=words, default=NETWORKS)
    add_options(parser, RESULTS / "nested", splits=[0])
    options = parser.parse_args()
    models = [Model(r, f, network) for r in options.linear for f in options.nonlinear if r or f
              for network in (options.networks if f else ["julia"])]  # fmt: skip
    fit_all(models, options)
    if options.table or options.sources:
        print(table(options.out))


if __name__ == "__main__":
    main()
