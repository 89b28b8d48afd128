"""Table 3: baselines with and without JULIA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jointensor.reproduce.error_columns import WELCH, not_run, that_ran, two_columns, two_figures
from jointensor.reproduce.paper import INSIDE, SPECS, inside
from jointensor.reproduce.study import Finding, Outcome, Setting, below, decided, figure, number


def table3(setting: Setting) -> Outcome:
    """RSE and RMSE of every method X and of JULIA-X, at three R/F; then by the recipe `default`."""
    named = {name: spec for x in INSIDE for name, spec in [*(inside(x, ratio) for ratio in INSIDE[x]), (x, SPECS[x])]}
    ours = {name: spec for x, ratios in INSIDE.items() for name, spec in (inside(x, ratios[0]), (x, SPECS[x]))}
    models = ["mean", "bias", *named.values()]
    paper = that_ran({d: setting.compared("table3/paper", d, models) for d in setting.datasets})
    exact = {d: setting.compared("table3/default", d, list(ours.values()), "default") for d in paper}
    rows = [
        (name, *(text for d in paper for text in two_figures(paper[d][spec], name, d)))
        for name, spec in (*named.items(), ("mean", "mean"), ("bias", "bias"))
    ]
    rows += [
        (f"{name}, recipe default", *(figure(exact[d][spec], key) for d in paper for key in ("rfe", "rmse")))
        for name, spec in ours.items()
    ]
    findings = [_below(x, ratios, paper, "(everywhere but Enron-Emails in the paper)") for x, ratios in INSIDE.items()]
    findings += [_below(x, ratios[:1], exact, "by the recipe `default`") for x, ratios in INSIDE.items()]
    notes = [
        "Ours, and in brackets the paper's; the best of three R/F is chosen on the test entries, as in the paper.",
        WELCH,
        "The recipe `default` solves the multilinear part and regularises both; one R/F only.",
        *not_run(setting, paper),
    ]
    title = "Table 3: baselines with and without JULIA, test RSE and RMSE"
    return Outcome(title, ("method", *two_columns(paper)), rows, findings, notes)


def _below(x: str, ratios: Sequence[str], columns: dict[str, dict[str, Any]], how: str) -> Finding:
    """Whether the best JULIA-X is below X on every tensor."""
    verdicts, best = [], []
    for dataset, rows in columns.items():
        alone, joint = rows[SPECS[x]], [rows[inside(x, ratio)[1]] for ratio in ratios]
        if all(row["fits"] for row in (alone, *joint)):
            known = [row for row in joint if row["rmse"] is not None]
            least = min(known, key=lambda row: row["rmse"], default=joint[0])
            verdicts.append(below(least, alone))
            figures = number(alone["rmse"], 4, "fails"), number(least["rmse"], 4, "fails")
            best.append(f"{dataset} {figures[0]} → {figures[1]} ({verdicts[-1]})")
    return decided(f"JULIA-{x} below {x} {how}", verdicts, ", ".join(best))
