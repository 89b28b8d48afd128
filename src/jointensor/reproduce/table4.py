"""Table 4 and figure 4: seconds of a fit and of an epoch, by method and R/F, on the tensor of e-mails."""

from __future__ import annotations

from typing import Any

from jointensor.reproduce.paper import INSIDE, SECONDS_PER_EPOCH, SPECS, TOTAL_SECONDS, inside
from jointensor.reproduce.study import Finding, Outcome, Setting, answered, figure

DATASET = "Enron-Emails"


def table4(setting: Setting) -> Outcome:
    """Total time and time per epoch with and without JULIA."""
    named = {x: [(x, SPECS[x]), *(inside(x, ratio) for ratio in INSIDE[x])] for x in INSIDE}
    models = [spec for pairs in named.values() for _, spec in pairs]
    found = setting.compared("table4", DATASET, models)
    rows, findings = [], []
    for x, pairs in named.items():
        for (name, spec), total, epoch in zip(pairs, TOTAL_SECONDS[x], SECONDS_PER_EPOCH[x], strict=True):
            row = found[spec]
            rows.append((name, f"{figure(row, 'seconds', 3)} [{total:g}]", f"{_epoch(row)} [{epoch:g}]", figure(row)))
        findings += _saved(x, [found[spec] for _, spec in pairs])
    notes = ["Seconds on the machine below, in brackets the paper's on a V100; the comparison is between rows."]
    header = ("method", "seconds in all", "seconds per epoch", "test RMSE")
    return Outcome("Table 4: time with and without JULIA", header, rows, findings, notes)


def figure4(setting: Setting) -> Outcome:
    """Time per epoch of all methods."""
    named = {**SPECS, "JULIA (10/10)": "julia:10/10", "JULIA (16/4)": "julia:16/4"}
    found = setting.compared("figure4", DATASET, list(named.values()))
    seconds = {name: found[spec]["seconds_per_epoch"] for name, spec in named.items()}
    rows = [(name, _epoch(found[spec]), f"{found[spec]['parameters'] or 0:,}") for name, spec in named.items()]
    julia = [seconds[name] for name in ("JULIA", "JULIA (10/10)", "JULIA (16/4)")]
    known = {name: one for name, one in seconds.items() if one is not None}
    slowest = max(known, key=lambda name: known[name]) if known else "none"
    falls = None not in julia and julia[0] >= julia[1] >= julia[2]
    least = seconds["JULIA (16/4)"]
    half = seconds["COSTCO"]
    findings = [
        Finding("an epoch takes fewer seconds as R/F grows", _yes(falls), ", ".join(map(_text, julia))),
        Finding("Tucker is the slowest", _yes(slowest == "Tucker"), f"the slowest is {slowest}"),
        Finding(
            "JULIA (16/4) takes about half of COSTCO's time",
            _yes(least is not None and half is not None and least <= 0.6 * half),
            f"{_text(least)} and {_text(half)} s",
        ),
    ]
    return Outcome("Figure 4: seconds per epoch", ("method", "seconds per epoch", "parameters"), rows, findings)


def _saved(x: str, rows: list[dict[str, Any]]) -> list[Finding]:
    paper = 1 - min(TOTAL_SECONDS[x][1:]) / TOTAL_SECONDS[x][0]
    alone, joint = rows[0]["seconds"], [row["seconds"] for row in rows[1:] if row["seconds"] is not None]
    if alone is None or not joint:
        return [answered(f"JULIA-{x} is faster in all", 0, 0, "a fit failed")]
    ours = 1 - min(joint) / alone
    claim = f"JULIA saves {paper:.1%} of {x}'s time in all (best R/F)"
    answer = "holds" if ours >= paper else "holds in part" if ours > 0 else "does not hold"
    return [Finding(claim, answer, f"ours: {ours:.1%}")]


def _epoch(row: dict[str, Any]) -> str:
    return _text(row["seconds_per_epoch"])


def _text(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.3g}"


def _yes(holds: bool) -> str:  # noqa: FBT001 - a yes or a no
    return "holds" if holds else "does not hold"
