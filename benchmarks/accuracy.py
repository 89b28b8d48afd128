"""Test RMSE of the paper recipe on real tensors, beside the baselines, on the standard split.

    python benchmarks/accuracy.py FOLDER --tensors ml_100k uber_apr_jun --ranks 4/16 20/0 0/20 --seeds 3

FOLDER holds the tensors as .npz. One row per tensor: mean, bias, tables, interp, then the models as mean ± standard
deviation over seeds. All models are trained by the same recipe, stopped by the same validation entries.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, stdev

import torch

from jointensor import JointModel, evaluate, fit, read_tensor, split
from jointensor.baselines import fit_baselines
from jointensor.cli.options import parse_rank
from jointensor.metrics import rmse


def one(job):
    folder, name, rank, seed, device, threads = job
    torch.set_num_threads(threads)
    parts = split(read_tensor(Path(folder) / f"{name}.npz").tensor)
    if rank is None:
        baselines = fit_baselines(parts).items()
        return {"tensor": name} | {k: rmse(b.predict(parts.test.indices), parts.test.values) for k, b in baselines}
    begin = time.perf_counter()
    result = fit(JointModel(parts.train.shape, parse_rank(rank)), parts, "paper", seed=seed, device=device)
    return {
        "tensor": name,
        "rank": rank,
        "seed": seed,
        "rmse": evaluate(result, parts.test)["rmse"],
        "outcome": result.outcome,
        "restarts": result.restarts,
        "nonlinear_dead": result.nonlinear_dead,
        "epochs": len(result.history),
        "seconds": round(time.perf_counter() - begin, 1),
        "parameters": result.model.n_parameters(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tensors", nargs="+", required=True)
    parser.add_argument("--ranks", nargs="+", default=["4/16", "20/0", "0/20"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    same = (options.device, options.threads)
    jobs = [(options.folder, name, None, 0, *same) for name in options.tensors]
    jobs += [
        (options.folder, name, rank, seed, *same)
        for name in options.tensors
        for rank in options.ranks
        for seed in range(options.seeds)
    ]
    rows = []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(one, jobs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    print(table(rows, options.tensors, options.ranks))


def table(rows, tensors, ranks):
    baselines = ("mean", "bias", "tables", "interp")
    lines = ["| tensor | " + " | ".join((*baselines, *ranks)) + " |", "|---" * (1 + len(baselines) + len(ranks)) + "|"]
    for name in tensors:
        mine = [row for row in rows if row["tensor"] == name]
        base = next(row for row in mine if "rank" not in row)
        cells = [f"{base[b]:.4g}" if b in base else "–" for b in baselines]
        for rank in ranks:
            figures = [row["rmse"] for row in mine if row.get("rank") == rank]
            cells.append(f"{mean(figures):.4g}" + (f" ± {stdev(figures):.2g}" if len(figures) > 1 else ""))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
