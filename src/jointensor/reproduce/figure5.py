"""Figure 5: success rates."""

from __future__ import annotations

from typing import Any

from jointensor.report.plots import bars_as_svg
from jointensor.reproduce.paper import SPECS, SUCCESS, inside
from jointensor.reproduce.study import Outcome, Setting, answered

STARTS = {"raw": ",start=raw,restarts=0", "robust": ""}
"""Raw: standard normal factors, torch's own layer defaults, no restart. Robust: scales from the data, restarts."""

SUCCESS_SEEDS = 50


def figure5(setting: Setting) -> Outcome:
    """How often a method succeeds from a random start, alone and inside JULIA."""
    named = dict(
        pair for x, ratio in (("COSTCO", "4/16"), ("NeurTN", "2/8")) for pair in ((x, SPECS[x]), inside(x, ratio))
    )
    rows = []
    every = {start: [0, 0] for start in STARTS}
    pictures: dict[str, str] = {}
    for dataset in setting.datasets:
        specs = [spec + option for spec in named.values() for option in STARTS.values()]
        found = setting.compared("figure5", dataset, specs, seeds=SUCCESS_SEEDS)
        if not any(row["fits"] for row in found.values()):
            continue
        for method, spec in named.items():
            raw, robust = (found[spec + option] for option in STARTS.values())
            counts = (raw, "success_rate"), (robust, "success_rate"), (robust, "first_success_rate")
            dead = str(raw["nonlinear_dead"]), str(robust["nonlinear_dead"])
            paper = f"{SUCCESS[method]:.0%}" if method in SUCCESS else "–"
            rows.append((dataset, method, *(_count(*one) for one in counts), *dead, paper))
            if method.startswith("JULIA"):
                for start, row in (("raw", raw), ("robust", robust)):
                    every[start][0] += row["success_rate"] == 1
                    every[start][1] += row["fits"] > 0
        rates = [(name, found[spec + STARTS["raw"]]["success_rate"]) for name, spec in named.items()]
        title = f"{dataset}: successes from raw starts, per cent"
        pictures[title] = bars_as_svg([(name, 100 * rate) for name, rate in rates if rate is not None], title)
    why = "tensors and methods without a failure"
    findings = [
        answered(f"inside JULIA every fit succeeds ({start} starts)", won, cases, why)
        for start, (won, cases) in every.items()
    ]
    notes = ["A fit succeeds when its test RFE is below 1 and its predictions are not all the same."]
    header = (
        "tensor", "method", "raw starts, no restarts", "robust starts", "robust, without a restart",
        "dead networks, raw", "dead networks, robust", "paper",
    )  # fmt: skip
    return Outcome("Figure 5: success rates", header, rows, findings, notes, pictures)


def _count(row: dict[str, Any], rate: str) -> str:
    return f"{round(row[rate] * row['fits'])} of {row['fits']}" if row["fits"] else "–"
