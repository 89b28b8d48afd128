"""Figure 2: are the multilinear components of a mixed tensor recovered?"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from jointensor.errors import DataError
from jointensor.reproduce.identifiability import planted, run_one
from jointensor.reproduce.study import QUICK, Finding, Outcome, Setting, answered
from jointensor.training.recipe import make_recipe

RATIOS = (0.3, 1.0)
FOUND = 0.99
"""Congruence from which a component counts as recovered."""


def figure2(setting: Setting) -> Outcome:
    """Congruence of planted and found components, alternating and naive training."""
    seeds = 1 if setting.quick else max(setting.seeds, 10)
    results: list[dict[str, Any]] = [
        setting.kept(f"figure2-{ratio}-{seed}-{training}", lambda r=ratio, s=seed, t=training: _one(setting, r, s, t))
        for ratio in RATIOS
        for seed in range(seeds)
        for training in ("alternating", "naive")
    ]
    left = sum(one is None for one in results)
    if left:
        raise DataError(f"figure2 has {left} of {len(results)} fits left; run it without --finished")
    rows, findings = [], []
    for ratio in RATIOS:
        both = {t: [r for r in results if r["ratio"] == ratio and r["training"] == t] for t in ("alternating", "naive")}
        for training, mine in both.items():
            good = sum(min(one["congruence"]) >= FOUND for one in mine)
            rmse = [one["rmse"] for one in mine]
            rows.append((f"{ratio:g}", training, f"{good} of {len(mine)}", f"{median(rmse):.4g}", f"{min(rmse):.4g}"))
        mine, other = both["alternating"], both["naive"]
        good = sum(min(one["congruence"]) >= FOUND for one in mine)
        findings.append(
            answered(f"components are recovered (network {ratio:g} times as large)", good, len(mine), "tensors")
        )
        lower = sum(a["rmse"] < b["rmse"] for a, b in zip(mine, other, strict=True))
        why = "pairs with a lower RMSE"
        findings.append(answered(f"alternating is better than naive ({ratio:g})", lower, len(mine), why))
    least = min(one["rmse"] for one in results if one["training"] == "alternating")
    findings.append(
        Finding("the test RMSE reaches 0.0012", "holds" if least <= 0.0012 else "does not hold", f"lowest {least:.3g}")
    )
    header = ("network / components", "training", f"congruence ≥ {FOUND}", "median RMSE", "lowest RMSE")
    return Outcome("Figure 2: identifiability, 100 × 100 × 100, R = 3, F = 10, 80 % missing", header, rows, findings)


def _one(setting: Setting, ratio: float, seed: int, training: str) -> dict[str, Any]:
    size = 20 if setting.quick else 100
    parts, truth = planted(size, (3, 10), ratio, seed)
    recipe = make_recipe("paper", training=training, **(QUICK if setting.quick else {}))
    return asdict(run_one(parts, truth, recipe, (3, 10), ratio=ratio, seed=seed, device=setting.device))
