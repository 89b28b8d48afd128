"""Figure 5: how often a method succeeds from a random start."""

from __future__ import annotations

from typing import Any

from jointensor.reproduce.paper import SUCCESS
from jointensor.reproduce.study import QUICK, Outcome, Setting, answered
from jointensor.reproduce.success_rate import METHODS, success_rates

SEEDS = 50


def figure5(setting: Setting) -> Outcome:
    """Success rates alone and inside JULIA, from raw and from robust starts."""
    rows, findings = [], []
    seeds = 2 if setting.quick else SEEDS
    inside = {"raw": [0, 0], "robust": [0, 0]}
    for dataset in setting.datasets:
        found = success_rates(
            setting.source(dataset), setting.out / "cells" / f"figure5-{dataset}", seeds=seeds, jobs=setting.jobs,
            device=setting.device, changes=dict(QUICK) if setting.quick else None, finished=setting.finished,
        )  # fmt: skip
        for method in METHODS:
            mine = {row["start"]: row for row in found if row["method"] == method}
            rates = [_rate(row) for row in mine.values()]
            paper = SUCCESS.get(method)
            rows.append((dataset, method, *rates, "–" if paper is None else f"{paper:.0%}"))
            if method.startswith("JULIA"):
                for start, row in mine.items():
                    inside[start][0] += row["success_rate"] == 1
                    inside[start][1] += row["fits"] > 0
    for start, (all_of, cases) in inside.items():
        claim = f"inside JULIA every fit succeeds ({start} starts)"
        findings.append(answered(claim, all_of, cases, "tensors and methods without a failure"))
    notes = ["A fit succeeds when its test RFE is below 1 and its predictions are not all the same."]
    header = ("tensor", "method", "raw starts, no restarts", "robust starts", "paper")
    return Outcome("Figure 5: success rates", header, rows, findings, notes)


def _rate(row: dict[str, Any]) -> str:
    return f"{round(row['success_rate'] * row['fits'])} of {row['fits']}" if row["fits"] else "–"
