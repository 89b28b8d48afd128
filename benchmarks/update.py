"""`partial_fit` against a new fit: 1 % of the labels are new, with 5 % of the entries.

    python benchmarks/update.py ../shared/data/ml_100k.npz --out benchmarks/results/update.json

A model is fitted to entries without the new labels. Then it is given new entries: all that have a new label, and others
until they are 5 % of all. Test entries with a new label are predicted by the stale model (which answers for a label it
does not know), by the updated one and by one fitted to everything.

    closed      share of the gap between stale and refitted that the update closes, in mean RMSE over seeds (with a few
                hundred test entries that have a new label, the gap of one seed may be next to nothing)
    time        of the update, as a share of the new fit's
    others      RMSE on test entries without a new label, stale and updated: what was known must stay known
"""

import argparse
import time
from pathlib import Path

import numpy as np

from jointensor.atomic import write_json
from jointensor.bench.records import provenance
from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.models.joint import JointModel
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

MODELS = {
    "julia:4/8": ((4, 8), None, {}),
    "mean+bias+fm:8+tables, drawn": ((0, 0), "mean+bias+fm:8+tables", {"linear_solver": "gibbs"}),
}
NEW_LABELS, NEW_ENTRIES, LEAST_LABELS = 0.01, 0.05, 100


def with_new_labels_last(tensor, generator):
    """The same entries, labels renumbered so that the new ones come last; and how many labels are known."""
    columns, known = [], []
    for n, size in enumerate(tensor.shape):
        new = max(1, round(size * NEW_LABELS)) if size >= LEAST_LABELS else 0
        place = np.argsort(generator.permutation(size))
        columns.append(place[tensor.indices[:, n]])
        known.append(size - new)
    return SparseTensor(np.stack(columns, axis=1), tensor.values, tensor.shape), np.array(known)


def rmse(predicted, truth):
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


def measured(tensor, name, seed):
    rank, linear, changes = MODELS[name]
    recipe = make_recipe("default", fall_back=False, **changes)
    generator = np.random.default_rng(seed)
    whole, known = with_new_labels_last(tensor, generator)
    new = (whole.indices >= known).any(axis=1)
    order = generator.permutation(len(whole))
    test, rest = order[: len(order) // 5], order[len(order) // 5 :]
    old, fresh = rest[~new[rest]], rest[new[rest]]
    more = max(0, round(NEW_ENTRIES * len(rest)) - len(fresh))
    fresh, old = np.concatenate([fresh, old[:more]]), old[more:]

    def fitted(entries):
        linear_part = linear or recipe.linear(rank[0])
        begin = time.perf_counter()
        found = fit(JointModel(entries.shape, rank, linear=linear_part), split(entries, test=0.0), recipe, seed=seed)
        return found.predictor, time.perf_counter() - begin

    stale, _ = fitted(SparseTensor(whole.indices[old], whole.values[old], known))
    begin = time.perf_counter()
    updated = stale.with_entries(whole.take(fresh))
    update = time.perf_counter() - begin
    again, refit = fitted(whole.take(rest))

    asked, others = whole.take(test[new[test]]), whole.take(test[~new[test]])
    unknown = np.where(asked.indices >= known, -1, asked.indices)
    errors = {
        "stale": rmse(stale.predict(unknown), asked.values),
        "updated": rmse(updated.predict(asked.indices), asked.values),
        "refitted": rmse(again.predict(asked.indices), asked.values),
    }
    return errors | {
        "update_seconds": update,
        "refit_seconds": refit,
        "others_stale": rmse(stale.predict(others.indices), others.values),
        "others_updated": rmse(updated.predict(others.indices), others.values),
        "asked": len(asked),
        "fresh": len(fresh),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for source in options.sources:
        tensor = read_tensor(str(source)).tensor
        for name in options.models:
            rows = [measured(tensor, name, seed) for seed in range(options.seeds)]
            row = {"tensor": source.stem, "model": name, "seeds": options.seeds} | {
                key: float(np.mean([one[key] for one in rows])) for key in rows[0]
            }
            row["closed"] = (row["stale"] - row["updated"]) / (row["stale"] - row["refitted"])
            row["time"] = row["update_seconds"] / row["refit_seconds"]
            found.append(row)
            print(
                f"{row['tensor']:18} {name:30} stale {row['stale']:.4f} updated {row['updated']:.4f} refitted "
                f"{row['refitted']:.4f}  closed {row['closed']:.0%}  {row['update_seconds']:.2f} of "
                f"{row['refit_seconds']:.2f} s ({row['time']:.1%})  others {row['others_stale']:.4f} -> "
                f"{row['others_updated']:.4f}",
                flush=True,
            )
    if options.out:
        write_json(options.out, {**provenance(), "rows": found})


if __name__ == "__main__":
    main()
