"""LightGBM as a person would use it on the same table, beside `fit` or `auto`: the same entries, cores and seconds.

    python benchmarks/boosted.py ../shared/data/walmart_sales.npz --splits 0,1,2,3,4
    python benchmarks/boosted.py ../shared/data/walmart_sales.npz --beside auto_300
    python benchmarks/boosted.py --table

Two kinds of columns: labels as native categories (ordered modes also as numbers), and labels and pairs of labels by
out-of-fold target encoding. Either with two sizes of trees; all stop early on the validation entries, and the one that
validates best is fitted once more, to training and validation entries with as many trees: jointensor learns from both,
too. Each setting has a quarter of the seconds of the run it is compared with, which must be recorded first
(`benchmarks/fits.py`); columns, and the last fit, are made outside that time.
"""

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from statistics import mean

import lightgbm
import numpy as np
from auto_rivals import THREADS, encoded, rmse

from jointensor.bench.records import kept, origin, records_in
from jointensor.data.formats import read_tensor
from jointensor.data.split import split
from jointensor.data.tensor import join

RESULTS = Path(__file__).with_name("results")

LEAVES, ROUNDS, PATIENCE = (31, 255), 5000, 50


def categories(train, asked):
    """Labels as categories, then positions of ordered modes; and which columns are categories."""
    ordered = [n for n, mode in enumerate(train.modes) if mode.order != "none"]
    return np.column_stack([asked.indices, asked.indices[:, ordered]]).astype(np.float64)


def targets(train, asked):
    """Means and counts of labels and of pairs of labels; of the training entries themselves, out of fold."""
    return encoded(train, asked, own=asked is train, together=(1, 2))


KINDS = {"categories": categories, "encoded": targets}
"""Columns by name."""


def data_of(kind, train):
    """Training data with columns of a kind."""
    names = list(range(train.n_modes)) if kind == "categories" else []
    return lightgbm.Dataset(KINDS[kind](train, train), train.values, categorical_feature=names, free_raw_data=False)


def settings_of(leaves):
    return {"objective": "regression", "learning_rate": 0.05, "num_leaves": leaves, "num_threads": THREADS,
            "verbose": -1, "max_bin": 255, "cat_smooth": 10.0, "seed": 0}  # fmt: skip


def chosen_rounds(parts, kind, leaves, seconds):
    """Trees that validate best, of those grown within the seconds: their number, and their error."""
    data = data_of(kind, parts.train)
    columns = KINDS[kind](parts.train, parts.valid)
    check = lightgbm.Dataset(columns, parts.valid.values, reference=data, free_raw_data=False)
    data.construct(), check.construct()
    begin = time.perf_counter()

    def in_time(env):
        if time.perf_counter() - begin > seconds:
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    errors = {}
    stop = [lightgbm.record_evaluation(errors), in_time, lightgbm.early_stopping(PATIENCE, verbose=False)]
    lightgbm.train(settings_of(leaves), data, ROUNDS, [check], callbacks=stop)
    squares = errors["valid_0"]["l2"]
    return int(np.argmin(squares)) + 1, math.sqrt(min(squares))


def compared(source, number, fits, beside):
    """Validation errors of all settings on one split, and the test error of the best."""
    record = json.loads((fits / f"{source.stem}.{number}.{beside}.json").read_text(encoding="utf-8"))
    parts = split(read_tensor(source).tensor, seed=number)
    share = record["seconds"] / (len(KINDS) * len(LEAVES))
    rows = []
    for kind in KINDS:
        for leaves in LEAVES:
            rounds, valid = chosen_rounds(parts, kind, leaves, share)
            rows.append({"columns": kind, "leaves": leaves, "rounds": rounds, "valid": valid})
    best = min(rows, key=lambda row: row["valid"])
    everything = join(parts.train, parts.valid)
    model = lightgbm.train(settings_of(best["leaves"]), data_of(best["columns"], everything), best["rounds"])
    test = rmse(model.predict(KINDS[best["columns"]](everything, parts.test)), parts.test.values)
    return {"tensor": source.stem, "split": number, "beside": beside, "settings": rows, "chosen": best, "test": test,
            "ours": record["test"]["rmse"], "seconds": record["seconds"]}  # fmt: skip


def table(folder):
    """A row per tensor and run: mean RMSE over the splits of both, and on how many ours is lower."""
    found = {}
    for one in records_in(folder):
        found.setdefault((one["tensor"], one["beside"]), []).append(one)
    rows = [
        "| tensor | beside | splits | LightGBM | jointensor (ensemble) | jointensor lower on | seconds |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (tensor, beside), records in found.items():
        lower = sum(one["ours"] < one["test"] for one in records)
        figures = [mean(one[name] for one in records) for name in ("test", "ours", "seconds")]
        run = {"default": "`fit`", "auto_300": "`auto`"}.get(beside, beside)
        rows.append(
            f"| {tensor} | {run} | {len(records)} | {figures[0]:.4g} | {figures[1]:.4g} | {lower} | {figures[2]:.0f} |"
        )
    return "\n".join([*rows, "", origin([one for records in found.values() for one in records])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--splits", default="0", help="seeds of the standard split: 0,1,2,3,4")
    parser.add_argument("--table", action="store_true", help="print the table of all records, and fit nothing")
    parser.add_argument("--fits", type=Path, default=RESULTS / "fits", help="records of our runs")
    parser.add_argument("--beside", default="default", help="name of the records: default, auto_300")
    parser.add_argument("--out", type=Path, default=RESULTS / "boosted")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return
    for source in given.sources:
        for number in map(int, given.splits.split(",")):
            path = given.out / f"{source.stem}.{number}.{given.beside}.json"
            one = kept(path, partial(compared, source, number, given.fits, given.beside))
            print(source.stem, number, one["chosen"], one["test"], "ours", one["ours"], flush=True)


if __name__ == "__main__":
    main()
