"""Cases that go through the command line: a source in some format, a fit with random options, and what is promised
of the run folder and of its answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from jointensor import SparseTensor, read_tensor, split, write_tensor
from jointensor.cli import main
from jointensor.data.formats import read_table, write_table
from jointensor.data.frames import TableSpec
from jointensor.data.queries import read_queries
from jointensor.runs.folder import Run, load_run
from tests.soak.parts import ENDINGS, NETWORKS, close
from tests.soak.tensors import as_cells, random_tensor

TABLES = ("csv", "tsv", "parquet", "arrow", "feather", "jsonl")


class Refused(Exception):
    """A command exited with an error message."""


def command(*arguments: object) -> str:
    """Run a command in this process and return its output."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["jointensor", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        if stop.code:
            said = err.getvalue().strip()
            assert said.splitlines()[-1].startswith("error: "), f"no error of its own: {said}"
            raise Refused(said.splitlines()[-1]) from None
    finally:
        sys.argv = before
    return out.getvalue()


def random_blocks(rng: np.random.Generator, names: tuple[str, ...], solver: str) -> str:
    """Blocks of g; tucker is trained by gradients, so it is combined with mean and biases only."""
    one, two = (str(name) for name in rng.permutation(names)[:2])
    pieces = ["mean", "bias", f"cp:{rng.integers(1, 4)}", "pairs:2", "fm:2", f"smooth:{one}"]
    if solver == "adam":
        pieces.append("tucker:2")
    chosen = [piece for piece in pieces if rng.random() < 0.4]
    if "fm:2" in chosen and rng.random() < 0.3:
        chosen.append(f"implicit:{one}/{two}")
    if rng.random() < 0.2:
        chosen.append(str(rng.choice(("tables", f"tables:{one}/{two}"))))
    if rng.random() < 0.15:
        chosen.append(f"local:{one}")
    return "+".join(chosen if any(c[:2] not in ("sm", "lo", "ta", "im") for c in chosen) else ["mean", *chosen])


def random_options(rng: np.random.Generator, names: tuple[str, ...], entries: int, *, positive: bool) -> list[str]:
    """Options of ``fit`` that fit together."""
    solver = str(rng.choice(("als", "als", "gibbs", "adam")))
    recipe = str(rng.choice(("default", "default", "paper")))
    loss = str(rng.choice(("squared",) * 5 + ("absolute", "huber") + (("kl",) if positive else ())))
    small = {
        "linear_solver": solver, "warm_epochs": rng.integers(0, 3), "rounds": rng.integers(0, 3), "sweeps": 3,
        "refine_epochs": rng.integers(0, 4), "batch_size": rng.choice((0, 16, 64)), "restarts": rng.integers(0, 2),
        "burn_in": 2, "draws": 4, "thin": 1, "first": rng.choice(("linear", "nonlinear", "auto")),
    }  # fmt: skip
    if rng.random() < 0.3:
        small["fall_back"] = str(rng.choice(("true", "false")))
    if rng.random() < 0.1:
        small["training"] = "naive"
    given = ["--recipe", recipe, "--loss", loss]
    for name, value in small.items():
        given += ["--set", f"{name}={value}"]
    width = int(rng.choice((0, 0, 2, 4)))
    if rng.random() < 0.7:
        given += ["--rank", f"0/{width}", "--linear", random_blocks(rng, names, solver)]
    else:
        given += ["--rank", f"{rng.integers(0 if width else 1, 4)}/{width}"]
    given += ["--nonlinear", str(rng.choice(NETWORKS))] if width else []
    rules = ("standard",) * 4 + (f"first:{max(1, entries // 2)}", f"slices:{names[0]}", f"time:{names[-1]}", f"group:{names[0]},{names[1]}")  # fmt: skip # noqa: E501
    given += ["--split", str(rng.choice(rules)), "--split-seed", rng.integers(5), "--seed", rng.integers(5)]
    share = str(rng.choice(("0.2", "0.2", "0.4", "0")))
    given += ["--test", "0.2" if given[given.index("--split") + 1].startswith("first") else share]
    given += ["--valid", str(rng.choice(("0.1", "0.1", "0.3", "0")))]
    given += ["--engine", str(rng.choice(("auto", "reference", "numba"))), "--device", "cpu", "--quiet"]
    return [*map(str, given), *(["--refit"] if rng.random() < 0.2 else [])]


def digest(run: Path) -> str:
    """Of the numbers that predict."""
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def runs(rng: np.random.Generator, folder: Path) -> str:
    """Fit, then check everything that a run folder promises."""
    tensor, kind = random_tensor(rng)
    ending = str(rng.choice(ENDINGS))
    source = folder / f"source.{ending}"
    write_tensor(tensor, source)
    table = not ending.startswith(("npz", "tns"))
    reading = ["--modes", ",".join(tensor.mode_names), "--value", "value"] if table else []
    spec = TableSpec.of(list(tensor.mode_names), "value") if table else None
    read = read_tensor(source, spec).tensor  # what the commands will see: labels without entries are gone
    options = random_options(rng, read.mode_names, len(read), positive=bool((read.values >= 0).all()))
    first = folder / "run"
    command("fit", source, "--out", first, *reading, *options)
    run = load_run(first)
    _metrics(rng, run, read, options, folder, table=table)
    _answers(rng, run, read, folder)
    _completed(rng, run, read, folder)
    other = "rows in another order" if table and rng.random() < 0.5 else "again"
    if other != "again":
        frame = read_table(source)
        write_table(frame[rng.permutation(frame.height)], source)
    command("fit", source, "--out", folder / "again", *reading, *options)
    assert digest(folder / "again") == digest(first), f"{other}: another model"
    return f"runs {kind}"


def strict(path: Path) -> Any:
    """Parse JSON and refuse NaN and infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{path.name} holds {name}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def _metrics(
    rng: np.random.Generator, run: Run, tensor: SparseTensor, options: list[str], folder: Path, *, table: bool
) -> None:
    """Figures of metrics.json are finite and equal those of the stored model on the same split."""
    metrics = strict(run.path / "metrics.json")
    for name in ("config.json", "labels.json", "environment.json"):
        strict(run.path / name)

    def given(name: str) -> str:
        return options[options.index(name) + 1]

    parts = split(
        tensor, rule=given("--split"), test=float(given("--test")), valid=float(given("--valid")),
        seed=int(given("--split-seed")),
    )  # fmt: skip
    counts = {name: len(getattr(parts, name)) for name in ("train", "valid", "test")}
    assert metrics["entries"] == {**counts, "all": len(tensor)}
    assert (metrics["test"] is None) == (len(parts.test) == 0)
    if metrics["returned"]["refit"]:
        return  # the figures are of the model before it
    for name, part in (("test", parts.test), ("valid", parts.valid)):
        if not len(part):
            continue
        errors = run.predictor.predict(part.indices).astype(np.float64) - part.values
        expected = {"rmse": math.sqrt(np.mean(errors**2)), "mae": np.mean(np.abs(errors)), "n": len(part)}
        _same_figures(metrics[name], expected, _rounding(part), f"metrics.json, {name}")
    if len(parts.test):
        path = folder / f"test.{rng.choice(TABLES if table else ('npz',))}"
        write_tensor(parts.test, path)
        command("evaluate", run.path, path, "--out", folder / "figures.json", "--quiet")
        _same_figures(strict(folder / "figures.json"), metrics["test"], _rounding(parts.test), "evaluate")


def _rounding(part: SparseTensor) -> float:
    """How far numbers of 32 bits may differ between batches."""
    return 1e-6 * float(np.abs(part.values).max()) + 1e-30


def _same_figures(found: dict[str, Any], expected: dict[str, Any], off: float, what: str) -> None:
    for name, figure in expected.items():
        if isinstance(figure, int | float):
            wrong = f"{what}: {name} is {found[name]}, not {figure}"
            assert math.isclose(found[name], figure, rel_tol=1e-4, abs_tol=off), wrong


def _queries(rng: np.random.Generator, tensor: SparseTensor) -> pl.DataFrame:
    """Observed cells, missing cells and unseen labels, in random order."""
    asked = [[mode.label(int(rng.integers(mode.size))) for mode in tensor.modes] for _ in range(30)]
    asked += [[m.label(int(i)) for m, i in zip(tensor.modes, row, strict=True)] for row in tensor.indices[:20]]
    for row in asked[:5]:
        row[int(rng.integers(tensor.n_modes))] = "never heard of"
    frame = pl.DataFrame(asked, schema=dict.fromkeys(tensor.mode_names, pl.String), orient="row")
    return frame[rng.permutation(len(asked))].with_row_index("note")


def _answers(rng: np.random.Generator, run: Run, tensor: SparseTensor, folder: Path) -> None:
    """Predictions are the same in chunks and whole, by file and by library, in order, with their intervals."""
    frame = _queries(rng, tensor)
    path, out = (folder / f"{name}.{rng.choice(TABLES)}" for name in ("queries", "answers"))
    write_table(frame, path)
    level = [] if run.predictor.calibration is None else ["--interval", f"{rng.uniform(0.05, 0.99):.3f}"]
    command("predict", run.path, path, "--out", out, "--quiet", *level)
    answers = read_table(out).with_columns(pl.col("prediction").cast(pl.Float32))
    assert answers["note"].cast(pl.Int64).to_list() == frame["note"].to_list(), "the queries' order"
    indices = read_queries(path, run.modes, run.spec, values=False).indices
    expected = run.predictor.predict(indices)
    np.testing.assert_array_equal(answers["prediction"].to_numpy(), expected, err_msg=f"{path.name} to {out.name}")
    assert np.isfinite(expected).all(), "a prediction that is not finite"
    alone = np.array([run.predictor.predict(row[None])[0] for row in indices[:6]])
    close(alone, expected[:6], 1e-4, "entries asked for one by one")
    unseen = answers["unseen"].cast(pl.String).str.to_lowercase() == "true"
    np.testing.assert_array_equal(unseen.to_numpy(), run.predictor.unseen(indices))
    assert unseen.to_numpy()[(indices < 0).any(axis=1)].all(), "an unknown label that is not called unseen"
    _archive(run, indices[(indices >= 0).all(axis=1)], folder)
    if level:
        lower, upper = (answers[name].cast(pl.Float32).to_numpy() for name in ("lower", "upper"))
        assert np.isfinite(lower).all(), "an end that is not finite"
        assert np.isfinite(upper).all(), "an end that is not finite"
        assert (lower <= upper).all(), "ends that are not in order"
        ends = run.predictor.interval(indices, float(level[1]))
        np.testing.assert_array_equal(np.stack([lower, upper], axis=1), ends)


def _archive(run: Run, indices: np.ndarray, folder: Path) -> None:
    """An archive of queries returns the same indices with the same predictions."""
    np.savez(folder / "queries.npz", indices=indices)
    command("predict", run.path, folder / "queries.npz", "--out", folder / "answers.npz", "--quiet")
    with np.load(folder / "answers.npz") as arrays:
        np.testing.assert_array_equal(arrays["indices"], indices)
        np.testing.assert_array_equal(arrays["values"], run.predictor.predict(indices))


def _completed(rng: np.random.Generator, run: Run, tensor: SparseTensor, folder: Path) -> None:
    """``complete`` is ``predict`` on the same cells, with the observed values where there are some."""
    cells = math.prod(tensor.shape)
    if cells > 20_000:
        return
    out = folder / f"complete.{rng.choice(('csv', 'parquet', 'jsonl'))}"
    command("complete", run.path, "--all", "--out", out, "--quiet")
    frame = read_table(out)
    assert frame.height == cells, f"complete wrote {frame.height} of {cells} cells"
    indices = np.stack(np.unravel_index(np.arange(cells), tensor.shape), axis=1)
    labels = [mode.decode(indices[:, n]) for n, mode in enumerate(tensor.modes)]
    for mode, texts in zip(tensor.modes, labels, strict=True):
        assert frame[mode.name].cast(pl.String).to_list() == texts, f"labels of {mode.name}"
    predicted = run.predictor.predict(indices)
    close(frame["prediction"].cast(pl.Float32).to_numpy(), predicted, 1e-5, "complete")
    seen = np.zeros(tensor.shape, dtype=bool)
    seen[tuple(tensor.indices.T)] = True
    value = np.where(seen.ravel(), 0, predicted)
    value[np.ravel_multi_index(tuple(tensor.indices.T), tensor.shape)] = tensor.values
    close(frame["value"].cast(pl.Float32).to_numpy(), value, 1e-5, "complete's values")
    _where(rng, run, tensor, folder)
    if seen.all():
        return
    top = folder / "top.parquet"
    command("complete", run.path, "--top", 7, "--out", top, "--quiet")
    found = read_table(top)["prediction"].to_numpy()
    close(found, np.sort(predicted[~seen.ravel()])[::-1][:7], 1e-5, "complete --top", np.abs(predicted).max())


def _where(rng: np.random.Generator, run: Run, tensor: SparseTensor, folder: Path) -> None:
    """A condition on one label selects the cells of that label."""
    n = int(rng.integers(tensor.n_modes))
    label = tensor.modes[n].label(int(rng.integers(tensor.shape[n])))
    quoted = label.replace("'", "''")
    condition = f"{tensor.mode_names[n]} = '{quoted}'"
    command("complete", run.path, "--where", condition, "--out", folder / "where.parquet", "--quiet")
    found = read_table(folder / "where.parquet")[tensor.mode_names[n]].cast(pl.String)
    assert found.to_list() == [label] * (math.prod(tensor.shape) // tensor.shape[n]), f"--where {condition}"


def tables(rng: np.random.Generator, folder: Path) -> str:
    """Raw events: modes by expressions, repeated cells by every rule, a test file; cells by a dictionary in Python."""
    n = int(rng.integers(40, 200))
    hours = np.datetime64("2021-03-01T00") + rng.integers(0, 24 * 9, size=n)
    users, values = rng.choice(["ann", "Bob", "01", "1", "x y"], size=n), np.round(rng.normal(size=n), 3)
    rule = str(rng.choice(("sum", "mean", "count", "last")))
    cells: dict[tuple[str, str, str], list[float]] = {}
    for user, hour, value in zip(users, hours, values, strict=True):
        text = str(hour)
        cells.setdefault((user.upper(), text[:10], str(int(text[11:13]))), []).append(float(value))
    reduce = {"sum": sum, "mean": lambda x: sum(x) / len(x), "count": len, "last": lambda x: x[-1]}[rule]
    frame = pl.DataFrame({"who": users, "at": [f"{h}:00:00".replace("T", " ") for h in hours], "v": values})
    source, test = (folder / f"{name}.{rng.choice(TABLES)}" for name in ("events", "test"))
    write_table(frame, source)
    write_table(frame[rng.permutation(n)[:60]], test)
    modes = ["--mode", "user=UPPER(who)", "--mode", "day=day(at)", "--mode", "hour=hour(at)"]
    given = [*modes, "--value", "v", "--duplicates", rule, "--rank", "1/0", "--device", "cpu", "--quiet"]
    command("fit", source, *given, "--test-file", test, "--out", folder / "run")
    spec = TableSpec.of([text for text in modes if "=" in text], "v", duplicates=rule)
    read = read_tensor(source, spec).tensor
    found, expected = as_cells(read), {cell: float(reduce(x)) for cell, x in cells.items()}
    assert found.keys() == expected.keys(), f"{rule}: other cells"
    close(np.array([found[cell] for cell in expected]), np.array(list(expected.values())), 1e-6, rule)
    run = load_run(folder / "run")
    strict(run.path / "metrics.json")
    _completed(rng, run, read, folder)
    out = folder / f"answers.{rng.choice(TABLES)}"
    command("predict", run.path, test, "--out", out, "--quiet")
    indices = read_queries(test, run.modes, run.spec, values=False).indices
    predicted = read_table(out)["prediction"].cast(pl.Float32).to_numpy()
    np.testing.assert_array_equal(predicted, run.predictor.predict(indices))
    return f"tables {rule}"


def auto(rng: np.random.Generator, folder: Path) -> str:
    """``--rank auto`` with a few fits: its folder satisfies the same promises."""
    tensor, kind = random_tensor(rng, most=120)
    source = folder / "source.csv"
    write_tensor(tensor, source)
    spec = TableSpec.of(list(tensor.mode_names), "value")
    read = read_tensor(source, spec).tensor
    reading = ["--modes", ",".join(tensor.mode_names), "--value", "value"]
    given = [
        "--rank",
        "auto",
        "--budget-fits",
        rng.choice((3, 8)),
        "--device",
        "cpu",
        "--quiet",
        "--seed",
        rng.integers(9),
    ]
    command("fit", source, "--out", folder / "run", *reading, *given)
    run = load_run(folder / "run")
    strict(run.path / "metrics.json")
    _answers(rng, run, read, folder)
    _completed(rng, run, read, folder)
    return f"auto {kind}"
