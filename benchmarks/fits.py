"""`jointensor fit` as a newcomer runs it, or `--rank auto`, on some tensors and splits; one process at a time.

    python benchmarks/fits.py ../shared/data/walmart_sales.npz --splits 0,1,2,3,4 --out benchmarks/results/fits
    python benchmarks/fits.py ../shared/data/*_metro.npz --options "--rank auto --budget 300" --name auto_300

One JSON record per tensor and split, with figures, members, seconds, commit, versions, machine and options; those that
are there already are kept. `--table` prints the table of all records. Nothing is chosen by test entries.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev

from jointensor.bench.records import kept, origin, records_in

RESULTS = Path(__file__).with_name("results")


def fit(source, split, options):
    """One run; its figures, or the error it ended with."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["fit", str(source), "--split-seed", str(split), "--quiet", "--out", f"{folder}/run", *options]
        done = subprocess.run([sys.executable, "-m", "jointensor", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1:]}
        metrics = json.loads(Path(folder, "run", "metrics.json").read_text(encoding="utf-8"))
    trials = (metrics["search"] or {}).get("trials", [])
    return {
        "test": metrics["test"], "valid": metrics["valid"], "baselines": metrics["baselines"],
        "seconds": metrics["seconds"], "steps": metrics["steps"], "outcome": metrics["outcome"],
        "device": metrics["device"], "trials": trials, "reason": (metrics["search"] or {}).get("reason"),
    }  # fmt: skip


def fitted(source, split, options):
    """The record of one run."""
    about = {"tensor": source.stem, "split": split, "options": options}
    return about | fit(source.resolve(), split, shlex.split(options))


def behind(record):
    """RMSE over that of the best baseline on the test entries."""
    best = min(one["test"]["rmse"] for one in record["baselines"].values() if one["test"])
    return record["test"]["rmse"] / best


def table(folder, name="default"):
    """Figures over splits, a row per tensor, from the records."""
    records = {}
    for record in records_in(folder, f"*.{name}.json"):
        records.setdefault(record["tensor"], []).append(record)
    rows = [
        "| tensor | splits | RMSE | over the best baseline, worst split | seconds, median |",
        "|---|---:|---:|---:|---:|",
    ]
    for tensor, found in records.items():
        errors = [one["test"]["rmse"] for one in found]
        spread = f" ± {stdev(errors):.2g}" if len(errors) > 1 else ""
        seconds = median(one["seconds"] for one in found)
        rows.append(
            f"| {tensor} | {len(found)} | {mean(errors):.4g}{spread} | {max(map(behind, found)):.3f} | {seconds:.0f} |"
        )
    return "\n".join([*rows, "", origin([one for found in records.values() for one in found])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--table", action="store_true", help="print the table of all records, and fit nothing")
    parser.add_argument("--splits", default="0", help="seeds of the standard split: 0,1,2,3,4")
    parser.add_argument("--options", default="", help="further options of fit")
    parser.add_argument("--name", default="default", help="of the records")
    parser.add_argument("--out", type=Path, default=RESULTS / "fits")
    given = parser.parse_args()
    if given.table:
        print(table(given.out, given.name))
        return
    print("| tensor | split | RMSE | over the best baseline | seconds |\n|---|---:|---:|---:|---:|")
    for source in given.sources:
        for split in map(int, given.splits.split(",")):
            path = given.out / f"{source.stem}.{split}.{given.name}.json"
            record = kept(path, partial(fitted, source, split, given.options))
            if "error" in record:
                print(f"| {source.stem} | {split} | {record['error']} | | |", flush=True)
                continue
            figures = f"{record['test']['rmse']:.4g} | {behind(record):.3f} | {record['seconds']:.0f}"
            print(f"| {source.stem} | {split} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
