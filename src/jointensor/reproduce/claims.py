"""Headline claims of the paper's text, recomputed from its tables."""

from __future__ import annotations

from jointensor.reproduce.paper import DATASETS, INSIDE, RMSE, SECONDS_PER_EPOCH, SPECS, TOTAL_SECONDS, inside
from jointensor.reproduce.study import Finding, Outcome, Setting, holds_or_not


def claims(setting: Setting) -> Outcome:
    """Percentages that the paper states, and what its own tables give."""
    del setting  # nothing is run
    rows: list[tuple[str, str, str]] = []
    findings: list[Finding] = []

    def check(claim: str, stated: float, found: float, where: str) -> None:
        rows.append((claim, f"{stated:.1%}", f"{found:.1%}"))
        rounded = 0.0055 if round(stated, 2) == stated else 0.00055  # as many digits as are stated
        findings.append(Finding(claim, holds_or_not(abs(stated - found) < rounded), f"{found:.1%} by {where}"))

    for stated, dataset in ((0.277, "Healthcare"), (0.195, "NeurIPS")):
        best = min(RMSE[inside("COSTCO", ratio)[0], dataset] for ratio in INSIDE["COSTCO"])
        lowered = 1 - best / RMSE["COSTCO", dataset]
        check(f"JULIA lowers COSTCO's RMSE on {dataset}", stated, lowered, "its tables 2 and 3")
    for x, total, epoch in (("AVOCADO", 0.779, 0.512), ("COSTCO", 0.84, 0.689), ("NeurTN", 0.669, 0.439)):
        for what, stated, seconds in (
            ("total time", total, TOTAL_SECONDS[x]),
            ("time per epoch", epoch, SECONDS_PER_EPOCH[x]),
        ):
            saved = 1 - seconds[-1] / seconds[0]
            check(f"{x}: {what} saved", stated, saved, "the last row of its table 4 (R/F 16/4)")
    gains = [
        (1 - RMSE[inside(x, ratio)[0], dataset] / RMSE[x, dataset], f"JULIA-{x} on {dataset}")
        for x in INSIDE
        for ratio in INSIDE[x]
        for dataset in DATASETS
    ]
    largest, where = max(gains)
    check("up to 55 % lower RMSE", 0.55, largest, f"its table 3 ({where})")
    least = [d for d in DATASETS if RMSE["JULIA", d] <= min(RMSE[x, d] for x in SPECS)]
    claimed = [dataset for dataset in DATASETS if dataset != "MovieLens"]  # the paper: AVOCADO is best on MovieLens
    because = f"on {len(least)} of {len(DATASETS)}: {', '.join(least)}"
    claim = "JULIA has the lowest RMSE in table 2 on all but MovieLens"
    findings.append(Finding(claim, holds_or_not(least == claimed), because))
    header = ("claim", "as stated", "from the paper's tables")
    return Outcome("Headline claims, recomputed from the paper's tables", header, rows, findings)
