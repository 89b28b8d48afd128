"""``report`` on files that somebody damaged: a page, or an error that names the file; never a traceback."""

import json
import random
import shutil

import pytest

from jointensor import write_tensor
from jointensor.data.synthetic import make_joint
from jointensor.errors import JointensorError
from jointensor.runs.compare import CompareConfig, compare
from jointensor.runs.config import RunConfig
from jointensor.runs.pipeline import run
from jointensor.runs.report import report

QUICK = {"refine_epochs": 2, "cycle": 2}
FILES = ("report.json", "metrics.json", "config.json", "environment.json")
STRANGE = (
    None, True, 0, -1, 10**400, -1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", "<b>", "\ud800", "7" * 99,
    [], [[]], [None], [1, "a"], {}, {"a": 1}, {"": {}},
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run with an ordered mode, a run without test entries, and a comparison."""
    folder = tmp_path_factory.mktemp("damage")
    write_tensor(make_joint((8, 7, 6), (2, 0), observed=250, noise=0.1, seed=1)[0], folder / "tensor.npz")
    given = {"source": str(folder / "tensor.npz"), "recipe_changes": QUICK}
    run(RunConfig(**given, rank=(2, 2), orders={"mode_2": "ordered"}, engine="reference"), folder / "run")
    run(RunConfig(**given, rank=(2, 0), test=0.0, engine="reference"), folder / "untested")
    compare(CompareConfig(**given, models=("mean", "bias", "cp:1"), seeds=1), folder / "compared")
    return folder


def places(data, path=()):
    """Where a mutation can happen: every value, by its keys."""
    yield path
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in members:
        yield from places(value, (*path, key))


def mutate(data, rng):
    """The data with one value replaced, removed, doubled or swapped for another's."""
    data = json.loads(json.dumps(data))
    every = [path for path in places(data) if path]
    depth = rng.choice(sorted({len(path) for path in every}))  # or most mutations would be deep in a long list
    *above, key = rng.choice([path for path in every if len(path) == depth])
    holder = data
    for step in above:
        holder = holder[step]
    action = rng.choice(("replace", "replace", "remove", "double"))
    if action == "remove":
        del holder[key]
    elif action == "double" and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = rng.choice(STRANGE)
    return data


def mutants(folder, names, count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        name = rng.choice(names)
        text = (folder / name).read_text(encoding="utf-8")
        cut_off = rng.random() < 0.1
        yield name, text, text[: rng.randrange(len(text))] if cut_off else json.dumps(mutate(json.loads(text), rng))


@pytest.mark.parametrize("kind", ["run", "untested", "compared"])
def test_a_damaged_folder_gives_a_page_or_an_error(folders, tmp_path, kind):
    folder = shutil.copytree(folders / kind, tmp_path / kind)
    names = FILES
    if kind == "compared":
        names = ("config.json", "environment.json", *(f"cells/{one.name}" for one in (folder / "cells").iterdir()))
    errors = []
    for name, text, damaged in mutants(folder, names, 100, seed=7):
        (folder / name).write_text(damaged, encoding="utf-8", errors="surrogatepass")
        (folder / "report.html").unlink(missing_ok=True)
        try:
            report(folder)
        except JointensorError as error:
            errors.append(str(error))
        else:
            assert (folder / "report.html").stat().st_size > 1000
        (folder / name).write_text(text, encoding="utf-8")
    assert len(errors) > 10
    assert all(str(folder) in one and len(one) < 600 for one in errors)
    report(folder)
