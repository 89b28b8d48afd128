"""Table 4: time with and without JULIA."""

from __future__ import annotations

from collections.abc import Sequence

from jointensor.reproduce.paper import INSIDE, SECONDS_PER_EPOCH, SPECS, TIMED, TOTAL_SECONDS, inside
from jointensor.reproduce.study import Finding, Outcome, Setting, answered, beside, figure, number


def table4(setting: Setting) -> Outcome:
    """Seconds of a fit and of an epoch with and without JULIA."""
    named = {x: [(x, SPECS[x]), *(inside(x, ratio) for ratio in INSIDE[x])] for x in INSIDE}
    found = setting.compared("table4", TIMED, [spec for pairs in named.values() for _, spec in pairs])
    rows, findings = [], []
    for x, pairs in named.items():
        for (name, spec), total, epoch in zip(pairs, TOTAL_SECONDS[x], SECONDS_PER_EPOCH[x], strict=True):
            row = found[spec]
            seconds = beside(figure(row, "seconds", 3), total), beside(number(row["seconds_per_epoch"]), epoch)
            rows.append((name, *seconds, figure(row, "rfe"), figure(row)))
        last = found[pairs[0][1]], found[pairs[-1][1]]
        for what, key, paper in (
            ("in all", "seconds", TOTAL_SECONDS),
            ("per epoch", "seconds_per_epoch", SECONDS_PER_EPOCH),
        ):
            findings.append(time_saved(x, what, paper[x], [row[key] for row in last]))
    notes = ["Seconds on the machine below, in brackets the paper's on a V100; the comparison is between rows."]
    header = ("method", "seconds in all", "seconds per epoch", "test RSE", "test RMSE")
    return Outcome("Table 4: time with and without JULIA", header, rows, findings, notes)


def time_saved(x: str, what: str, paper: Sequence[float], ours: Sequence[float | None]) -> Finding:
    """Whether JULIA saves as much of a method's time as in the paper, whose percentages are of its last row.

    ``ours`` are seconds alone and inside JULIA at the R/F of that row.
    """
    stated, (alone, joint) = 1 - paper[-1] / paper[0], ours
    if alone is None or joint is None:
        return answered(f"JULIA-{x} takes less time {what}", 0, 0, "a fit failed, or was not made")
    saved = 1 - joint / alone
    answer = "holds" if saved >= stated else "holds in part" if saved > 0 else "does not hold"
    claim = f"JULIA saves {stated:.1%} of {x}'s time {what} (R/F {INSIDE[x][-1]})"
    return Finding(claim, answer, f"ours: {saved:.1%}")
