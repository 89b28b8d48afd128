"""What every candidate of the search adds: the RMSE of the best ensemble with it and without it, all tensors, paired.

    python benchmarks/leave_one_out.py ../shared/data/*.npz --splits 0,1,2 --budget 600
    python benchmarks/leave_one_out.py --table

A search of the training and validation entries leaves its fits in a folder. Their out-of-fold predictions make the best
ensemble of all candidates, of all but one, and of all but a family. Weights are chosen on all folds but one and judged
on that one, each in turn, so that a candidate that only fits noise loses; of a candidate that was fitted to the first
fold only, on fifths of that fold. The default fit is judged on fifths of its validation entries, beside the ensemble of
all others. A candidate has gains on its own: two that are alike add little each, whatever both add together, and after
one has gone the others are to be measured again. Residual models are no part of this. Test entries are not used.
"""

import argparse
import shutil
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from jointensor._version import __version__
from jointensor.bench.records import kept, origin, records_in
from jointensor.data.formats import read_tensor
from jointensor.data.split import FOLDS, split
from jointensor.data.tensor import join
from jointensor.search.budget import make_budget
from jointensor.search.default_member import NAME, DefaultFitter
from jointensor.search.ensemble_selection import ErrorProducts
from jointensor.search.families import FitOptions
from jointensor.search.fit_store import FitStore, fingerprint_of
from jointensor.search.folds import fold_entries
from jointensor.search.portfolio import candidates_for
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS

RESULTS = Path(__file__).with_name("results")

MIN_GAIN = 0.001
"""A candidate that raises the RMSE by less than this share where it is left out adds nothing there."""


def out_of_fold(data, candidates, store):
    """Predictions of stored fits for the entries of their folds, by candidate and fold."""
    found = {}
    for one in candidates:
        for fold in range(FOLDS):
            stored = store.load(f"{one.slug}.{fold}")
            if stored is not None:
                cells = data.left_out(fold).indices
                found.setdefault(one.name, {})[fold] = data.clip(stored[0].predict(cells))
    return found


def fifths(count):
    return np.random.default_rng(0).permutation(count) % FOLDS


def judged(predictions, truths):
    """RMSE of the best ensemble of some members; of every piece with weights of the others.

    ``predictions``: by name, an array per piece; ``truths``: an array per piece.
    """
    pieces = range(len(truths))
    errors = 0.0
    for k in pieces:
        others = [n for n in pieces if n != k]
        known = {name: np.concatenate([one[n] for n in others]) for name, one in predictions.items()}
        weights = ErrorProducts.of(known, np.concatenate([truths[n] for n in others])).best_weights()
        here = ErrorProducts.of({name: one[k] for name, one in predictions.items()}, truths[k])
        errors += len(truths[k]) * here.of_mean(weights)
    return sqrt(errors / sum(map(len, truths)))


def pieces_of(data, found, folds):
    """Predictions of all candidates that were fitted to some folds, in pieces, and the values."""
    members = {name: one for name, one in found.items() if all(fold in one for fold in folds)}
    if len(folds) > 1:
        return {name: [one[f] for f in folds] for name, one in members.items()}, [data.truth([f]) for f in folds]
    part = fifths(len(data.truth(folds)))
    cut = {name: [one[folds[0]][part == k] for k in range(FOLDS)] for name, one in members.items()}
    return cut, [data.truth(folds)[part == k] for k in range(FOLDS)]


def compared(data, found, names):
    """RMSE with and without some candidates, on the folds that one of them was fitted to."""
    folds = max((sorted(found[name]) for name in names), key=len)
    predictions, truths = pieces_of(data, found, folds)
    rest = {name: one for name, one in predictions.items() if name not in names}
    if not rest:
        return {"folds": len(folds), "with": judged(predictions, truths), "without": None}
    return {"folds": len(folds), "with": judged(predictions, truths), "without": judged(rest, truths)}


def of_default(data, found, member):
    """The same for the default fit, on its validation entries; the ensemble of all others is one member."""
    folds = max((sorted(one) for one in found.values()), key=len)
    predictions, _ = pieces_of(data, found, folds)
    together = {name: np.concatenate(one) for name, one in predictions.items()}
    weights = ErrorProducts.of(together, data.truth(folds)).best_weights()
    place = {int(at): k for k, at in enumerate(data.positions_of([0]))}
    rows = [place[int(at)] for at in member.positions]
    rest = sum(weight * found[name][0][rows].astype(np.float64) for name, weight in weights.items())
    truth, part = data.tensor.values[member.positions], fifths(len(rows))
    both = {NAME: member.predictions, "rest": rest.astype(np.float32)}
    cut = {name: [one[part == k] for k in range(FOLDS)] for name, one in both.items()}
    truths = [truth[part == k] for k in range(FOLDS)]
    return {"folds": 1, "with": judged(cut, truths), "without": judged({"rest": cut["rest"]}, truths)}


def searched(source, number, given):
    """The record of one tensor and split."""
    parts = split(read_tensor(source).tensor, seed=number)
    tensor = join(parts.train, parts.valid)
    folder = given.out / "fits" / f"{source.stem}.{number}"
    how = {"budget": given.budget, "budget_fits": given.budget_fits, "seed": number, "device": given.device}
    result = search(tensor, store=folder, on_note=partial(print, flush=True), **how)
    data, store = fold_entries(tensor, (), number), FitStore(folder, _fingerprint(tensor, number))
    candidates = candidates_for(data.tensor)
    found = out_of_fold(data, candidates, store)
    rows = [{"name": one.name, "family": one.family} | compared(data, found, [one.name])
            for one in candidates if one.name in found]  # fmt: skip
    families = {one.family: [c.name for c in candidates if c.family == one.family and c.name in found]
                for one in candidates if one.name in found}  # fmt: skip
    rows += [{"name": f"all of {family}", "family": family} | compared(data, found, names)
             for family, names in families.items() if len(names) > 1]  # fmt: skip
    limit = make_budget(given.budget, given.budget_fits)
    member = DefaultFitter(data, limit, FitOptions(number, given.device), store).first()
    if member is not None:
        rows.append({"name": NAME, "family": "default"} | of_default(data, found, member))
    weights = {row["name"]: row["weight"] for row in result.trials}
    shutil.rmtree(folder)
    return {"tensor": source.stem, "split": number, "budget": given.budget, "budget_fits": given.budget_fits,
            "rows": [row | {"weight": weights.get(row["name"])} for row in rows],
            "trials": result.trials, "reason": result.reason}  # fmt: skip


def _fingerprint(tensor, seed):
    """As the search has it."""
    return fingerprint_of(tensor, __version__, seed, (), SETTINGS)


def gain(row):
    """Share by which the RMSE rises without it; ``None`` where nothing else is left."""
    return None if row["without"] is None else row["without"] / row["with"] - 1


def table(folder):
    """A row per candidate; and who adds less than the least gain on every tensor, by its mean over splits."""
    records = records_in(folder)
    rows = [
        "| candidate | tensors | searches | with a weight | RMSE without it, mean | s.e. | most | on |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    nothing = []
    for name in dict.fromkeys(row["name"] for record in records for row in record["rows"]):
        found = {}
        for record in records:
            mine = [row for row in record["rows"] if row["name"] == name and gain(row) is not None]
            found.setdefault(record["tensor"], []).extend(mine)
        gains = [gain(row) for many in found.values() for row in many]
        if not gains:
            continue
        means = {tensor: mean(map(gain, many)) for tensor, many in found.items() if many}
        most = max(means, key=means.get)
        chosen = sum(bool(row["weight"]) for many in found.values() for row in many)
        error = f"{stdev(gains) / sqrt(len(gains)):.2%}" if len(gains) > 1 else "–"
        chosen = "" if name.startswith("all of ") else f"{chosen}"
        rows.append(f"| {name} | {len(means)} | {len(gains)} | {chosen} | {mean(gains):+.2%} | {error} "
                    f"| {means[most]:+.2%} | {most} |")  # fmt: skip
        nothing += [name] if means[most] < MIN_GAIN else []
    line = f"Less than {MIN_GAIN:.1%} on every tensor: {', '.join(nothing) or 'none'}."
    return "\n".join([*rows, "", line, "", origin(records)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--splits", default="0", help="seeds of the standard split: 0,1,2,3,4")
    parser.add_argument("--budget", type=float, help="seconds of a search")
    parser.add_argument("--budget-fits", type=int, help="fits instead of seconds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="print the table of all records, and search nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "leave_one_out")
    given = parser.parse_args()
    for source in given.sources:
        for number in map(int, given.splits.split(",")):
            one = kept(given.out / f"{source.stem}.{number}.json", partial(searched, source, number, given))
            gains = {row["name"]: f"{gain(row):+.2%}" for row in one["rows"] if gain(row) is not None}
            print(source.stem, number, gains, flush=True)
    if given.table:
        print(table(given.out))


if __name__ == "__main__":
    main()
