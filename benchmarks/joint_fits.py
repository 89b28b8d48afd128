"""Fits of joint models and of their halves by nested training, several at a time, in one record per tensor and split.

A record keeps every fit that has ended, so that a command that was stopped goes on where it stopped; a fit that failed
is made again. Models are named by R/F, network and changes of the recipe: ``4/16 julia``, ``4/0 none max_rank=128``.
"""

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from jointensor.atomic import write_json
from jointensor.bench.records import provenance
from jointensor.registry import parse_value

THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Model(NamedTuple):
    """R multilinear components beside a network of width F; either may be 0."""

    linear: int
    width: int
    network: str = "julia"

    def name(self, changes=()):
        words = [f"{self.linear}/{self.width}", self.network if self.width else "none", *changes]
        return " ".join(words)


class Task(NamedTuple):
    """One fit."""

    source: Path
    split: int
    model: Model
    changes: tuple[str, ...]
    """Of the recipe, NAME=VALUE each."""
    device: str
    seed: int


def fit_all(models, options):
    """Make the fits that no record has yet, ``options.jobs`` at a time; a record is written after each of them."""
    options.out.mkdir(parents=True, exist_ok=True)
    changes, records, waiting = tuple(options.changes), {}, []
    for split in options.splits:
        for source in options.sources:
            record = records[source, split] = _record(options.out, source, split)
            done = {name for name, one in record["fits"].items() if "error" not in one}
            waiting += [Task(source, split, model, changes, options.device, options.seed)
                        for model in dict.fromkeys(models) if model.name(changes) not in done]  # fmt: skip
    facts = provenance() | {"jobs": options.jobs, "seed": options.seed} if waiting else {}
    for task, found in _run(waiting, options.jobs):
        record, name = records[task.source, task.split], task.model.name(changes)
        if facts not in record["provenance"]:
            record["provenance"].append(facts)
        record["fits"][name] = found | {"provenance": record["provenance"].index(facts)}
        write_json(_path(options.out, task.source, task.split), record)
        print(f"{task.source.stem} split {task.split} {name}: {found}", flush=True)


def _path(folder, source, split):
    return folder / f"{source.stem}.{split}.json"


def _record(folder, source, split):
    """Fits of one tensor and split so far, by name, each with its place among the provenances."""
    path = _path(folder, source, split)
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    return {"tensor": source.stem, "split": split, "provenance": [], "fits": {}}


def _run(tasks, jobs):
    """Tasks and figures as they end; in processes of their own, which share the cores."""
    if not tasks:
        return
    cores = len(os.sched_getaffinity(0))
    os.environ.update(dict.fromkeys(THREADS, str(max(1, cores // jobs))))  # for processes that start from here on
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        started = {pool.submit(figures, task): task for task in tasks}
        for one in as_completed(started):
            yield started[one], one.result()


@lru_cache(maxsize=1)
def _parts(source, seed):
    from jointensor.data.formats import read_tensor
    from jointensor.data.split import split

    return split(read_tensor(source).tensor, seed=seed)


def figures(task):
    """Errors and seconds of one fit, or the error it ended with."""
    from jointensor.metrics import rmse
    from jointensor.models.joint import JointModel
    from jointensor.training.fit import fit
    from jointensor.training.recipe import make_recipe

    parts, (rank, width, network) = _parts(task.source, task.split), task.model
    pairs = [change.partition("=") for change in task.changes]
    changes = {name: parse_value(value) for name, _, value in pairs}
    begin = time.perf_counter()
    try:
        recipe = make_recipe("default", nested=True, fall_back=False, **changes)
        model = JointModel(parts.train.shape, (rank, width), linear=recipe.linear(rank), nonlinear=network)
        found = fit(model, parts, recipe, seed=task.seed, device=task.device)
    except Exception as error:  # noqa: BLE001 - the others go on
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    seconds = time.perf_counter() - begin
    errors = {name: float(rmse(found.predict(one.indices), one.values))
              for name, one in (("valid", parts.valid), ("test", parts.test))}  # fmt: skip
    return errors | {"seconds": seconds, "first": found.first, "rank": list(found.model.rank)}


def fits_in(folder):
    """Fits that ended, by tensor and split, then by name; and the provenances of all of them."""
    fits, facts = {}, []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        ended = {name: one for name, one in record["fits"].items() if "error" not in one}
        fits[record["tensor"], record["split"]] = ended
        facts += [record["provenance"][k] for k in sorted({one["provenance"] for one in ended.values()})]
    return fits, facts


def numbers(text):
    return [int(word) for word in text.split(",")]


def words(text):
    return text.split(",")


def add_options(parser, folder, splits):
    """Options of every command that fits joint models."""
    parser.add_argument("sources", type=Path, nargs="*")
    parser.add_argument("--splits", type=numbers, default=splits, help="seeds of the standard split: 0,1,2,3,4")
    parser.add_argument("--seed", type=int, default=0, help="of the fits")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time; they share the cores")
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", metavar="NAME=VALUE", help="of the recipe"
    )
    parser.add_argument("--table", action="store_true", help="print the table of all records, and fit nothing more")
    parser.add_argument("--out", type=Path, default=folder)
