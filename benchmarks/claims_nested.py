"""The paper's claim by nested training: is JULIA-X below X alone, at equal total rank?

    python benchmarks/claims_nested.py ../shared/data/*.npz --device cuda --jobs 8
    python benchmarks/claims_nested.py ../shared/data/*.npz --device cuda --jobs 8 --set max_rank=128
    python benchmarks/claims_nested.py --table

X alone has the total rank 20 (NeurTN: 10). JULIA-X shares it between R and F in three ways; the one that validates best
counts, on every split anew. With ``--set max_rank=128`` R grows for as long as that validates better, from the first of
these ways; the total rank is no longer equal, and X alone, which has no R, is that of the first command. Test RMSE over
five splits, paired. The recipe is `default` with ``nested=true``.
"""

import argparse
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from joint_fits import Model, add_options, fit_all, fits_in, words

from jointensor.bench.records import origin

RESULTS = Path(__file__).with_name("results")

SHARES = {20: [(4, 16), (10, 10), (16, 4)], 10: [(2, 8), (5, 5), (8, 2)]}
"""R and F by the total rank."""
TOTALS = {"costco": 20, "avocado": 20, "neurtn": 10}
"""Total rank by network, as the paper has it."""


def models_of(network, changes):
    """X alone, and JULIA-X with every share; with the first one where R grows."""
    total = TOTALS[network]
    shares = SHARES[total][:1] if grows(changes) else SHARES[total]
    return Model(0, total, network), [Model(r, f, network) for r, f in shares]


def grows(changes):
    """Whether R is chosen."""
    return any(change.startswith("max_rank=") for change in changes)


def pairs_of(fits, tensor, network, changes):
    """Test RMSE of X and of JULIA-X, and the rank of that, on every split that has all four fits."""
    alone, joint = models_of(network, changes)
    found = []
    for (name, _), mine in fits.items():
        one = mine.get(alone.name(() if grows(changes) else changes))
        others = [mine.get(model.name(changes)) for model in joint]
        if name == tensor and one and all(others):
            best = min(others, key=lambda fit: fit["valid"])
            found.append((one["test"], best["test"], "/".join(map(str, best["rank"]))))
    return found


def table(folder):
    """A row per tensor, network and changes of the recipe; then in how many cells JULIA-X is below X."""
    fits, facts = fits_in(folder)
    rows = [
        "| tensor | X | recipe | splits | X | JULIA-X | R/F | difference | s.e. | below on |",
        "|---|---|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    cells = {}
    kinds = sorted({tuple(name.split()[2:]) for mine in fits.values() for name in mine})
    for changes in kinds:
        for tensor in dict.fromkeys(name for name, _ in fits):
            for network in TOTALS:
                pairs = pairs_of(fits, tensor, network, changes)
                if not pairs:
                    continue
                differences = [joint - alone for alone, joint, _ in pairs]
                error = f"{stdev(differences) / sqrt(len(pairs)):.2g}" if len(pairs) > 1 else "–"
                ranks = ", ".join(dict.fromkeys(rank for *_, rank in pairs))
                cells.setdefault(changes, []).append(mean(differences) < 0)
                rows.append(
                    f"| {tensor} | {network} | {' '.join(changes) or 'default'} | {len(pairs)} "
                    f"| {mean(one for one, _, _ in pairs):.4g} | {mean(one for _, one, _ in pairs):.4g} | {ranks} "
                    f"| {mean(differences):+.2g} | {error} | {sum(one < 0 for one in differences)} |"
                )
    lines = [f"{' '.join(changes) or 'default'}: JULIA-X below X in {sum(below)} of {len(below)} cells."
             for changes, below in cells.items()]  # fmt: skip
    return "\n".join([*rows, "", *lines, "", origin(facts)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=words, default=list(TOTALS), help="X, of costco, avocado and neurtn")
    add_options(parser, RESULTS / "claims_nested", splits=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    pairs = [models_of(network, options.changes) for network in options.networks]
    models = [model for alone, joint in pairs for model in (*([] if grows(options.changes) else [alone]), *joint)]
    fit_all(models, options)
    if options.table or options.sources:
        print(table(options.out))


if __name__ == "__main__":
    main()
