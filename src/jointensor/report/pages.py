"""Facts to a page: plots are drawn here, words are in the templates."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from jointensor.report.draw import Plot, bars, cut, dots_with_spread, short

Facts = dict[str, Any]

PHASES = {
    "warm start": "p1", "warm start: nonlinear": "p2", "alternate: nonlinear": "p2", "alternate: linear": "p3",
    "draw": "p3", "draw: nonlinear": "p2", "refine": "p4",
}  # fmt: skip
"""Class of the dots of every phase."""

FAR = 5
"""Times the least error that is still drawn."""

OUTCOMES = {"converged": "Converged", "budget": "Ended by its budget", "interrupted": "Interrupted"}
"""How a fit ended, in words; others speak for themselves."""

SMALL = (300, 150)
"""Size of the plots of components."""


def render_run(facts: Facts, metrics: Facts, config: Facts, environment: Facts) -> str:
    """The page of a fit, or of a search."""
    quality = facts.get("quality")
    return _render(
        "run.html.j2",
        title=str(config.get("source", "")).rsplit("/", maxsplit=1)[-1],
        facts=facts,
        metrics=metrics,
        rows=figure_rows(metrics),
        config={k: json.dumps(v, ensure_ascii=False) for k, v in config.items()},
        environment=environment,
        command=_command(environment),
        values=_histogram(facts["data"]["values"]) if "data" in facts else None,
        modes=[(mode, _per_label(mode)) for mode in facts.get("data", {}).get("modes", [])],
        curves=[(one["attempt"] + 1, _curve(one)) for one in facts.get("history", []) if len(one["epochs"]) > 1],
        phases=_phases(facts.get("history", [])),
        against=_against(quality["points"]) if quality else None,
        errors=[(mode, _errors(mode)) for mode in quality["modes"]] if quality else [],
        calibration=_held(quality["calibration"]) if quality and quality["calibration"] else None,
        components=[(one, [_loading(mode) for mode in one["modes"]]) for one in facts.get("components", [])],
        trials=_trials(metrics.get("auto", {}).get("trials", [])),
        notes=[note for note in metrics["notes"] if note != metrics.get("auto", {}).get("reason")],
        outcome=OUTCOMES.get(metrics["outcome"], metrics["outcome"].capitalize()),
    )


def render_comparison(
    rows: Sequence[Facts], titles: Sequence[str], cells: Sequence[Sequence[str]], config: Facts, environment: Facts
) -> str:
    """The page of a comparison; ``cells`` are the fields of the rows as they are shown."""
    known = sorted((row for row in rows if row["rmse"] is not None), key=lambda row: row["rmse"])
    near = [row for row in known if row["rmse"] <= FAR * known[0]["rmse"]]  # one that failed would hide all others
    drawn = [(row["model"], row["rmse"], row["rmse_sd"] or 0.0) for row in near]
    return _render(
        "comparison.html.j2",
        title=str(config.get("source", "")).rsplit("/", maxsplit=1)[-1],
        rows=list(zip(rows, cells, strict=True)),
        titles=titles,
        accuracy=Markup(dots_with_spread(drawn, "test RMSE by model")) if drawn else None,
        far=[row["model"] for row in known if row not in near],
        failed=[row["model"] for row in rows if row["rmse"] is None],
        config={k: json.dumps(v, ensure_ascii=False) for k, v in config.items()},
        environment=environment,
        command=_command(environment),
    )


def _render(name: str, **what: Any) -> str:
    folder = files("jointensor.report")
    page = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda one: folder.joinpath(one).read_text(encoding="utf-8")),
    ).get_template(name)
    return page.render(number=short, **what)


def _command(environment: Facts) -> str:
    return shlex.join(["jointensor", *map(str, (environment.get("command") or [])[1:])])


def _phases(history: Sequence[Facts]) -> dict[str, str]:
    """Those that occur, and their classes; one that nobody knows looks like refinement."""
    seen = dict.fromkeys(row["phase"] for one in history for row in one["epochs"])
    return {phase: PHASES.get(phase, "p4") for phase in seen}


def figure_rows(metrics: Facts) -> list[Facts]:
    """One row per model, the fitted one first, with its skill over the mean predictor."""
    part = "test" if metrics["test"] is not None else "valid"
    joint = metrics["returned"].get("joint", metrics)  # its own figures, where another model was returned
    name = "auto" if "auto" in metrics else "joint model"
    every = {name: joint[part], **{k: v[part] for k, v in metrics["baselines"].items()}}
    known = {name: figures for name, figures in every.items() if figures is not None}
    best = min((f["rmse"] for f in known.values() if f["rmse"] is not None), default=None)
    mean = known.get("mean", {}).get("rmse")  # a search without test entries has figures of its own alone
    return [
        {
            "model": name,
            "on": part,
            **{key: figures[key] for key in ("rmse", "mae", "rfe", "n")},
            "skill": None if not mean or figures["rmse"] is None else 1 - figures["rmse"] / mean,
            "best": figures["rmse"] == best,
        }
        for name, figures in known.items()
    ]


def _histogram(values: Facts) -> Markup:
    edges, counts = values["edges"], values["counts"]
    largest = max(counts)
    if largest > 50 * (sorted(counts)[len(counts) // 2] + 1):  # a few columns would hide all others
        heights = [math.log10(1 + count) for count in counts]
        titles = ("value", "log₁₀(1 + entries)")
    else:
        heights, titles = counts, ("value", "entries")
    plot = Plot((edges[0], edges[-1]), (0, max(heights)), titles=titles).columns(edges, heights)
    return Markup(plot.svg("histogram of the values"))


def _per_label(mode: Facts) -> Markup:
    points = [tuple(point) for point in mode["curve"]]
    last = max(mode["size"] - 1, 1)
    title = mode["name"] if mode["labels"] else f"{mode['name']}, most frequent first"
    plot = Plot(
        (0, last), (0, max(y for _, y in points)), x_labels=mode["labels"], titles=(title, "entries"), size=SMALL
    )
    return Markup(_drawn(plot, points).svg(f"entries per label of {mode['name']}"))


def _drawn(plot: Plot, points: Sequence[tuple[float, float]]) -> Plot:
    return plot.line(points) if len(points) > 1 else plot.dots(points)


def _curve(attempt: Facts) -> Markup:
    rows = attempt["epochs"]
    figures = [f for row in rows for f in (row["train"], row["valid"]) if f is not None]
    last = rows[-1]["epoch"]
    plot = Plot((1, last), (min(figures), max(figures)), titles=("epoch", "loss"), size=(640, 240))
    plot.line([(row["epoch"], row["train"]) for row in rows if row["train"] is not None], "grey")
    for phase, kind in _phases([attempt]).items():
        plot.dots([(r["epoch"], r["valid"]) for r in rows if r["phase"] == phase and r["valid"] is not None], kind)
    return Markup(plot.svg(f"loss by epoch, attempt {attempt['attempt'] + 1}"))


def _against(points: Sequence[Sequence[float]]) -> Markup:
    low, high = min(min(p) for p in points), max(max(p) for p in points)
    plot = Plot((low, high), (low, high), titles=("true value", "predicted"))
    plot.line([(low, low), (high, high)], "grey").dots([tuple(p) for p in points], "faint", 2)  # type: ignore[misc]
    return Markup(plot.svg("predicted against true values"))


def _errors(mode: Facts) -> Markup:
    if mode["curve"]:
        points = [tuple(point) for point in mode["curve"]]
        plot = Plot(
            (0, mode["labels"][-1][0]), (0, max(y for _, y in points)), x_labels=mode["labels"],
            titles=(mode["name"], "RMSE"),
        )  # fmt: skip
        return Markup(_drawn(plot, points).svg(f"error along {mode['name']}"))
    rows = [(f"{cut(label, 11)} ({count:,})", rmse) for label, rmse, count in mode["worst"]]
    return Markup(bars(rows, f"error by label of {mode['name']}")) if rows else Markup("")


def _held(calibration: Sequence[Sequence[float]]) -> Markup:
    low = min(0.4, *(share for _, share in calibration))
    plot = Plot((0.4, 1), (low, 1), titles=("asked for", "inside"))
    plot.line([(0.4, 0.4), (1, 1)], "grey").line([tuple(p) for p in calibration])  # type: ignore[misc]
    return Markup(plot.dots([tuple(p) for p in calibration], radius=3.5).svg("share inside intervals"))  # type: ignore[misc]


def _loading(mode: Facts) -> Markup:
    if mode["top"] is not None:
        return Markup(bars([tuple(one) for one in mode["top"]], f"loadings of {mode['name']}", width=SMALL[0]))
    points = [tuple(point) for point in mode["curve"]]
    heights = [0.0, *(y for _, y in points)]
    plot = Plot(
        (points[0][0], points[-1][0]), (min(heights), max(heights)), x_labels=mode["labels"], size=SMALL,
        titles=(mode["name"], ""),
    )  # fmt: skip
    return Markup(_drawn(plot, points).svg(f"loadings along {mode['name']}"))


def _trials(trials: Sequence[Facts]) -> Facts | None:
    """What a search tried: a drawing of those that validated, and all rows, the best first."""
    known = sorted((one for one in trials if one["rmse"] is not None), key=lambda one: one["rmse"])
    if not known:
        return None
    near = [(one["name"], one["rmse"], one["spread"] or 0.0) for one in known if one["rmse"] <= FAR * known[0]["rmse"]]
    return {
        "plot": Markup(dots_with_spread(near, "RMSE of left-out entries by candidate")),
        "rows": [*known, *(one for one in trials if one["rmse"] is None)],
    }
