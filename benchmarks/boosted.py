"""LightGBM as a person would use it on the same table, beside the default fit: the same entries, cores and seconds.

    python benchmarks/boosted.py ../shared/data/walmart_sales.npz --splits 0,1,2,3,4
    python benchmarks/boosted.py --table

Two kinds of columns: labels as native categories (ordered modes also as numbers), and labels and pairs of labels by
out-of-fold target encoding. Either with two sizes of trees; all stop early on the validation entries, and the one that
validates best predicts. Each setting has a quarter of the seconds of the default fit, which must be recorded first
(`benchmarks/fits.py`); columns are made outside that time. Fitted to training entries only, as the default fit is.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import mean

import lightgbm
import numpy as np
from auto_rivals import THREADS, encoded, rmse
from provenance import RESULTS, kept, origin, records_in

from jointensor.data.formats import read_tensor
from jointensor.data.split import split

LEAVES, ROUNDS, PATIENCE = (31, 255), 5000, 50


def categories(train, asked):
    """Labels as categories, then positions of ordered modes; and which columns are categories."""
    ordered = [n for n, mode in enumerate(train.modes) if mode.order != "none"]
    return np.column_stack([asked.indices, asked.indices[:, ordered]]).astype(np.float64)


def trained(columns, parts, leaves, seconds, categorical):
    """Trees within the seconds, as many as validate best; predictions of validation and test entries."""
    settings = {"objective": "regression", "learning_rate": 0.05, "num_leaves": leaves, "num_threads": THREADS,
                "verbose": -1, "max_bin": 255, "cat_smooth": 10.0, "seed": 0}  # fmt: skip
    names = list(range(parts.train.n_modes)) if categorical else []
    data = lightgbm.Dataset(columns["train"], parts.train.values, categorical_feature=names, free_raw_data=False)
    check = lightgbm.Dataset(columns["valid"], parts.valid.values, reference=data)
    begin = time.perf_counter()

    def in_time(env):
        if time.perf_counter() - begin > seconds:
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    errors = {}
    stop = [lightgbm.record_evaluation(errors), in_time, lightgbm.early_stopping(PATIENCE, verbose=False)]
    model = lightgbm.train(settings, data, ROUNDS, [check], callbacks=stop)
    best = int(np.argmin(errors["valid_0"]["l2"])) + 1  # also where time was up
    return [model.predict(columns[name], num_iteration=best) for name in ("valid", "test")], best


def compared(source, number, fits):
    """Figures of all settings on one split, and the seconds they had."""
    record = json.loads((fits / f"{source.stem}.{number}.default.json").read_text(encoding="utf-8"))
    parts = split(read_tensor(source).tensor, seed=number)
    kinds = {
        "categories": {name: categories(parts.train, getattr(parts, name)) for name in ("train", "valid", "test")},
        "encoded": {name: encoded(parts.train, getattr(parts, name), own=name == "train", together=(1, 2))
                    for name in ("train", "valid", "test")},
    }  # fmt: skip
    share = record["seconds"] / (len(kinds) * len(LEAVES))
    rows = []
    for kind, columns in kinds.items():
        for leaves in LEAVES:
            (valid, test), rounds = trained(columns, parts, leaves, share, kind == "categories")
            rows.append({"columns": kind, "leaves": leaves, "rounds": rounds, "valid": rmse(valid, parts.valid.values),
                         "test": rmse(test, parts.test.values)})  # fmt: skip
    best = min(rows, key=lambda row: row["valid"])
    return {"tensor": source.stem, "split": number, "settings": rows, "chosen": best, "test": best["test"],
            "default_fit": record["test"]["rmse"], "seconds": record["seconds"]}  # fmt: skip


def table(folder):
    """A row per tensor: mean RMSE over the splits of both, and on how many the default fit is lower."""
    found = {}
    for one in records_in(folder):
        found.setdefault(one["tensor"], []).append(one)
    rows = [
        "| tensor | splits | LightGBM | `fit` (ensemble) | `fit` lower on | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for tensor, records in found.items():
        lower = sum(one["default_fit"] < one["test"] for one in records)
        figures = [mean(one[name] for one in records) for name in ("test", "default_fit", "seconds")]
        rows.append(f"| {tensor} | {len(records)} | {figures[0]:.4g} | {figures[1]:.4g} | {lower} | {figures[2]:.0f} |")
    return "\n".join([*rows, "", origin([one for records in found.values() for one in records])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--splits", default="0", help="seeds of the standard split: 0,1,2,3,4")
    parser.add_argument("--table", action="store_true", help="print the table of all records, and fit nothing")
    parser.add_argument("--fits", type=Path, default=RESULTS / "fits", help="records of the default fit")
    parser.add_argument("--out", type=Path, default=RESULTS / "boosted")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return
    for source in given.sources:
        for number in map(int, given.splits.split(",")):
            one = kept(given.out / f"{source.stem}.{number}.json", partial(compared, source, number, given.fits))
            print(source.stem, number, one["chosen"], "default fit", one["default_fit"], flush=True)


if __name__ == "__main__":
    main()
