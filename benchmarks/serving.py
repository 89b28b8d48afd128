"""`predict` from Parquet to Parquet beside a hand-written PyTorch loop: queries per second and peak memory.

    python benchmarks/serving.py --queries 1e6 1e7 --threads 2 --out benchmarks/results/serving.json

The model is JULIA 4/16 with random weights over 100,000 × 20,000 × 1,000 labels (texts), in a run folder of its own;
queries are drawn evenly. Both sides run alternately, each in a process of its own, with the same number of torch
threads; seconds are those of predicting, from opening the queries to the finished file, without imports and without
loading the model. The peak is the resident set of the whole process, libraries included. On a machine that others use,
the ratio of CPU seconds is steadier than that of seconds; that reading, predicting and writing overlap is not in it.

    rival       pandas reads the queries, dictionaries (`Series.map`) make indices of labels, a plain nn.Module is asked
                in batches under `inference_mode`, pandas writes the answer. Its batch size is the best of BATCHES
                on the smallest file, in the same run. It has no flag for labels that were never seen.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from jointensor.bench.records import provenance

SHAPE, NAMES = (100_000, 20_000, 1_000), ("user", "movie", "day")
BATCHES = (1024, 2048, 4096, 8192, 32768)


def make_run(path, seed=0):
    """A run folder with a random model."""
    import torch

    from jointensor.atomic import write_json
    from jointensor.data.frames import TableSpec
    from jointensor.data.modes import Mode
    from jointensor.models.joint import JointModel
    from jointensor.predictors.joint import JointPredictor
    from jointensor.predictors.tables import Table, Tables
    from jointensor.runs.folder import CONFIG, finish_run, write_model

    torch.manual_seed(seed)
    model = JointModel(SHAPE, (4, 16), linear="cp:4").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    tables = [Table((n,), (size,), np.arange(size), np.zeros(size + 1)) for n, size in enumerate(SHAPE)]
    modes = tuple(Mode(name, size, tuple(labels(name, size))) for name, size in zip(NAMES, SHAPE, strict=True))
    path.mkdir()
    write_json(path / CONFIG, {})
    predictor = JointPredictor(model, Tables(0.0, tuple(tables), (10.0,) * len(SHAPE)))
    files = write_model(path, predictor, modes, TableSpec.of(NAMES, "value"), [])
    finish_run(path, {"files": files})


def labels(name, size):
    return [f"{name}-{k:06d}" for k in range(size)]


def make_queries(path, count, seed=1):
    import polars as pl

    generator = np.random.default_rng(seed)
    columns = [
        pl.Series(name, labels(name, size)).gather(pl.Series(generator.integers(0, size, count)))
        for name, size in zip(NAMES, SHAPE, strict=True)
    ]
    pl.DataFrame(columns).write_parquet(path)


def ours(run, queries, out):
    from jointensor.runs.folder import load_run
    from jointensor.runs.predict import predict_file

    loaded = load_run(run)
    return lambda: predict_file(loaded, queries, out)


def rival(run, queries, out, batch):
    import pandas as pd
    import torch
    from torch import nn

    from jointensor.runs.folder import load_run  # weights and labels only

    loaded = load_run(run)
    source = loaded.predictor.model

    class Julia(nn.Module):
        def __init__(self):
            super().__init__()
            part = source.nonlinear.part
            self.a = nn.ModuleList(nn.Embedding.from_pretrained(one.clone()) for one in source.linear_factors)
            self.b = nn.ModuleList(nn.Embedding.from_pretrained(one.clone()) for one in source.nonlinear_factors)
            self.mlp, self.gate, self.head = part.mlp, part.gate, part.head

        def forward(self, indices):
            a = [table(indices[:, n]) for n, table in enumerate(self.a)]
            b = [table(indices[:, n]) for n, table in enumerate(self.b)]
            product, mixed = torch.relu(b[0] * b[1] * b[2]), self.mlp(torch.cat(b, dim=1))
            blended = self.gate * product + (1 - self.gate) * mixed
            return (a[0] * a[1] * a[2]).sum(dim=1) + torch.relu(self.head(blended)).squeeze(-1)

    model = Julia().eval()
    places = [{label: k for k, label in enumerate(mode.labels)} for mode in loaded.modes]

    def loop():
        table = pd.read_parquet(queries)
        columns = [table[name].map(place).to_numpy() for name, place in zip(NAMES, places, strict=True)]
        indices = torch.as_tensor(np.stack(columns, axis=1))
        parts = []
        with torch.inference_mode():
            for start in range(0, len(indices), batch):
                parts.append(model(indices[start : start + batch]))
        table["prediction"] = torch.cat(parts).numpy()
        table.to_parquet(out, index=False)

    return loop


def one_side(options):
    """In a process of its own: seconds and peak memory of one side."""
    import torch
    from timing import clock, peak_mib

    torch.set_num_threads(options.threads)
    side = ours if options.side == "ours" else rival
    more = () if options.side == "ours" else (options.batch,)
    work = side(options.run, options.file, options.answers, *more)
    taken = clock(work)
    print(json.dumps({"seconds": taken.seconds, "cores": taken.cores, "peak_mib": peak_mib()}))


def measured(side, folder, queries, threads, batch=0):
    command = [sys.executable, __file__, "--side", side, "--run", folder / "run", "--file", queries]
    command += ["--answers", folder / f"{side}.parquet", "--threads", threads, "--batch", batch]
    variables = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=True, env=variables)
    return json.loads(done.stdout.splitlines()[-1])


def compared(folder, count, threads, batch, passes):
    import polars as pl

    queries = folder / f"{count}.parquet"
    make_queries(queries, count)
    pairs = [[measured(s, folder, queries, threads, batch) for s in ("ours", "rival")] for _ in range(passes)]
    answers = [pl.read_parquet(folder / f"{side}.parquet")["prediction"].to_numpy() for side in ("ours", "rival")]
    assert np.allclose(*answers, rtol=1e-4, atol=1e-4), "the two do not say the same"
    row = {"queries": count, "passes": passes}
    for k, side in enumerate(("ours", "rival")):
        seconds = float(np.median([pair[k]["seconds"] for pair in pairs]))
        row[side] = {
            "seconds": seconds,
            "queries_per_second": count / seconds,
            "peak_mib": max(pair[k]["peak_mib"] for pair in pairs),
            "cpu_seconds": float(np.median([pair[k]["seconds"] * pair[k]["cores"] for pair in pairs])),
        }
    row["ratio"] = float(np.median([pair[1]["seconds"] / pair[0]["seconds"] for pair in pairs]))
    row["cpu_ratio"] = row["rival"]["cpu_seconds"] / row["ours"]["cpu_seconds"]
    return row


def told(side):
    rate = f"{side['queries_per_second']:>10,.0f} queries/s"
    return f"{side['seconds']:7.2f} s {rate}  {side['cpu_seconds']:7.2f} CPU s  peak {side['peak_mib']:6,.0f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=float, nargs="+", default=[1e6, 3e6, 1e7])
    parser.add_argument("--threads", type=int, default=1, help="of torch, for both")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--out", type=Path)
    for hidden, kind in (("--side", str), ("--run", Path), ("--file", Path), ("--answers", Path), ("--batch", int)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        one_side(options)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_run(folder / "run")
        counts = sorted(int(count) for count in options.queries)
        make_queries(folder / "few.parquet", min(counts[0], 1_000_000))
        tried = {b: measured("rival", folder, folder / "few.parquet", options.threads, b)["seconds"] for b in BATCHES}
        batch = min(tried, key=tried.get)
        print(f"rival's batch size: {batch}, of {', '.join(f'{b}: {s:.2f} s' for b, s in tried.items())}", flush=True)
        rows = []
        for count in counts:
            rows.append(compared(folder, count, options.threads, batch, options.passes))
            print(f"{count:>12,} queries   ratio {rows[-1]['ratio']:.2f}, of CPU seconds {rows[-1]['cpu_ratio']:.2f}")
            for side, name in (("ours", "jointensor"), ("rival", "PyTorch loop")):
                print(f"    {name:14}{told(rows[-1][side])}", flush=True)
    if options.out:
        from jointensor.atomic import write_json

        settings = {"shape": SHAPE, "model": "julia 4/16", "threads": options.threads, "rival_batch": batch}
        write_json(options.out, provenance() | settings | {"rival_batches": tried, "rows": rows})


if __name__ == "__main__":
    main()
