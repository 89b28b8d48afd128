"""Table 1: statistics of the tensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jointensor.bench.records import Record
from jointensor.reproduce.paper import SHAPES
from jointensor.reproduce.study import Outcome, Setting


def table1(setting: Setting) -> Outcome:
    """Shapes and entries of the paper's tensors beside those that stand for them here."""
    rows = []
    for dataset in setting.datasets:
        mine = setting.kept(f"table1/{dataset}", partial(_statistics, setting, dataset))
        if mine is not None:
            shape, known = SHAPES[dataset]
            theirs = (dataset, " × ".join(map(str, shape)), f"{known:,}", Path(next(iter(mine["data"]))).stem)
            moments = f"{mine['mean']:.3g}", f"{mine['sd']:.3g}"
            rows.append((*theirs, " × ".join(map(str, mine["shape"])), f"{mine['entries']:,}", *moments))
    header = ("data set", "shape, paper", "known, paper", "here", "shape", "known", "mean", "sd")
    notes = ["RMSE of different tensors cannot be compared: each claim is tested between methods on the same tensor."]
    return Outcome("Table 1: statistics of the tensors", header, rows, notes=notes)


def _statistics(setting: Setting, dataset: str) -> Record:
    tensor = setting.tensor(dataset)
    moments = {"mean": float(tensor.values.mean()), "sd": float(tensor.values.std())}
    return {"data": setting.checksum(dataset), "shape": list(tensor.shape), "entries": len(tensor), **moments}
