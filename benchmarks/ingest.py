"""Ingest of a table in chunks: seconds, processor time and peak memory of reading, sorting and merging its cells.

    git worktree add /tmp/beside 187ceff
    python benchmarks/ingest.py --rows 12e6 --beside /tmp/beside/src --out benchmarks/results/ingest.json

Rows of three modes, of which a few share a cell, become merged cells in the order of their indices
(:func:`jointensor.data.table_source.scan_table_source`), in a process of its own. ``--beside`` names another source
tree that does the same job; 187ceff sorts with DuckDB.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jointensor.atomic import write_json
from jointensor.bench.records import provenance

HERE = Path(__file__).parents[1] / "src"
MODES = {"user": 20_000, "item": 500, "day": 50}
SUFFIXES = ("csv", "parquet")

MAKE = """
import sys
import numpy as np, polars as pl
path, rows = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
columns = {name: rng.integers(int(size), size=rows, dtype=np.int32) for name, _, size in
           (mode.partition(":") for mode in sys.argv[3:])}
frame = pl.DataFrame(columns).with_columns(value=pl.Series(rng.standard_normal(rows).round(3)))
frame.write_csv(path) if path.endswith("csv") else frame.write_parquet(path)
"""

INGEST = """
import json, sys
from pathlib import Path
import numpy as np
from jointensor.data.formats import CHUNK_ROWS
from jointensor.data.frames import TableSpec
from jointensor.data.table_source import scan_table_source
path, scratch, *modes = sys.argv[1:]
source = scan_table_source(Path(path), TableSpec.of(modes, "value", duplicates="sum"), CHUNK_ROWS, Path(scratch))
total = sum(float(values.sum(dtype=np.float64)) for _, values in source.chunks())
print(json.dumps({"cells": source.entries, "total": round(total, 1)}))
"""


def measured(source: Path, path: Path, folder: Path) -> dict:
    """One ingest in a process of its own. This process is small: a child's peak memory starts at it."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    begin = time.perf_counter()
    command = [sys.executable, "-c", INGEST, str(path), str(folder / "cells"), *MODES]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the ingest of {path} by {source} failed")
    return {
        "file": path.suffix[1:], "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mb": round(usage.ru_maxrss * 1024 / 1e6),
        **json.loads(out),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=12e6)
    parser.add_argument("--beside", type=Path, help="another source tree")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sources = {"this": HERE} | ({} if args.beside is None else {"beside": args.beside})
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suffix in SUFFIXES:
            path = folder / f"table.{suffix}"
            modes = [f"{mode}:{size}" for mode, size in MODES.items()]
            subprocess.run([sys.executable, "-c", MAKE, str(path), str(int(args.rows)), *modes], check=True)
            for which, source in sources.items():
                runs.append({"source": which, **measured(source, path, folder)})
                print(runs[-1], flush=True)
            path.unlink()
    if args.out is not None:
        write_json(args.out, {**provenance(), "rows": int(args.rows), "runs": runs})


if __name__ == "__main__":
    main()
