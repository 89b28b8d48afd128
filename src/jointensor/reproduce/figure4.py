"""Figure 4: seconds per epoch."""

from __future__ import annotations

from jointensor.report.plots import bars_as_svg
from jointensor.reproduce.paper import SPECS, TIMED
from jointensor.reproduce.study import Finding, Outcome, Setting, holds_or_not, number


def figure4(setting: Setting) -> Outcome:
    """Seconds per epoch of all methods."""
    named = {**SPECS, "JULIA (10/10)": "julia:10/10", "JULIA (16/4)": "julia:16/4"}
    found = setting.compared("figure4", TIMED, list(named.values()))
    seconds = {name: found[spec]["seconds_per_epoch"] for name, spec in named.items()}
    rows = [(name, number(seconds[name]), f"{found[spec]['parameters'] or 0:,}") for name, spec in named.items()]
    julia = [seconds[name] for name in ("JULIA", "JULIA (10/10)", "JULIA (16/4)")]
    known = {name: one for name, one in seconds.items() if one is not None}
    slowest = max(known, key=lambda name: known[name]) if known else "none"
    falls = None not in julia and julia[0] >= julia[1] >= julia[2]
    least, costco = seconds["JULIA (16/4)"], seconds["COSTCO"]
    half = least is not None and costco is not None and least <= 0.6 * costco
    because = f"{number(least)} and {number(costco)} s"
    findings = [
        Finding("an epoch takes fewer seconds as R/F grows", holds_or_not(falls), ", ".join(map(number, julia))),
        Finding("Tucker is the slowest", holds_or_not(slowest == "Tucker"), f"the slowest is {slowest}"),
        Finding("JULIA (16/4) takes about half of COSTCO's time", holds_or_not(half), because),
    ]
    title = "Seconds per epoch"
    pictures = {title: bars_as_svg(list(known.items()), title)} if known else {}
    header = ("method", "seconds per epoch", "parameters")
    return Outcome("Figure 4: seconds per epoch", header, rows, findings, pictures=pictures)
