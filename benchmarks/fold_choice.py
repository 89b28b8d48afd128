"""Which entries are left out together: is the pattern found, from missing cells and from queries? Nothing is fitted.

    python ../shared/gaps.py runs/tasks
    python benchmarks/fold_choice.py --tasks runs/tasks --data ../shared/data --seeds 3

tasks   published imputation tasks: without queries, and with the test cells as queries
splits  of every tensor by time, by labels and by pairs of labels, with the test cells as queries
"""

import argparse
import time
from itertools import combinations
from pathlib import Path

from jointensor.atomic import write_json
from jointensor.bench.records import provenance
from jointensor.data.formats import read_tensor
from jointensor.data.split import (
    Asked,
    blocks_of,
    groups_of,
    in_words,
    pattern_of_gaps,
    pattern_of_queries,
    split,
    tail_of,
)
from jointensor.data.tensor import join

TENSORS = (
    "facebook_wall_1yr", "ml_100k", "ml_25m_first100k", "walmart_sales", "hangzhou_metro", "enron_sent", "uber_apr_jun",
    "nips_0_12", "nyc_taxi", "healthcare_hhs_county",
)  # fmt: skip
GAPS = {
    "random": ((), 1, 1),
    "hangzhou-days": ((0, 1), 1, 1),
    "blackout": ((1, 2), 3, 12),
    "nyc-days": ((0, 1, 2), 12, 48),
}
"""By task: modes of the groups, and the least and the largest number of neighbouring labels of the last one."""
OUT = Path(__file__).parent / "results" / "fold_choice.json"


def tasks(folder):
    for path in sorted(folder.glob("*.train.npz")):
        name = path.name.removesuffix(".train.npz")
        modes, least, most = next(one for kind, one in GAPS.items() if all(word in name for word in kind.split("-")))
        known, asked = (read_tensor(str(folder / f"{name}.{part}.npz")).tensor for part in ("train", "test"))
        tested = split(known, seed=0)
        for how, entries, cells in (
            ("missing cells", known, None),
            ("missing and test cells", join(tested.train, tested.valid), None),
            ("queries", known, asked.indices),
        ):
            found, seconds = timed(entries, cells, 0)
            blocks = blocks_of(found.groups)
            right = tuple(n for n, _ in blocks) == modes and (not modes or least <= blocks[-1][1] <= most)
            yield row(name, how, known, found, right, seconds)


def splits(data, seeds):
    for name in TENSORS:
        tensor = read_tensor(str(data / f"{name}.npz")).tensor
        rules = [("standard", ())]
        rules += [(f"time:{mode.name}", (n,)) for n, mode in enumerate(tensor.modes) if mode.order == "ordered"]
        rules += [(f"slices:{mode.name}", (n,)) for n, mode in enumerate(tensor.modes)]
        rules += [(f"group:{tensor.modes[a].name},{tensor.modes[b].name}", (a, b))
                  for a, b in combinations(range(tensor.n_modes), 2)]  # fmt: skip
        for rule, modes in rules:
            for seed in range(seeds if rule == "standard" or not rule.startswith("time") else 1):
                parts = split(tensor, rule=rule, seed=seed)
                known = join(parts.train, parts.valid)
                found, seconds = timed(known, parts.test.indices, seed)
                tail, groups = tail_of(found.groups), tuple(n for n, size in blocks_of(found.groups))
                plain = all(size == 1 for _, size in blocks_of(found.groups))
                right = groups == modes and plain and (tail is not None) == rule.startswith("time")
                # where nearly every group has one entry, groups are single entries
                right |= not found.groups and bool(modes) and groups_of(known, modes)[0] >= 0.9 * len(known)
                yield row(name, rule, known, found, right, seconds) | {"seed": seed}


def timed(known, cells, seed):
    begin = time.perf_counter()
    if cells is None:
        return pattern_of_gaps(known, seed), time.perf_counter() - begin
    return pattern_of_queries(known, Asked(cells, known.modes), seed), time.perf_counter() - begin


def row(name, how, tensor, found, right, seconds):
    chosen = in_words(found.groups, tensor.modes)
    print(f"{'' if right else 'NOT '}{name:24} {how:34} {chosen:48} {seconds:.1f} s", flush=True)
    return {"data": name, "asked": how, "chosen": chosen, "right": bool(right), "seconds": round(seconds, 2),
            "reason": found.in_words(tensor.modes), "difference": round(found.difference, 3),
            "difference_of_single_entries": round(found.difference_of_single, 3)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=Path, required=True, help="folder with TASK.train.npz and TASK.test.npz")
    parser.add_argument("--data", type=Path, required=True, help="folder with the tensors")
    parser.add_argument("--seeds", type=int, default=3, help="of splits that are drawn at random")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    facts = provenance()
    found = {"tasks": list(tasks(given.tasks)), "splits": list(splits(given.data, given.seeds))}
    for kind, rows in found.items():
        print(f"{kind}: {sum(one['right'] for one in rows)} of {len(rows)} as they were made")
    write_json(given.out, found | facts)


if __name__ == "__main__":
    main()
