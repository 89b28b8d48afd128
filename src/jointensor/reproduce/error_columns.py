"""Test errors of methods, a column per tensor, the paper's in brackets: common to tables 2 and 3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jointensor.reproduce.paper import RMSE, RSE
from jointensor.reproduce.study import Setting, beside, figure

WELCH = "A comparison is decided where the 95 % interval of the difference, over seeds, leaves out zero."


def that_ran(columns: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tensors with a fit."""
    return {dataset: rows for dataset, rows in columns.items() if any(row["fits"] for row in rows.values())}


def not_run(setting: Setting, columns: Iterable[str]) -> list[str]:
    """A note about tensors without a fit."""
    left = [dataset for dataset in setting.datasets if dataset not in columns]
    return [f"Not run: {', '.join(left)}."] if left else []


def two_columns(datasets: Iterable[str]) -> list[str]:
    """Headers."""
    return [f"{dataset} {figure}" for dataset in datasets for figure in ("RSE", "RMSE")]


def two_figures(row: dict[str, Any], name: str, dataset: str) -> tuple[str, str]:
    """RSE and RMSE of a method, the paper's in brackets."""
    key = name, dataset
    return beside(figure(row, "rfe"), RSE.get(key)), beside(figure(row), RMSE.get(key))
