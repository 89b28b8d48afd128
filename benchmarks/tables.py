"""Write the tables of README and docs/results.md again, from the records in benchmarks/results.

    python benchmarks/tables.py

A table stands between `<!-- records: NAME -->` and `<!-- end of records -->`; what is between them is replaced.
"""

import json
import re
from functools import partial
from pathlib import Path
from statistics import mean

import anytime
import boosted
import claims_nested
import fits
import forecasts
import nested

from jointensor.bench.records import records_in
from jointensor.bench.table import as_markdown

RESULTS = Path(__file__).with_name("results")
ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/results.md")

PLACE = re.compile(r"(<!-- records: (.+?) -->\n\n).*?(\n\n<!-- end of records -->)", re.DOTALL)
"""A table, its name, and the marks around it."""

NAMES = {
    "lightgbm": "LightGBM", "lightgbm-3": "LightGBM", "myfm": "myFM", "interp": "interpolation", "tables": "tables",
    "bias": "additive biases", "mean": "mean", "svd": "SVD", "svd++": "SVD++", "cp-20": "CP 20",
    "tucker-20": "Tucker 20", "costco-20": "COSTCO", "costco-20-by-paper": "COSTCO by `paper`", "avocado-20": "AVOCADO",
    "neurtn-10": "NeurTN", "neptune-20": "NePTuNe", "julia-0-20": "JULIA's network", "julia-4-16": "JULIA 4/16",
    "julia-10-10": "JULIA 10/10", "julia-16-4": "JULIA 16/4", "julia-costco-4-16": "JULIA-COSTCO",
    "julia-avocado-4-16": "JULIA-AVOCADO", "julia-neurtn-2-8": "JULIA-NeurTN", "julia-neptune-4-16": "JULIA-NePTuNe",
}  # fmt: skip
"""Single models by their names in the records."""

ENTRIES = {
    "uber_apr_jun": 1_378_268, "nyc_taxi": 1_317_600, "healthcare_hhs_county": 6_166_326, "ml_100k": 100_000,
    "ml_25m_first100k": 99_788, "facebook_wall_1yr": 109_546, "costco_demo": 105_764, "enron_sent": 769_424,
    "nips_0_12": 2_090_691,
}  # fmt: skip
"""Tensors of README's table, and their entries."""


def by_split(folder, tensor, name):
    """RMSE of a model or run by split."""
    found = {}
    for path in folder.glob(f"{tensor}.[0-9].{name}.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[int(path.name.split(".")[1])] = record["test"]["rmse"] if "test" in record else record["rmse"]
    return found


def single_models(tensor, splits):
    """Single models that were run on all of these splits: RMSE by split, by name."""
    names = {path.name.split(".", 2)[2].removesuffix(".json") for path in (RESULTS / "auto").glob(f"{tensor}.[0-9].*")}
    found = {name: by_split(RESULTS / "auto", tensor, name) for name in NAMES if name in names}
    return {name: {split: one[split] for split in splits} for name, one in found.items() if set(splits) <= set(one)}


def readme():
    """`fit` beside the single model with the lowest mean RMSE on the same test entries."""
    rows = [
        "| tensor | entries | splits | `fit` (ensemble) | best single model | `fit` lower on | JULIA 4/16 "
        "| additive biases | mean |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for tensor, entries in ENTRIES.items():
        ours = by_split(RESULTS / "fits", tensor, "default") or by_split(RESULTS / "fits", tensor, "default_h200")
        rivals = single_models(tensor, ours)
        means = {name: mean(one.values()) for name, one in rivals.items()}
        best = min(means, key=means.get)
        lower = sum(ours[split] < rivals[best][split] for split in ours)
        known = " | ".join(f"{means[name]:.4g}" for name in ("julia-4-16", "bias", "mean"))
        rows.append(
            f"| {tensor} | {entries / 1e6:.1f} M | {len(ours)} | **{mean(ours.values()):.4g}** "
            f"| {NAMES[best]} {means[best]:.4g} | {lower} of {len(ours)} | {known} |"
        )
    return "\n".join(rows)


TABLES = {
    "README": readme,
    **{name: partial(fits.table, RESULTS / "fits", name) for name in ("default", "default_h200", "auto_300",
                                                                     "auto_h200")},
    **{one.__name__: partial(one.table, RESULTS / one.__name__) for one in (anytime, boosted, nested, claims_nested)},
    "forecasts": forecasts.table,
    "gaps": lambda: as_markdown(records_in(RESULTS / "gaps", "*/*.json"), "fit").replace("### ", "#### "),
}  # fmt: skip
"""Tables by name."""


def filled(text):
    """A page with all its tables made from records."""
    return PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main():
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
