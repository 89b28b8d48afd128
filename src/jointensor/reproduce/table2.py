"""Table 2: JULIA against five baselines, by the paper's training; then what else there is."""

from __future__ import annotations

from typing import Any

from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.metrics import measure
from jointensor.reproduce.paper import RMSE, SPECS
from jointensor.reproduce.study import Finding, Outcome, Setting, answered, figure
from jointensor.search.search import search

BASELINES = ("mean", "bias", "tables")
AUTO_SECONDS = 60.0
QUICK_FITS = 3
"""Fits of ``auto`` in a quick run, which only shows that everything works."""


def table2(setting: Setting) -> Outcome:
    """RMSE of every method on every tensor."""
    columns = {dataset: _column(setting, dataset) for dataset in setting.datasets}
    names = [*SPECS, *BASELINES, "JULIA 4/16, recipe default", "auto"]
    rows = [
        (name, *(_cell(name, dataset, columns[dataset].get(name)) for dataset in setting.datasets)) for name in names
    ]
    notes = [
        "Ours, and in brackets the paper's on its own tensor of that name; mean ± standard deviation over seeds.",
        f"`auto` chooses everything by validation, in {AUTO_SECONDS:.0f} s.",
    ]
    header = ("method", *setting.datasets)
    findings = _findings(setting.datasets, columns)
    return Outcome("Table 2: JULIA and five baselines, test RMSE", header, rows, findings, notes)


def _column(setting: Setting, dataset: str) -> dict[str, Any]:
    found = setting.compared("table2", dataset, [*BASELINES, *SPECS.values()])
    ours = setting.compared("table2-default", dataset, ["julia:4/16"], recipe="default")
    rows = {name: found[spec] for name, spec in SPECS.items()} | {name: found[name] for name in BASELINES}
    rows["JULIA 4/16, recipe default"] = ours["julia:4/16"]
    rows["auto"] = setting.kept(f"table2-auto-{dataset}", lambda: _auto(setting, dataset))
    return rows


def _auto(setting: Setting, dataset: str) -> dict[str, Any]:
    parts = split(setting.tensor(dataset))
    budget: dict[str, Any] = {"budget_fits": QUICK_FITS} if setting.quick else {"budget": AUTO_SECONDS}
    found = search(join(parts.train, parts.valid), device=setting.device, **budget)
    return {"rmse": measure(found.predictor.predict(parts.test.indices), parts.test.values).rmse}


def _cell(name: str, dataset: str, row: dict[str, Any] | None) -> str:
    theirs = RMSE.get((name, dataset))
    return figure(row) + ("" if theirs is None else f" [{theirs:g}]")


def _findings(datasets: tuple[str, ...], columns: dict[str, dict[str, Any]]) -> list[Finding]:
    others = [name for name in SPECS if name != "JULIA"]
    datasets = tuple(dataset for dataset in datasets if columns[dataset]["JULIA"]["fits"])

    def lost(dataset: str, against: list[str]) -> list[str]:
        mine = columns[dataset]["JULIA"]["rmse"]
        rivals = [(name, columns[dataset][name]["rmse"]) for name in against]
        return [name for name, rmse in rivals if rmse is not None and (mine is None or rmse <= mine)]

    won = [dataset for dataset in datasets if not lost(dataset, others)]
    why = "; ".join(f"{d}: behind {', '.join(lost(d, others))}" for d in datasets if d not in won) or "everywhere"
    ahead = [dataset for dataset in datasets if not lost(dataset, ["mean", "bias"])]
    bias = "; ".join(f"{d}: behind {', '.join(lost(d, ['mean', 'bias']))}" for d in datasets if d not in ahead)
    return [
        answered("JULIA has the lowest RMSE (all but MovieLens in the paper)", len(won), len(datasets), why),
        answered(
            "(not in the paper) JULIA is ahead of the mean and of additive biases", len(ahead), len(datasets),
            bias or "everywhere",
        ),
    ]  # fmt: skip
