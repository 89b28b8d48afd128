"""Table 2: JULIA and five baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jointensor.bench.records import Record
from jointensor.data.split import split
from jointensor.data.tensor import join
from jointensor.metrics import measure
from jointensor.reproduce.error_columns import WELCH, not_run, that_ran, two_columns, two_figures
from jointensor.reproduce.paper import SPECS
from jointensor.reproduce.study import Finding, Outcome, Setting, Verdict, all_of, below, decided
from jointensor.search.search import search

AUTO_SECONDS = 60.0
QUICK_FITS = 3
"""Fits of ``auto`` in a quick run, which only shows that everything works."""


def table2(setting: Setting) -> Outcome:
    """RSE and RMSE of JULIA and of five other methods on every tensor, by the paper's training; then others."""
    columns = that_ran({dataset: _column(setting, dataset) for dataset in setting.datasets})
    names = [*SPECS, "mean", "bias", "tables", "JULIA 4/16, recipe default", "auto"]
    rows = [
        (name, *(text for d, column in columns.items() for text in two_figures(column[name], name, d)))
        for name in names
    ]
    notes = [
        "Ours, and in brackets the paper's on its own tensor of that name; mean ± standard deviation over seeds.",
        WELCH,
        f"`auto` is an ensemble of many models that chooses everything by validation, in {AUTO_SECONDS:.0f} s; one "
        "search. Every other row is a single model.",
        "The last two rows are not trained by the recipe `paper`: compare them with each other, not with those above.",
        *not_run(setting, columns),
    ]
    claims = {
        "JULIA has the lowest RMSE (all but MovieLens in the paper)": [name for name in SPECS if name != "JULIA"],
        "(not in the paper) JULIA is ahead of the mean and of additive biases": ["mean", "bias"],
    }
    findings = [_ahead(claim, rivals, columns) for claim, rivals in claims.items()]
    title = "Table 2: JULIA and five baselines, test RSE and RMSE"
    return Outcome(title, ("method", *two_columns(columns)), rows, findings, notes)


def _column(setting: Setting, dataset: str) -> dict[str, Any]:
    named = {**SPECS, "mean": "mean", "bias": "bias", "tables": "tables"}
    found = setting.compared("table2/paper", dataset, ["mean", "bias", "tables", *SPECS.values()])
    ours = setting.compared("table2/default", dataset, ["julia:4/16"], recipe="default")
    rows = {name: found[spec] for name, spec in named.items()}
    rows["JULIA 4/16, recipe default"] = ours["julia:4/16"]
    rows["auto"] = setting.kept(f"table2/auto/{dataset}", lambda: _auto(setting, dataset)) or {"fits": 0}
    return rows


def _auto(setting: Setting, dataset: str) -> Record:
    parts = split(setting.tensor(dataset))
    budget: dict[str, Any] = {"budget_fits": QUICK_FITS} if setting.quick else {"budget": AUTO_SECONDS}
    found = search(join(parts.train, parts.valid), device=setting.device, **budget)
    figures = measure(found.predictor.predict(parts.test.indices), parts.test.values)
    return {"fits": 1, "data": setting.checksum(dataset), "budget": AUTO_SECONDS} | figures.to_dict()


def _ahead(claim: str, rivals: Sequence[str], columns: dict[str, dict[str, Any]]) -> Finding:
    """Whether JULIA is ahead of all rivals, on every tensor where it was fitted."""
    verdicts: dict[str, dict[str, Verdict]] = {
        dataset: {name: below(column["JULIA"], column[name]) for name in rivals}
        for dataset, column in columns.items() if column["JULIA"]["fits"]
    }  # fmt: skip
    why = []
    for word, how in (("no", "behind"), ("not decided", "not decided beside")):
        for dataset, found in verdicts.items():
            names = [name for name, verdict in found.items() if verdict == word]
            why += [f"{dataset}: {how} {', '.join(names)}"] if names else []
    return decided(claim, [all_of(found.values()) for found in verdicts.values()], "; ".join(why) or "everywhere")
