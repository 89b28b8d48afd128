"""Figure 3: alternating and naive training."""

from __future__ import annotations

from jointensor.report.plots import lines_as_svg
from jointensor.reproduce.study import Outcome, Setting, answered, below, decided, figure

TRAININGS = ("alternating", "naive")

RANKS = (10, 20, 30, 40, 50, 60)
RATIOS = ((2, 18), (4, 16), (8, 12), (10, 10), (12, 8), (16, 4), (18, 2))


def figure3(setting: Setting) -> Outcome:
    """RMSE and seconds of alternating and naive training over the rank and over R/F, on two tensors."""
    ranks, ratios = (RANKS[:2], RATIOS[1:6:4]) if setting.quick else (RANKS, RATIOS)
    by_rank = [(rank // 5, rank - rank // 5) for rank in ranks]
    pairs = list(dict.fromkeys([*by_rank, *ratios]))
    rows, findings = [], []
    pictures: dict[str, str] = {}
    for dataset in [one for one in ("Facebook", "NeurIPS") if one in setting.datasets]:
        specs = {(r, f): [f"julia:{r}/{f}{how}" for how in ("", ",training=naive")] for r, f in pairs}
        found = setting.compared("figure3", dataset, [spec for two in specs.values() for spec in two])
        both = {pair: [found[spec] for spec in two] for pair, two in specs.items()}
        both = {pair: two for pair, two in both.items() if all(row["fits"] for row in two)}
        if not both:
            continue
        rows += [
            (dataset, f"{r}/{f}", *(text for row in two for text in (figure(row, "rfe"), figure(row))),
             *(figure(row, "seconds", 3) for row in two))
            for (r, f), two in both.items()
        ]  # fmt: skip
        verdicts = [below(a, n) for a, n in both.values()]
        findings.append(decided(f"{dataset}: alternating has the lower RMSE", verdicts, "settings"))
        faster = sum(_less(a["seconds"], n["seconds"]) for a, n in both.values())
        findings.append(
            answered(f"{dataset}: alternating takes less time", faster, len(both), "settings, mean seconds")
        )
        curves = {
            name: [(sum(pair), both[pair][k]["rmse"]) for pair in by_rank if pair in both]
            for k, name in enumerate(TRAININGS)
        }
        known = {name: [point for point in curve if point[1] is not None] for name, curve in curves.items()}
        title = f"{dataset}: RMSE by rank"
        pictures[title] = lines_as_svg(known, title)
    header = (
        "tensor", "R/F", "alternating RSE", "alternating RMSE", "naive RSE", "naive RMSE", "alternating s", "naive s",
    )  # fmt: skip
    return Outcome("Figure 3: alternating and naive training", header, rows, findings, pictures=pictures)


def _less(one: float | None, other: float | None) -> bool:
    """Whether a figure is below another; a fit that failed has none, and is behind all others."""
    return one is not None and (other is None or one < other)
