"""`--rank auto` against everything else, on the same splits: mean test RMSE over split seeds, paired.

    python benchmarks/auto.py ../shared/data/ml_100k.npz --split-seeds 5 --budget 600 --out benchmarks/results/auto
    python benchmarks/auto.py --table --out benchmarks/results/auto

Every model learns from the same entries and is scored on the same test entries. Rivals with settings choose them on the
validation entries of the first split and are fitted to training and validation entries together, as `auto` is. One
JSON file per tensor, split seed and model: a run that was stopped continues where it stopped.

    mean bias tables interp     jointensor's baselines (fitted to the training entries, shrunk by validation)
    cp:20 … julia:4/16          models of the paper by the recipe `default` (--specs takes others, --recipe another)
    myfm                        Bayesian factorisation machine, with the labels seen together as features
    svd, svd++                  Surprise, the two modes with most labels
    lightgbm                    boosted trees on labels and pairs of labels encoded by their mean value; :3 with triples
"""

import argparse
import json
import re
import time
from pathlib import Path

import numpy as np
from auto_rivals import OF_FOUR_MODES, RIVALS

from jointensor.atomic import write_json
from jointensor.bench.records import provenance
from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.metrics import measure
from jointensor.predictors import fit_baselines
from jointensor.runs.model_specs import parse_model
from jointensor.search.search import search
from jointensor.training.fit import fit

SPECS = (
    *("cp:20", "tucker:20", "costco:20", "avocado:20", "neurtn:10", "neptune:20"),
    *("julia:4/16", "julia:10/10", "julia:16/4", "julia:0/20"),
    *("julia-costco:4/16", "julia-avocado:4/16", "julia-neurtn:2/8", "julia-neptune:4/16"),
)


def judged(predicted, test):
    return measure(np.asarray(predicted, dtype=np.float64), test.values).to_dict()


def by_auto(parts, options):
    groups = ()
    if parts.rule.startswith("group:"):
        groups = tuple(parts.train.mode(name) for name in parts.rule.removeprefix("group:").split(","))
    begin = time.perf_counter()
    found = search(join(parts.train, parts.valid), budget=options.budget, device=options.device, groups=groups)
    searched = time.perf_counter() - begin  # the rest of its seconds are predictions for the test entries
    predicted, ends = found.predictor.predict(parts.test.indices), found.predictor.interval(parts.test.indices, 0.9)
    return judged(predicted, parts.test) | {
        "interval": cover(predicted, ends, parts.test.values),
        "trials": found.trials,
        "reason": found.reason,
        "figures": found.figures,
        "searched": searched,
    }


def cover(predicted, ends, values):
    """Share of the values inside, by decile of the prediction too, and the mean width beside a constant one."""
    inside = (values >= ends[:, 0]) & (values <= ends[:, 1])
    decile = np.searchsorted(np.quantile(predicted, np.linspace(0, 1, 11)[1:-1]), predicted)
    constant = 2 * np.quantile(np.abs(values - predicted), inside.mean())
    return {
        "coverage": float(inside.mean()),
        "deciles": [float(inside[decile == k].mean()) for k in np.unique(decile)],
        "width": float(np.mean(ends[:, 1] - ends[:, 0])),
        "constant_width": float(constant),
    }


def by_spec(text, parts, options):
    spec = parse_model(text)
    recipe = spec.recipe(options.recipe)
    found = fit(spec.make(parts.train.shape, recipe), parts, recipe, device=options.device)
    return judged(found.predict(parts.test.indices), parts.test)


def by_rival(rival, parts, known):
    predicted, choice = rival(parts, known)
    return judged(predicted, parts.test) | {"choice": choice}


def models(parts, options, earlier):
    """Names, and functions that compute figures; ``earlier``: the settings that a rival chose on an earlier split."""
    yield "auto", lambda: by_auto(parts, options)
    baselines = {}

    def baseline(name):
        if not baselines:
            baselines.update(fit_baselines(parts))
        return judged(baselines[name].predict(parts.test.indices), parts.test)

    ordered = any(mode.order != "none" for mode in parts.train.modes)
    for name in ("mean", "bias", "tables", *(["interp"] if ordered else [])):
        yield name, lambda name=name: baseline(name)
    for text in options.specs:
        name = text if options.recipe == "default" else f"{text} by {options.recipe}"
        yield name, lambda text=text: by_spec(text, parts, options)
    for name, rival in (RIVALS | (OF_FOUR_MODES if parts.train.n_modes == 4 else {})).items():
        yield name, lambda name=name, rival=rival: by_rival(rival, parts, earlier(name))


def run(options):
    tensor = read_tensor(str(options.source)).tensor
    rule = "" if options.split == "standard" else "." + options.split.replace(":", "-").replace(",", "-")

    def place(seed, name):
        return options.out / f"{options.source.stem}{rule}.{seed}.{re.sub('[/: ]', '-', name)}.json"

    def earlier(name):
        first = place(0, name)
        return json.loads(first.read_text(encoding="utf-8")).get("choice") if first.exists() else None

    for seed in range(options.first_split, options.first_split + options.split_seeds):
        parts = split(tensor, rule=options.split, seed=seed)
        for name, compute in models(parts, options, earlier):
            path = place(seed, name)
            if path.exists() or (options.only and name not in options.only):
                continue
            begin = time.perf_counter()
            try:
                figures = compute()
            except Exception as error:  # noqa: BLE001 - a rival that fails keeps its row
                figures = {"rmse": None, "mae": None, "error": f"{type(error).__name__}: {error}"[:300]}
            figures |= {"seconds": time.perf_counter() - begin, "model": name, "tensor": options.source.stem + rule}
            figures |= provenance()
            options.out.mkdir(parents=True, exist_ok=True)
            write_json(path, figures | {"split_seed": seed, "budget": options.budget, "device": options.device})
            print(f"{options.source.stem}{rule} split {seed} {name}: {figures['rmse']}", flush=True)


def table(out):
    """Mean RMSE per tensor and model, how often `auto` is lower, and its intervals."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    for tensor in dict.fromkeys(row["tensor"] for row in rows):
        mine = [row for row in rows if row["tensor"] == tensor]
        auto = {row["split_seed"]: row for row in mine if row["model"] == "auto" and row["rmse"] is not None}
        print(f"\n{tensor}")
        for name in dict.fromkeys(row["model"] for row in mine):
            found = {row["split_seed"]: row for row in mine if row["model"] == name and row["rmse"] is not None}
            both = sorted(set(found) & set(auto))
            if not both:
                continue
            rmse, mae = ([found[seed][key] for seed in both] for key in ("rmse", "mae"))
            lower = sum(auto[seed]["rmse"] < found[seed]["rmse"] for seed in both)
            ours = np.mean([auto[seed]["rmse"] for seed in both])
            text = "" if name == "auto" else f"auto {ours:.4f} lower on {lower} of {len(both)}"
            taken = np.mean([found[seed]["seconds"] for seed in both])
            figures = f"RMSE {np.mean(rmse):.4f} ± {np.std(rmse):.4f}  MAE {np.mean(mae):.4f}"
            print(f"  {name:14} {figures}  {taken:5.0f} s  {text}")
        for seed, row in sorted(auto.items()):
            one = row["interval"]
            print(
                f"  interval, split {seed}: {one['coverage']:.3f} inside, least decile {min(one['deciles']):.3f}, "
                f"width {one['width']:.4g}, constant {one['constant_width']:.4g}"
            )


NAMES = {
    "auto": "`auto`",
    "lightgbm": "LightGBM on encoded labels, pairs and counts",
    "lightgbm:3": "– and triples, where there are four modes",
    "myfm": "myFM, with implicit labels up to 400,000 entries",
    "svd++": "Surprise SVD++",
    "svd": "Surprise SVD",
    "julia:4/16": "JULIA 4/16",
    "julia:10/10": "JULIA 10/10",
    "julia:16/4": "JULIA 16/4",
    "julia:0/20": "JULIA's network alone, 0/20",
    "julia-costco:4/16": "JULIA-COSTCO 4/16",
    "julia-avocado:4/16": "JULIA-AVOCADO 4/16",
    "julia-neurtn:2/8": "JULIA-NeurTN 2/8",
    "julia-neptune:4/16": "JULIA-NePTuNe 4/16",
    "avocado:20": "AVOCADO 20",
    "costco:20": "COSTCO 20",
    "neurtn:10": "NeurTN 10",
    "neptune:20": "NePTuNe 20",
    "tucker:20": "Tucker 20",
    "cp:20": "CP 20",
    "tables": "shrunk tables",
    "interp": "interpolation along time",
    "bias": "additive biases",
    "mean": "mean",
}


def markdown(out):
    """One row per model, one column per tensor: mean RMSE over splits, and on how many of them `auto` is lower."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    found = {(row["tensor"], row["model"], row["split_seed"]): row["rmse"] for row in rows if row["rmse"] is not None}
    tensors = sorted({tensor for tensor, _, _ in found})
    print("| | " + " | ".join(tensors) + " |\n|---" + "|---:" * len(tensors) + "|")
    means = {}
    for tensor, name in {(tensor, name) for tensor, name, _ in found}:
        seeds = [
            seed for one, model, seed in found if (one, model) == (tensor, name) and (tensor, "auto", seed) in found
        ]
        lower = sum(found[tensor, "auto", seed] < found[tensor, name, seed] for seed in seeds)
        if seeds:
            means[tensor, name] = np.mean([found[tensor, name, seed] for seed in seeds]), f"{lower}/{len(seeds)}"
    for name, shown in NAMES.items():
        cells = [_cell(means, tensor, name) for tensor in tensors]
        print(f"| {shown} | " + " | ".join(cells) + " |")


def _cell(means, tensor, name):
    """A mean, bold where it is the least of those over all splits of the tensor."""
    if (tensor, name) not in means:
        return "–"
    mean, lower = means[tensor, name]
    all_of_them = means[tensor, "auto"][1].split("/")[1]
    whole = [one for (t, _), (one, count) in means.items() if t == tensor and count.endswith("/" + all_of_them)]
    text = f"**{mean:.4g}**" if mean == min(whole) else f"{mean:.4g}"
    return text if name == "auto" else f"{text} ({lower})"


def summary(out):
    """One row per tensor: `auto`, the best of all others, and three reference models."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    rows = [row for row in rows if row["rmse"] is not None]
    print("| tensor | `auto` | best of the others | lower on | JULIA 4/16 | biases | mean |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for tensor in sorted({row["tensor"] for row in rows}):
        found = {}
        for row in rows:
            if row["tensor"] == tensor:
                found.setdefault(row["model"], {})[row["split_seed"]] = row["rmse"]
        ours = found.pop("auto")
        complete = {name: mine for name, mine in found.items() if set(mine) == set(ours)}
        best = min(complete, key=lambda name: np.mean(list(complete[name].values())))
        lower = sum(ours[seed] < complete[best][seed] for seed in ours)
        means = {name: f"{np.mean(list(mine.values())):.4g}" for name, mine in complete.items()}
        rest = " | ".join(means.get(name, "–") for name in ("julia:4/16", "bias", "mean"))
        mean = f"{np.mean(list(ours.values())):.4g}"
        print(f"| {tensor} | {mean} | {best} {means[best]} | {lower} of {len(ours)} | {rest} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--split-seeds", type=int, default=5)
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--split", default="standard")
    parser.add_argument("--budget", type=float, default=600)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--specs", nargs="*", default=SPECS)
    parser.add_argument("--recipe", default="default", help="of the models of the paper")
    parser.add_argument("--only", nargs="*", help="models to run, by name")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "auto")
    parser.add_argument("--table", action="store_true", help="print all results")
    parser.add_argument("--markdown", action="store_true", help="print it as one table")
    parser.add_argument("--summary", action="store_true", help="print a row per tensor")
    options = parser.parse_args()
    if options.source is not None:
        run(options)
    if options.summary:
        summary(options.out)
    elif options.markdown:
        markdown(options.out)
    elif options.table or options.source is None:
        table(options.out)


if __name__ == "__main__":
    main()
