"""Table 1: shapes and entries of the paper's tensors beside those that stand for them here."""

from __future__ import annotations

from jointensor.reproduce.paper import SHAPES
from jointensor.reproduce.study import Outcome, Setting


def table1(setting: Setting) -> Outcome:
    """Statistics of the tensors."""
    rows = []
    for dataset in setting.datasets:
        shape, known = SHAPES[dataset]
        mine = setting.tensor(dataset)
        values = mine.values
        rows.append(
            (
                dataset,
                _shape(shape),
                f"{known:,}",
                setting.source(dataset).stem,
                _shape(mine.shape),
                f"{len(mine):,}",
                f"{values.mean():.3g}",
                f"{values.std():.3g}",
            )
        )
    header = ("data set", "shape, paper", "known, paper", "here", "shape", "known", "mean", "sd")
    notes = ["RMSE of different tensors cannot be compared: each claim is tested between methods on the same tensor."]
    return Outcome("Table 1: statistics of the tensors", header, rows, notes=notes)


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
