"""Two versions of the library on the same tensors: test RMSE of the default fit and of `--rank auto`, side by side.

    git archive 2b03462 src benchmarks | tar x -C carry/v01
    python benchmarks/regression.py carry/v01 . --data carry/data --budget 60 --at-once 4 --out benchmarks/results

Each tree runs its own `benchmarks/auto.py` on the same split; jobs of both versions take turns, so that both meet the
same load. One JSON file with every figure, the commit of the tree that was run and the machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(tree, source, model, options):
    """Figures of one model on one tensor, by one tree."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "auto.py", source, "--only", model, "--specs", "julia:4/16", "--split-seeds", "1",
            "--first-split", options.split_seed,
            "--budget", options.budget, "--device", options.device, "--out", folder,
        ]  # fmt: skip
        path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(
            [str(word) for word in command], cwd=tree / "benchmarks", env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.json")]
    if len(found) != 1:
        return {"rmse": None, "error": done.stderr[-500:]}
    return {key: found[0].get(key) for key in ("rmse", "mae", "seconds", "error")}


def compare(options):
    sources = sorted(path for path in options.data.glob("*.npz") if "labels" not in path.name)
    sources = [path.resolve() for path in sources if not options.tensors or path.stem in options.tensors]
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    jobs = [(source, model, name) for model in options.models for source in sources for name in trees]
    rows = {(source.stem, model): {} for source, model, _ in jobs}

    def work(job):
        source, model, name = job
        found = run(trees[name], source, model, options)
        rows[source.stem, model][name] = found
        print(
            f"{source.stem} {model} {name}: {found['rmse']} {found.get('seconds')} {found.get('error') or ''}",
            flush=True,
        )

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(work, jobs))
    return [{"tensor": tensor, "model": model, **found} for (tensor, model), found in rows.items()]


def table(rows):
    """Lines of Markdown."""
    yield "| tensor | model | before | after | change | seconds before | seconds after |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for row in rows:
        before, after = (row[name]["rmse"] for name in ("before", "after"))
        change = f"{after / before - 1:+.2%}" if before and after else "–"
        seconds = " | ".join(f"{row[name].get('seconds') or 0:.0f}" for name in ("before", "after"))
        yield f"| {row['tensor']} | {row['model']} | {before} | {after} | {change} | {seconds} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tensors", nargs="*")
    parser.add_argument("--models", nargs="*", default=["julia:4/16", "auto"])
    parser.add_argument("--split-seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--commit", default="unknown", help="of the tree `after`, where git cannot be asked")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    rows = compare(options)
    facts = {"commit": options.commit, "budget": options.budget, "at_once": options.at_once}
    facts |= {"split_seed": options.split_seed}
    facts |= {"machine": platform.platform(), "cpus": os.cpu_count(), "device": options.device}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "regression.json"
    path.write_text(json.dumps(facts | {"rows": rows}, indent=2) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
