"""`--rank auto` at several budgets beside the default fit and the baselines: is more time ever worse?

    python benchmarks/anytime.py ../shared/data/walmart_sales.npz ../shared/data/ml_100k.npz
    python benchmarks/anytime.py ../shared/data/walmart_sales.npz ../shared/data/ml_100k.npz --beside 2
    python benchmarks/anytime.py --table
    python benchmarks/anytime.py --plot docs/images/anytime.svg

Every run is `jointensor fit` in a process of its own, one at a time; with `--beside N` while N processes spin. The
machine is to be used for nothing else (`taskset -c 0,1` for two cores). One JSON record per tensor, split, load and
budget, kept if it is there already. Figures are those of the test entries, which choose nothing.
"""

import argparse
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean

from fits import fitted

from jointensor.bench.records import kept, origin, records_in

RESULTS = Path(__file__).with_name("results")

BUDGETS = (None, 10, 30, 100, 300)
"""Seconds; ``None`` is the default fit, `fit` on the command line."""
MAX_RATIO = 1.005
"""Up to this ratio to a baseline a run counts as not behind it."""
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"
"""Keeps a core busy for as long as this process is there."""


@contextmanager
def spinning(count):
    """Processes that keep cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()


def measured(source, split, options, beside, budget):
    """The record of one run; without a budget, of the default fit."""
    words = options if budget is None else f"--rank auto --budget {budget:g} {options}".strip()
    with spinning(beside):
        return fitted(source, split, words) | {"beside": beside, "budget": budget}


def run(given):
    for source in given.sources:
        for split in map(int, given.splits.split(",")):
            for budget in given.budgets:
                name = "default" if budget is None else f"{budget:g}"
                path = given.out / f"{source.stem}.{split}.beside-{given.beside}.{name}.json"
                one = kept(path, partial(measured, source, split, given.options, given.beside, budget))
                figures = one.get("error") or f"RMSE {one['test']['rmse']:.4g}, {one['seconds']:.0f} s"
                print(f"{source.stem} split {split} {name}: {figures}", flush=True)


def grouped(folder):
    """Records by tensor, load and split; then by budget, that of the default fit by ``None``."""
    found = {}
    for one in records_in(folder):
        place = one["tensor"], one["beside"], one["split"]
        found.setdefault(place, {})[one["budget"]] = one
    return dict(sorted(found.items()))


def error(record):
    return record["test"]["rmse"]


def best_baseline(runs):
    """Lowest test RMSE of a baseline; all runs of a split have the same ones."""
    baselines = next(iter(runs.values()))["baselines"]
    return min(one["test"]["rmse"] for one in baselines.values() if one["test"])


def over_default(runs):
    """RMSE over that of the default fit, by the budgets within which that one ends."""
    default = runs.get(None)
    budgets = [budget for budget in runs if budget is not None]
    if default is None:
        return {}
    return {one: error(runs[one]) / error(default) for one in sorted(budgets) if default["seconds"] <= one}


def table(folder):
    """A row per tensor and load, means over splits; in the last two columns the worst of all splits and budgets."""
    runs = grouped(folder)
    budgets = sorted({budget for one in runs.values() for budget in one if budget is not None})
    rows = [
        "| tensor | beside | splits | best baseline | `fit` | " + " | ".join(f"{one:g} s" for one in budgets)
        + " | over `fit` | over the baseline |",
        "|---|---:|---:|---:|---:|" + "---:|" * (len(budgets) + 2),
    ]  # fmt: skip
    behind = []
    for tensor, beside in dict.fromkeys((tensor, beside) for tensor, beside, _ in runs):
        mine = {split: one for (t, b, split), one in runs.items() if (t, b) == (tensor, beside)}
        cells = [_mean(best_baseline(one) for one in mine.values())]
        cells += [_mean(error(one[at]) for one in mine.values() if at in one) for at in (None, *budgets)]
        defaults = {(split, at): ratio for split, one in mine.items() for at, ratio in over_default(one).items()}
        baselines = {(split, at): error(one[at]) / best_baseline(one) for split, one in mine.items() for at in one}
        cells += [_worst(defaults), _worst(baselines)]
        rows.append(f"| {tensor} | {beside} | {len(mine)} | {' | '.join(cells)} |")
        behind += [f"{tensor} beside {beside}, split {split}, {at:g} s: {ratio - 1:+.2%} on `fit`"
                   for (split, at), ratio in defaults.items() if ratio > 1]  # fmt: skip
        behind += [f"{tensor} beside {beside}, split {split}, {'`fit`' if at is None else f'{at:g} s'}: "
                   f"{ratio - 1:+.2%} on the best baseline"
                   for (split, at), ratio in baselines.items() if ratio > MAX_RATIO]  # fmt: skip
    lines = [f"- {one}" for one in behind] or ["Nowhere behind."]
    every = [record for one in runs.values() for record in one.values()]
    return "\n".join([*rows, "", *lines, "", origin(every)])


def _mean(errors):
    found = list(errors)
    return f"{mean(found):.4g}" if found else "–"


def _worst(ratios):
    return f"{max(ratios.values()):.3f}" if ratios else "–"


def draw(folder, path):
    """RMSE over seconds, a panel per tensor: `auto` by load, the default fit as a square, the best baseline dashed."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "jointensor"  # the same records give the same file
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    runs = grouped(folder)
    tensors = list(dict.fromkeys(tensor for tensor, _, _ in runs))
    columns = min(3, len(tensors))
    lines = -(-len(tensors) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 2.8 * lines), layout="constrained", squeeze=False
    )
    for panel, tensor in zip(panels.flat, tensors, strict=False):
        mine = {key[1:]: one for key, one in runs.items() if key[0] == tensor}
        split = min(split for _, split in mine)
        for number, beside in enumerate(sorted({beside for beside, one in mine if one == split})):
            one, color = mine[beside, split], f"C{number}"
            label = "alone" if not beside else f"beside {beside} busy processes"
            points = sorted((record["seconds"], error(record)) for at, record in one.items() if at is not None)
            panel.plot(*zip(*points, strict=True), "o-", color=color, label=f"auto, {label}") if points else None
            if None in one:
                panel.plot(one[None]["seconds"], error(one[None]), "s", color=color, label=f"fit, {label}")
        panel.axhline(best_baseline(one), color="0.5", linestyle="--", label="best baseline")
        panel.set(title=f"{tensor}, split {split}", xscale="log", xlabel="seconds", ylabel="test RMSE")
        panel.set_xticks([one for one in BUDGETS if one])
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.xaxis.set_minor_formatter(NullFormatter())
    for panel in panels.flat[len(tensors) :]:
        panel.set_visible(False)
    labelled = {
        name: line for panel in panels.flat for line, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled, loc="outside lower center", ncols=min(3, 2 * columns), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def read_budgets(text):
    return [None if one == "fit" else float(one) for one in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--budgets", type=read_budgets, default=BUDGETS, help="fit,10,30,100,300")
    parser.add_argument("--splits", default="0", help="seeds of the standard split: 0,1,2,3,4")
    parser.add_argument("--beside", type=int, default=0, help="processes that keep a core busy each")
    parser.add_argument("--options", default="", help="further options of fit")
    parser.add_argument("--table", action="store_true", help="print the table of all records, and fit nothing")
    parser.add_argument("--plot", type=Path, help="draw all records into this SVG or PNG file")
    parser.add_argument("--out", type=Path, default=RESULTS / "anytime")
    given = parser.parse_args()
    run(given)
    if given.table:
        print(table(given.out))
    if given.plot:
        draw(given.out, given.plot)


if __name__ == "__main__":
    main()
