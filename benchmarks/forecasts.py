"""Forecasts of the last labels from rolling origins, beside simple forecasts and LightGBM on lags.

    python benchmarks/forecasts.py hangzhou_metro-2 nyc_taxi-6
    python benchmarks/forecasts.py walmart_sales-8 --methods jointensor,lightgbm
    python benchmarks/forecasts.py --table

A task is a tensor and a horizon. Everything before an origin is known, and the next labels are forecast up to the
horizon; the next origin follows the last of them, so that every label of the test period is forecast once. Models and
settings are fitted and chosen once, on what is before the test period.

hangzhou_metro and nyc_taxi: the last seven days, as the notebooks of transdim have it (multi-step prediction without
further missing values): a value of 0 counts as missing, in training and in testing. The published figures are the
lowest that any of the notebooks prints. walmart_sales: the last eight weeks at once.

`lightgbm` is what a person would write: one model of all series, with lags that are known at every step of the horizon
(from the horizon on), the same phase of earlier seasons, moving means, means of labels and the phase; raw values, or
differences from the last known season; leaves, rows per leaf, kind of target and number of trees by the last labels
before the test period, as many as are tested; then fitted to all that is before the test period.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import lightgbm
import numpy as np
import torch
from tensors import DATA

from jointensor.bench.records import kept, origin, records_in
from jointensor.data.modes import Mode, guess_order
from jointensor.data.tensor import SparseTensor
from jointensor.forecasting import Panel, Timeline, choose_modes, roll
from jointensor.metrics import measure

RESULTS = Path(__file__).with_name("results") / "forecasts"
THREADS = 2
SETTINGS = tuple(product((31, 127, 511), (20, 100), (False, True)))
"""Leaves, rows per leaf, and whether the last known season is subtracted."""
ROUNDS, PATIENCE = 3000, 50


@dataclass(frozen=True)
class Task:
    tensor: str
    by: str
    horizon: int
    labels: int
    """That are tested."""
    seasons: tuple[int, ...]
    """Of the rival; jointensor finds its own."""
    published: float | None = None
    zeros: bool = False
    """Whether a value of 0 is one."""


TASKS = {
    "hangzhou_metro-2": Task("hangzhou_metro", "day+time_slot", 2, 756, (108, 756), 30.58),
    "hangzhou_metro-4": Task("hangzhou_metro", "day+time_slot", 4, 756, (108, 756), 32.63),
    "hangzhou_metro-6": Task("hangzhou_metro", "day+time_slot", 6, 756, (108, 756), 33.91),
    "nyc_taxi-2": Task("nyc_taxi", "hour", 2, 168, (24, 168), 4.904),
    "nyc_taxi-4": Task("nyc_taxi", "hour", 4, 168, (24, 168), 4.991),
    "nyc_taxi-6": Task("nyc_taxi", "hour", 6, 168, (24, 168), 5.010),
    "walmart_sales-8": Task("walmart_sales", "Date", 8, 8, (52,), zeros=True),
}


def read(task):
    """The series of a task."""
    stored = np.load(DATA / f"{task.tensor}.npz")
    there = np.full(len(stored["values"]), fill_value=True) if task.zeros else stored["values"] != 0
    names = [str(name) for name in stored["mode_names"]]
    modes = [
        Mode(name, int(size), None, guess_order(name, None)) for name, size in zip(names, stored["shape"], strict=True)
    ]
    tensor = SparseTensor(stored["indices"][there], stored["values"][there], modes)
    return Panel.of(tensor, Timeline.of(tensor.modes, choose_modes(tensor.modes, task.by)))


def ours(name, task):
    """The record of jointensor."""
    panel = read(task)
    begin = time.perf_counter()
    found = roll(panel, task.horizon, task.labels // task.horizon)
    return record(name, task, "jointensor", found.figures(), time.perf_counter() - begin)


def lightgbm_on_lags(name, task):
    """The record of the rival."""
    panel = read(task)
    values, begin = panel.values, time.perf_counter()
    first = len(values) - task.labels
    columns = Columns(values, panel.series, task)
    valid = columns.rows(first - task.labels, first)

    def grown(settings, train, rounds, stop=None):
        leaves, least, subtract = settings
        how = {"objective": "l2", "learning_rate": 0.05, "num_leaves": leaves, "min_data_in_leaf": least, "seed": 0,
               "num_threads": THREADS, "verbose": -1}  # fmt: skip
        made = [lightgbm.Dataset(x, y - base * subtract) for x, y, base in ([train] if stop is None else [train, stop])]
        calls = [] if stop is None else [lightgbm.early_stopping(PATIENCE, verbose=False)]
        return lightgbm.train(how, made[0], rounds, valid_sets=made[1:], callbacks=calls)

    train = columns.rows(max(task.seasons), first - task.labels, encode_before=first - task.labels)
    tried = {one: grown(one, train, ROUNDS, valid) for one in SETTINGS}
    best = min(tried, key=lambda one: tried[one].best_score["valid_0"]["l2"])
    rounds = tried[best].best_iteration
    everything = columns.rows(max(task.seasons), first)
    model = grown(best, everything, rounds)
    x, y, base = columns.rows(first, len(values))
    figures = {
        "test": measure(model.predict(x) + base * best[2], y).to_dict(),
        "chosen": {"leaves": best[0], "rows per leaf": best[1], "season subtracted": best[2], "trees": rounds},
        "validated": {str(one): float(fit.best_score["valid_0"]["l2"]) ** 0.5 for one, fit in tried.items()},
    }
    return record(name, task, "lightgbm", figures, time.perf_counter() - begin)


class Columns:
    """What LightGBM sees of a value: only what is known a whole horizon before."""

    def __init__(self, values, codes, task):
        self.values, self.codes, self.task = values, codes, task
        filled = np.where(np.isfinite(values), values, 0.0)
        self.sums = np.vstack([np.zeros(values.shape[1]), filled.cumsum(axis=0)])
        self.counts = np.vstack([np.zeros(values.shape[1]), np.isfinite(values).cumsum(axis=0)])

    def lag(self, steps, series, back):
        known = steps - back
        return np.where(known >= 0, self.values[np.maximum(known, 0), series], np.nan)

    def mean(self, steps, series, back, width):
        """Of ``width`` steps that end ``back`` steps before."""
        last, first = np.maximum(steps - back + 1, 0), np.maximum(steps - back + 1 - width, 0)
        count = self.counts[last, series] - self.counts[first, series]
        with np.errstate(invalid="ignore"):
            return (self.sums[last, series] - self.sums[first, series]) / count

    def rows(self, begin, end, encode_before=None):
        """Columns, values and the last known season of the observed values of some steps."""
        horizon, seasons = self.task.horizon, self.task.seasons
        steps, series = np.nonzero(np.isfinite(self.values[begin:end]))
        steps = steps + begin
        found = [self.lag(steps, series, horizon + one) for one in range(5)]
        found += [self.mean(steps, series, horizon, width) for width in (4, 12, *seasons)]
        found += [self.mean(steps, series, horizon, 10**6)]  # of all before: the encoding of the series
        for season in seasons:
            multiple = -(-horizon // season) * season
            found += [self.lag(steps, series, multiple + shift) for shift in (-1, 0, 1) if multiple + shift >= horizon]
            found += [self.lag(steps, series, multiple + season), steps % season]
        total, count = self.sums, self.counts
        row = np.maximum(steps - horizon + 1, 0)
        for code in self.codes.T:  # means of labels, of all that is known
            of_label = np.zeros((2, code.max() + 1, len(total)))
            for k, one in enumerate((total, count)):
                np.add.at(of_label[k], code, one.T)
            with np.errstate(invalid="ignore"):
                found += [of_label[0, code[series], row] / of_label[1, code[series], row], code[series]]
        base = self.lag(steps, series, -(-horizon // seasons[-1]) * seasons[-1])
        base = np.where(np.isnan(base), found[7 + len(seasons)], base)  # the mean of the series
        return np.column_stack(found), self.values[steps, series], np.nan_to_num(base)


def record(name, task, method, figures, seconds):
    facts = {"task": name, "method": method, "seconds": seconds, "threads": THREADS, "published": task.published}
    return facts | {"horizon": task.horizon, "labels": task.labels, "by": task.by, "zeros_count": task.zeros} | figures


def table():
    """All records as Markdown."""
    found = records_in(RESULTS)
    lines = ["| task | method | RMSE | MAE | RFE | best simple forecast | published | 90 % hold | seconds |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in sorted(found, key=lambda one: (one["task"], one["method"])):
        simple = {
            k: v["rmse"]
            for k, v in one.get("members", {}).items()
            if k in ("last", "mean", "drift") or "seasonal_" in k
        }
        best = min(simple, key=simple.get, default=None)
        test = one["test"]
        lines.append(
            f"| {one['task']} | {one['method']} | {test['rmse']:.4g} | {test['mae']:.4g} | {test['rfe']:.4f} | "
            f"{'' if best is None else f'{simple[best]:.4g} ({best})'} | {one['published'] or ''} | "
            f"{one['interval']['inside']:.1%} | {one['seconds']:.0f} |" if "interval" in one else
            f"| {one['task']} | {one['method']} | {test['rmse']:.4g} | {test['mae']:.4g} | {test['rfe']:.4f} |  | "
            f"{one['published'] or ''} |  | {one['seconds']:.0f} |"
        )  # fmt: skip
    return "\n".join([*lines, "", origin(found)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--methods", default="jointensor", help="jointensor,lightgbm")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--threads", type=int, default=THREADS)
    asked = parser.parse_args()
    globals()["THREADS"] = asked.threads
    torch.set_num_threads(asked.threads)
    ways = {"jointensor": ours, "lightgbm": lightgbm_on_lags}
    for name in asked.tasks or (() if asked.table else TASKS):
        for method in asked.methods.split(","):
            path = RESULTS / f"{name}.{method}.json"
            found = kept(path, lambda name=name, method=method: ways[method](name, TASKS[name]))
            print(f"{name} {method}: RMSE {found['test']['rmse']:.4g}, {found['seconds']:.0f} s", flush=True)
    if asked.table:
        print(table())


if __name__ == "__main__":
    main()
