"""Figure 3: alternating against naive training, over the rank and over R/F."""

from __future__ import annotations

from typing import Any

from jointensor.reproduce.study import Outcome, Setting, answered, figure

DATASETS = ("Facebook", "NeurIPS")
RANKS = (10, 20, 30, 40, 50, 60)
RATIOS = ((2, 18), (4, 16), (8, 12), (10, 10), (12, 8), (16, 4), (18, 2))


def figure3(setting: Setting) -> Outcome:
    """RMSE and seconds of both, on two tensors."""
    ranks = RANKS[:2] if setting.quick else RANKS
    ratios = RATIOS[1:6:4] if setting.quick else RATIOS
    by_rank = [(rank // 5, rank - rank // 5) for rank in ranks]
    pairs = list(dict.fromkeys([*by_rank, *ratios]))
    rows, findings = [], []
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for dataset in [one for one in DATASETS if one in setting.datasets]:
        models = [f"julia:{r}/{f}{how}" for r, f in pairs for how in ("", ",training=naive")]
        found = setting.compared("figure3", dataset, models)
        both = {
            pair: tuple(found[f"julia:{pair[0]}/{pair[1]}{how}"] for how in ("", ",training=naive")) for pair in pairs
        }
        both = {pair: two for pair, two in both.items() if all(row["fits"] for row in two)}
        rows += [
            (dataset, f"{r}/{f}", figure(a), figure(n), figure(a, "seconds", 3), figure(n, "seconds", 3))
            for (r, f), (a, n) in both.items()
        ]
        better, faster = (sum(_less(a[key], n[key]) for a, n in both.values()) for key in ("rmse", "seconds"))
        findings.append(answered(f"{dataset}: alternating has the lower RMSE", better, len(both), "settings"))
        findings.append(answered(f"{dataset}: alternating takes less time", faster, len(both), "settings"))
        over = {
            name: [(sum(pair), both[pair][k]["rmse"]) for pair in by_rank if pair in both]
            for k, name in enumerate(("alternating", "naive"))
        }
        lines[f"{dataset}: RMSE by rank"] = {
            name: [p for p in points if p[1] is not None] for name, points in over.items()
        }
    header = ("tensor", "R/F", "alternating RMSE", "naive RMSE", "alternating s", "naive s")
    return Outcome("Figure 3: alternating and naive training", header, rows, findings, lines=lines)


def _less(one: Any, other: Any) -> bool:
    return one is not None and (other is None or one < other)
