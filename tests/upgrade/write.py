"""Write run folders with the version that this runs under, and what that version predicts.

    git worktree add /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src python tests/upgrade/write.py tests/upgrade/runs/COMMIT [KIND …]

Only the command line is used, which old versions have too; what a version does not know yet is left out. A folder keeps
what predictions need: not its pages, its history and the machine that it was made on.
"""

from __future__ import annotations

import csv
import datetime
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

KEPT = ("config.json", "labels.json", "metrics.json", "model.safetensors")
SHORT = ["--set", "warm_epochs=2", "--set", "rounds=1", "--set", "refine_epochs=3", "--set", "batch_size=64"]
PLAIN = ["ratings.csv", "--modes", "user,movie,day", "--value", "rating"]
DRAWN = ["--set", "linear_solver=gibbs", "--set", "draws=5", "--set", "burn_in=5", "--set", "thin=1"]
EVENTS = ["events.csv", "--mode", "user", "--mode", "day=day(time)", "--mode", "hour=hour(time)"]
FITS = {
    "joint": [*PLAIN, "--rank", "2/3", *SHORT],
    "blocks": [*PLAIN, "--linear", "mean+bias+cp:2", "--rank", "0/0", *SHORT],
    "costco": [*PLAIN, "--rank", "1/3", "--nonlinear", "costco", *SHORT],
    "tucker": [*PLAIN, "--linear", "mean+tucker:2", "--rank", "0/0", *SHORT],
    "gibbs": [*PLAIN, "--linear", "mean+bias+fm:2+cp:2", "--rank", "0/0", *SHORT, *DRAWN],
    "memory": [*PLAIN, "--linear", "mean+bias+cp:2+tables:user/movie+local:day", "--rank", "0/0", *SHORT],
    "auto": [*PLAIN, "--rank", "auto", "--budget", "1"],
    "expressions": [*EVENTS, "--value", "rating", "--duplicates", "mean", "--rank", "2/3", *SHORT],
}
"""Options of ``fit`` by name."""


def write_sources(folder: Path) -> None:
    """Ratings with labels that need care, events with times, and questions of both."""
    rng = random.Random(0)
    users, movies = [f"{n:04d}" for n in range(8)], ["Up", "Her", "a,b", "Ü", "7"]
    days = [datetime.date(2021, 1, 1) + datetime.timedelta(days=n) for n in range(6)]
    taste = {label: rng.gauss(0, 1) for label in [*users, *movies, *days]}
    rows = [
        (u, m, str(d), round(3 + taste[u] * taste[m] + taste[d] + rng.gauss(0, 0.1), 3))
        for u in users
        for m in movies
        for d in days
    ]
    rng.shuffle(rows)
    with (folder / "ratings.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "movie", "day", "rating"), *rows[:160]])
    asked = [row[:3] for row in rows[140:200]] + [("nobody", "Up", "2021-01-02"), ("0003", "Her", "1999-01-01")]
    with (folder / "queries.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "movie", "day"), *asked])
    events = [
        (
            u,
            f"{d} {rng.randrange(24):02d}:{rng.randrange(60):02d}:00",
            round(taste[u] + taste[d] + rng.gauss(0, 0.1), 3),
        )
        for u, _, d in rng.sample([(u, m, d) for u in users for m in movies for d in days], 200)
    ]
    with (folder / "events.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "time", "rating"), *events])
    with (folder / "events-queries.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("user", "time"), *(row[:2] for row in events[150:]), ("new", events[0][1])])


def run(folder: Path, *arguments: str) -> bool:
    """Run a command; whether it worked."""
    quiet = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "jointensor", *arguments], cwd=folder, env={**os.environ, **quiet}, capture_output=True
    )
    if done.returncode == 1:
        sys.stderr.write(done.stderr.decode(errors="replace")[-400:])
    return done.returncode == 0


def write(target: Path, kinds: list[str]) -> None:
    """Run folders of some kinds, those that this version can write."""
    with tempfile.TemporaryDirectory(prefix="upgrade-") as name:
        folder = Path(name)
        write_sources(folder)
        for kind in kinds:
            if not run(folder, "fit", *FITS[kind], "--out", kind, "--device", "cpu", "--quiet"):
                sys.stdout.write(f"{kind}: not in this version\n")
                continue
            queries = "events-queries.csv" if kind == "expressions" else "queries.csv"
            asked = ["predict", kind, queries, "--out", "answers.csv", "--quiet"]
            if not run(folder, *asked, "--interval", "0.9") and not run(folder, *asked):
                raise SystemExit(f"{kind}: it was fitted, and does not predict")
            (target / kind).mkdir(parents=True)
            for kept in KEPT:
                (target / kind / kept).write_bytes((folder / kind / kept).read_bytes())
            (target / kind / "queries.csv").write_bytes((folder / queries).read_bytes())
            (target / kind / "answers.csv").write_bytes((folder / "answers.csv").read_bytes())
            sys.stdout.write(f"{kind}: written\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve(), sys.argv[2:] or list(FITS))
