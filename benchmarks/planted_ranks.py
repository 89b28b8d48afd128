"""Is the multilinear rank that ``select`` chooses the planted one?

    python benchmarks/planted_ranks.py --seeds 10

A 100 × 100 × 100 tensor, 20 % observed, R = 2, 3 or 5 components, noise of a tenth of the values' variance, with and
without a nonlinear part of half the components' standard deviation. Candidates are R = 1 … 8.
"""

from __future__ import annotations

import argparse
import json
import sys

from jointensor.data.synthetic import make_joint
from jointensor.reproduce.planted import julia_network
from jointensor.runs.select import select

PLANTED = (2, 3, 5)
CANDIDATES = tuple(range(1, 9))
WIDTH = 10
RATIO = 0.5
NOISE = 0.1**0.5


def run_one(planted: int, seed: int, *, network: bool, size: int = 100, device: str = "auto") -> dict[str, object]:
    """Plant a tensor and choose its rank."""
    width = WIDTH if network else 0
    made = julia_network(3, WIDTH, seed) if network else None
    tensor, _ = make_joint((size,) * 3, (planted, width), made, ratio=RATIO, noise=NOISE, seed=seed)
    found = select(tensor, CANDIDATES, (0,), n_folds=1, starts=3, seed=seed, device=device)
    return {
        "planted": planted,
        "network": network,
        "seed": seed,
        "identified": found.identified,
        "rmse": [round(one.rmse, 5) for one in found.results],
        "seconds": round(sum(one.seconds for one in found.results), 1),
    }


def main() -> None:
    """Run seeds and print a line per tensor, then how often the rank was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--planted", type=int, nargs="*", default=list(PLANTED))
    parser.add_argument("--network", choices=["with", "without", "both"], default="both")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    found: dict[tuple[int, bool], list[bool]] = {}
    for network in [name for name in (False, True) if options.network in ("both", "with" if name else "without")]:
        for planted in options.planted:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                row = run_one(planted, seed, network=network, device=options.device)
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
                found.setdefault((planted, network), []).append(row["identified"] == planted)
    for (planted, network), hits in found.items():
        words = "with" if network else "without"
        sys.stdout.write(f"R = {planted} {words} a network: {sum(hits)} of {len(hits)}\n")


if __name__ == "__main__":
    main()
