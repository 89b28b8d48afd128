"""Figure 2: identifiability of the multilinear components of planted tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import median

from jointensor.bench.records import Record
from jointensor.report.plots import lines_as_svg
from jointensor.reproduce.paper import PLANTED_RMSE
from jointensor.reproduce.planted import FOUND, REACHED, TEACHERS, planted, recovered, run_one
from jointensor.reproduce.study import (
    ANSWERS,
    QUICK,
    Finding,
    Outcome,
    Setting,
    answered,
    below_in_pairs,
    holds_or_not,
    page_name,
)
from jointensor.training.recipe import make_recipe

ORDERS: dict[str, dict[str, str]] = {
    "alternating, g first": {"training": "alternating", "first": "linear"},
    "alternating, f first": {"training": "alternating", "first": "nonlinear"},
    "naive": {"training": "naive"},
}
"""Changes to the recipe by training and, where the halves take turns, by order."""
GUESSES = {"rank-one": "always", "random": "never"}
"""Where components start, and how the recipe says it."""

TENSORS = 10
"""Planted tensors of every kind."""

Arm = tuple[float | None, str, str]
"""Size of the network, start and training of fits."""
Kind = tuple[str, str, str]
"""The same with the network in words: of those that are not scaled, some are dead."""


def figure2(setting: Setting) -> Outcome:
    """Congruence of planted and found components: every training and order, from guesses and from random components."""
    seeds = 1 if setting.quick else max(setting.seeds, TENSORS)
    teacher = TEACHERS[setting.teacher]
    arms = list(product(teacher.ratios, GUESSES, ORDERS))
    made: dict[Arm, list[Record]] = {arm: [] for arm in arms}
    for seed, arm in product(range(seeds), arms):  # seeds outermost: every arm has figures early
        ratio, start, order = arm
        words = [*([] if ratio is None else [f"{ratio:g}"]), start, *order.replace(",", "").split(), str(seed)]
        name = f"{page_name('figure2', setting)}/{'-'.join(words)}"
        one = setting.kept(name, partial(_plant, setting, arm, seed))
        if one is not None:
            made[arm].append(one)
    found = _by_network(made)
    done, wanted = sum(map(len, made.values())), seeds * len(arms)
    notes = [
        f"The planted network: {teacher.about}. The paper says neither how it was drawn nor where components start.",
        "Rank-one start: fits of one component each to the training entries, for every training alike.",
        f"A component is recovered from a congruence of {FOUND} on.",
    ]
    if done < wanted:
        notes.append(f"{done} of {wanted} fits were made.")
    rows = [(*kind, *_recovery(fits)) for kind, fits in found.items()]
    header = (
        "network / components", "start", "training", "all components", "lowest congruence", "RMSE, median", "lowest",
        "highest", "RSE, median", f"RMSE of {PLANTED_RMSE:g}",
    )  # fmt: skip
    title = "Figure 2: identifiability, 100 × 100 × 100, R = 3, F = 10, 80 % missing"
    if setting.teacher != "scaled":
        title += f"; {teacher.about}"
    return Outcome(title, header, rows, _identified(found), notes, _overlays(found))


def _by_network(made: dict[Arm, list[Record]]) -> dict[Kind, list[Record]]:
    """Fits by what the planted network turned out to be; the same network together."""
    found: dict[Kind, list[Record]] = {}
    for (_, start, order), fits in made.items():
        for one in fits:
            found.setdefault((_network(one), start, order), []).append(one)
    networks = list(dict.fromkeys(network for network, _, _ in found))
    return dict(sorted(found.items(), key=lambda item: networks.index(item[0][0])))


def _network(record: Record) -> str:
    """A planted network in words: its size where it was scaled, and whether it is dead where it was not."""
    if record["ratio"] is not None:
        return f"{record['ratio']:g}"
    return "dead" if record["teacher_zeros"] == 1 else "nearly constant"


def _identified(found: dict[Kind, list[Record]]) -> list[Finding]:
    """The claims of the paper, for every planted network and start."""
    findings = []
    for network, start in dict.fromkeys((network, start) for network, start, _ in found):
        where = f"(network: {network}, {start} start)"
        ours = {one["seed"]: one for one in found.get((network, start, "alternating, g first"), [])}
        naive = {one["seed"]: one for one in found.get((network, start, "naive"), [])}
        claim = f"components are recovered {where}"
        findings.append(answered(claim, recovered(list(ours.values())), len(ours), "tensors"))
        pairs = [(ours[seed]["rmse"], naive[seed]["rmse"]) for seed in ours if seed in naive]
        verdict, because = below_in_pairs(pairs)
        findings.append(Finding(f"alternating is better than naive {where}", ANSWERS[verdict], because))
    for network in dict.fromkeys(network for network, _, _ in found):
        errors = [one["rmse"] for kind, fits in found.items() for one in fits if kind[0] == network]
        claim = f"the test RMSE reaches {PLANTED_RMSE:g} (network: {network})"
        reached = sum(error < REACHED for error in errors)
        because = f"in {reached} of {len(errors)} fits, lowest {min(errors):.3g}"
        findings.append(Finding(claim, holds_or_not(reached > 0), because))
    return findings


def _overlays(found: dict[Kind, list[Record]]) -> dict[str, str]:
    """Planted and found components of the first mode, of the first fit whose record has them."""
    one = next((one for fits in found.values() for one in fits if "components" in one), None)
    if one is None:
        return {}
    pictures = {}
    pairs = zip(one["components"]["planted"], one["components"]["found"], strict=True)
    for k, (planted_, found_) in enumerate(pairs, 1):
        title = f"Component {k}, network {_network(one)}"
        lines = {"planted": list(enumerate(planted_)), "found": list(enumerate(found_))}
        pictures[title] = lines_as_svg(lines, title, kinds={"planted": "line", "found": "dots"})
    return pictures


def _recovery(fits: Sequence[Record]) -> tuple[str, ...]:
    """Cells of a row."""
    rmse, least = [one["rmse"] for one in fits], min(min(one["congruence"]) for one in fits)
    relative = median(one["rfe"] for one in fits)
    errors = [f"{one:.4g}" for one in (median(rmse), min(rmse), max(rmse), relative)]
    reached = sum(one < REACHED for one in rmse)
    return f"{recovered(fits)} of {len(fits)}", f"{least:.4f}", *errors, f"{reached} of {len(fits)}"


def _plant(setting: Setting, arm: Arm, seed: int) -> Record:
    ratio, start, order = arm
    parts, truth = planted(20 if setting.quick else 100, (3, 10), TEACHERS[setting.teacher], ratio, seed)
    recipe = make_recipe("paper", guesses=GUESSES[start], **ORDERS[order], **(QUICK if setting.quick else {}))
    found = run_one(parts, truth, recipe, (3, 10), seed=seed, device=setting.device)
    if (seed, start, order) != (0, "rank-one", "alternating, g first"):
        del found["components"]  # one fit is drawn
    return {"teacher": setting.teacher, "ratio": ratio, **found}
