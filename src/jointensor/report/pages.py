"""Render facts as a page: plots are drawn here, the text is in the templates."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from jointensor.evaluation.mask import SEEN, VALIDATES
from jointensor.report.plots import Plot, bars, dots_with_spread, raster, short
from jointensor.report.settings import SETTINGS

Facts = dict[str, Any]

PHASES = {
    "warm start": "p1", "warm start: nonlinear": "p2", "alternate: nonlinear": "p2", "alternate: linear": "p3",
    "draw": "p3", "draw: nonlinear": "p2", "refine": "p4",
}  # fmt: skip
"""Class of the dots of every phase."""

KINDS = {"p1": "warm start", "p2": "nonlinear part alone", "p3": "multilinear part alone", "p4": "refinement"}
"""Names of these classes in the legend."""

WORDS = {
    "RMSE": "root mean squared error, in the unit of the values",
    "MAE": "mean absolute error",
    "RFE": "errors relative to the size of the values: 0 is perfect, 1 no better than answering 0",
    "skill": "by how much RMSE is below that of the mean",
    "s/epoch": "seconds of a pass over the training entries",
    "success": "fits that learnt something: RFE below 1",
    "dead f": "fits whose nonlinear part ended as a constant",
}
"""Explanations of the figures."""

BASELINES = {
    "mean": "the mean of all values",
    "bias": "the mean and one number for every label",
    "tables": "means of combinations of labels, shrunk where entries are few",
    "interp": "straight lines between the nearest entries along an ordered mode",
}
"""Explanations of the baselines."""

RETURNED = {"auto": "auto", "mixture": "this fit"}
"""Names of models that are not one joint model, by what was returned."""

OUTCOMES = {"converged": "Converged", "budget": "Ended by its budget", "interrupted": "Interrupted"}
"""How a fit ended, in words; other outcomes are shown as they are."""


def render_run(facts: Facts, metrics: Facts, config: Facts, environment: Facts) -> str:
    """The page of a fit, or of a search."""
    quality = facts.get("quality")
    return _render(
        "run.html.j2",
        title=str(config.get("source", "")).rsplit("/", maxsplit=1)[-1],
        facts=facts,
        metrics=metrics,
        rows=(rows := figure_rows(metrics)),
        verdict=_verdict(rows),
        words=WORDS | BASELINES,
        config={k: json.dumps(v, ensure_ascii=False) for k, v in config.items()},
        environment=environment,
        command=_command(environment),
        values=_histogram(facts["data"]["values"]) if "data" in facts else None,
        modes=[(mode, _per_label(mode)) for mode in facts.get("data", {}).get("modes", [])],
        curves=[
            (one["attempt"] + 1, _curve(one, _loss(config)))
            for one in facts.get("history", [])
            if len(one["epochs"]) > 1
        ],
        legend=_legend(facts.get("history", [])),
        measure=_loss(config),
        against=_against(quality["points"]) if quality else None,
        errors=[(mode, _errors(mode)) for mode in quality["modes"]] if quality else [],
        calibration=_held(quality["calibration"]) if quality and quality["calibration"] else None,
        mask=_mask(facts["mask"]) if facts.get("mask") else None,
        components=[
            (
                one,
                [
                    _loading(mode, SETTINGS.quarter_width if len(one["modes"]) > 3 else SETTINGS.plot_size[0])
                    for mode in one["modes"]
                ],
            )
            for one in facts.get("components", [])
        ],
        series=[(one, _series(one, facts["series"]["axis"])) for one in (facts.get("series") or {}).get("series", [])],
        at_once=SETTINGS.components_shown,
        trials=_trials((metrics.get("search") or {}).get("trials", [])),
        notes=[note for note in metrics["notes"] if note != (metrics.get("search") or {}).get("reason")],
        beside=_beside(facts.get("filled")),
        outcome=_outcome(metrics["outcome"], config),
    )


def render_comparison(
    rows: Sequence[Facts], titles: Sequence[str], fields: Sequence[Sequence[str]], config: Facts, environment: Facts
) -> str:
    """The page of a comparison; ``fields`` are those of the rows as they are shown."""
    known = sorted((row for row in rows if row["rmse"] is not None), key=lambda row: row["rmse"])
    near = [
        row for row in known if row["rmse"] <= SETTINGS.max_error_ratio * known[0]["rmse"]
    ]  # one that failed would hide all others
    drawn = [(row["model"], row["rmse"], row["rmse_sd"]) for row in near]
    shown = [k for k in range(len(titles)) if any(one[k] != "–" for one in fields)]
    return _render(
        "comparison.html.j2",
        title=str(config.get("source", "")).rsplit("/", maxsplit=1)[-1],
        rows=list(zip(rows, [[one[k] for k in shown] for one in fields], strict=True)),
        titles=[titles[k] for k in shown],
        words=WORDS,
        accuracy=Markup(dots_with_spread(drawn, "test RMSE by model")) if drawn else None,
        far=[row["model"] for row in known if row not in near],
        failed=[row["model"] for row in rows if row["rmse"] is None],
        config={k: json.dumps(v, ensure_ascii=False) for k, v in config.items()},
        environment=environment,
        command=_command(environment),
    )


@cache
def _templates() -> Environment:
    folder = files("jointensor.report")
    return Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
    )


def _render(name: str, **values: Any) -> str:
    return _templates().get_template(name).render(number=short, **values)


def _command(environment: Facts) -> str:
    return shlex.join(["jointensor", *map(str, (environment.get("command") or [])[1:])])


def _phases(history: Sequence[Facts]) -> dict[str, str]:
    """Phases that occur, and their classes; unknown ones are drawn like refinement."""
    seen = dict.fromkeys(row["phase"] for one in history for row in one["epochs"])
    return {phase: PHASES.get(phase, "p4") for phase in seen}


def _outcome(outcome: str, config: Facts) -> str:
    if outcome == "budget" and config.get("budget") is None:  # of epochs: there was no limit in seconds
        return "Not yet converged when its recipe ended,"
    return OUTCOMES.get(outcome, outcome.capitalize())


def _beside(filled: Facts | None) -> bool:
    """Whether a prediction lies outside of its own interval."""
    rows = filled["rows"] if filled else []
    return any(row["interval"] and not row["interval"][0] <= row["value"] <= row["interval"][1] for row in rows)


def _legend(history: Sequence[Facts]) -> dict[str, str]:
    """Names of the phases that occur, and their classes."""
    return {KINDS[kind] if phase in PHASES else phase: kind for phase, kind in _phases(history).items()}


def _loss(config: Facts) -> str:
    """What the learning curves show."""
    name = (config.get("recipe_changes") or {}).get("loss", "squared")
    return "RMSE" if name == "squared" else f"{name} loss"


def _verdict(rows: Sequence[Facts]) -> str | None:
    """The table in a sentence or two."""
    mean = next((row for row in rows if row["model"] == "mean"), None)
    if mean is None or rows[0]["mae"] is None:
        return None
    ours, theirs = short(rows[0]["mae"]), short(mean["mae"])
    text = f"A prediction is off by {ours} on average; the mean of all values is off by {theirs}."
    best = next((row for row in rows if row["best"]), rows[0])
    if best["rmse"] < rows[0]["rmse"]:
        figures = f"RMSE {best['rmse']:.4g} against {rows[0]['rmse']:.4g}"
        text += f" The simple model “{best['model']}” is better here: {figures}."
    return text


def figure_rows(metrics: Facts) -> list[Facts]:
    """One row per model, the fitted one first, with its skill over the mean predictor."""
    part = "test" if metrics["test"] is not None else "valid"
    joint = metrics["returned"].get("joint", metrics)  # its own figures, where another model was returned
    name = RETURNED.get(metrics["returned"]["model"], "joint model")
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
    log = max(counts) > SETTINGS.log_count_ratio * (
        sorted(counts)[len(counts) // 2] + 1
    )  # a few columns would hide all others
    plot = _counted((edges[0], edges[-1]), max(counts), log=log, x_labels=None, title="value")
    return Markup(plot.columns(edges, counts).svg("histogram of the values"))


def _per_label(mode: Facts) -> Markup:
    name, top = f"entries per label of {mode['name']}", mode.get("top", [])
    if not mode["labels"] and len(top) == mode["size"]:  # few enough to name them all
        return Markup(bars([tuple(one) for one in top], name, texts=[f"{count:,}" for _, count in top]))
    title = mode["name"] if mode["labels"] else f"{mode['name']}, most frequent first"
    log = not mode["labels"] and mode["most"] > SETTINGS.log_count_ratio * (mode["median"] + 1)
    points = [(x, max(y, SETTINGS.log_zero) if log else y) for x, y in mode["curve"]]
    ends = (points[0][0], points[-1][0])
    plot = _counted(ends, max(y for _, y in points), log=log, x_labels=mode["labels"], title=title)
    return Markup(_drawn(plot, points).svg(name))


def _counted(x: tuple[float, float], most: float, *, log: bool, x_labels: Any, title: str) -> Plot:
    """Axes for numbers of entries."""
    titles = (title, "entries, logarithmic" if log else "entries")
    return Plot(x, (SETTINGS.log_zero if log else 0, most), x_labels=x_labels, titles=titles, log=log)


def _drawn(plot: Plot, points: Sequence[tuple[float, float]]) -> Plot:
    return plot.line(points) if len(points) > 1 else plot.dots(points)


def _curve(attempt: Facts, measure: str) -> Markup:
    rows = attempt["epochs"]
    figures = [f for row in rows for f in (row["train"], row["valid"]) if f is not None]
    low, high = min(figures), max(figures)
    log = 0 < low < high / SETTINGS.log_loss_ratio  # the first epochs would hide the last ones
    titles = ("epoch", measure + (", logarithmic" if log else ""))
    plot = Plot((1, rows[-1]["epoch"]), (low, high), titles=titles, size=SETTINGS.wide_plot_size, log=log)
    plot.line([(row["epoch"], row["train"]) for row in rows if row["train"] is not None], "grey")
    for phase, kind in _phases([attempt]).items():
        plot.dots([(r["epoch"], r["valid"]) for r in rows if r["phase"] == phase and r["valid"] is not None], kind)
    return Markup(plot.svg(f"{measure} by epoch, attempt {attempt['attempt'] + 1}"))


def _against(points: Sequence[Sequence[float]]) -> Markup:
    low, high = min(min(p) for p in points), max(max(p) for p in points)
    plot = Plot((low, high), (low, high), titles=("true value", "predicted"))
    plot.line([(low, low), (high, high)], "grey").dots([tuple(p) for p in points], "faint", 2)  # type: ignore[misc]
    return Markup(plot.svg("predicted against true values"))


def _errors(mode: Facts) -> Markup:
    if mode["curve"]:
        points = [tuple(point) for point in mode["curve"]]
        plot = Plot(
            (mode["labels"][0][0], mode["labels"][-1][0]), (0, max(y for _, y in points)), x_labels=mode["labels"],
            titles=(mode["name"], "RMSE"),
        )  # fmt: skip
        return Markup(_drawn(plot, points).svg(f"error along {mode['name']}"))
    rows = [(label, rmse) for label, rmse, _ in mode["worst"]]
    texts = [f"{short(rmse)} ({count:,})" for _, rmse, count in mode["worst"]]
    return Markup(bars(rows, f"error by label of {mode['name']}", texts=texts)) if rows else Markup("")


def _held(calibration: Sequence[Sequence[float]]) -> Markup:
    begin = SETTINGS.min_shown_level
    low = min(begin, *(share for _, share in calibration))
    plot = Plot((begin, 1), (low, 1), titles=("asked for", "inside"))
    plot.line([(begin, begin), (1, 1)], "grey").line([tuple(p) for p in calibration])  # type: ignore[misc]
    return Markup(plot.dots([tuple(p) for p in calibration], radius=3.5).svg("share inside intervals"))  # type: ignore[misc]


def _mask(mask: Facts) -> Markup:
    """Cells that are learnt from and cells that validate; what has no entry is left out."""
    classes = {str(SEEN): "bar one", str(VALIDATES): "bar two"}
    rows, columns = mask["modes"]
    return Markup(raster(mask["rows"], classes, mask["ends"], (rows, columns), f"cells of {rows} and {columns}"))


def _loading(mode: Facts, width: int) -> Markup:
    if mode["top"] is not None:
        return Markup(bars([tuple(one) for one in mode["top"]], f"loadings of {mode['name']}", width=width))
    points = [tuple(point) for point in mode["curve"]]
    heights = [0.0, *(y for _, y in points)]
    ends, size = (points[0][0], points[-1][0]), (width, SETTINGS.component_height)
    plot = Plot(ends, (min(heights), max(heights)), x_labels=mode["labels"], size=size)
    return Markup(_drawn(plot, points).svg(f"loadings along {mode['name']}"))


def _series(one: Facts, axis: Sequence[str]) -> Markup:
    """A stretch of a series: values that were seen, predictions of the others and their intervals."""
    filled = [point for run in one["filled"] for point in run]
    values = [v for point in (*one["seen"], *one["held"]) for v in point[1:]] + [point[1] for point in filled]
    low, high = min(values), max(values)
    room = SETTINGS.max_band_ratio * ((high - low) or abs(low) or 1.0)
    low, high = low - room, high + room  # a wide interval is cut: it would flatten everything else
    bands = [[(x, max(ends[0], low), min(ends[1], high)) for x, _, *ends in run if ends] for run in one["filled"]]
    heights = values + [end for band in bands for _, *ends in band for end in ends]
    along = [point[0] for point in (*one["seen"], *one["held"], *filled)]
    edge = SETTINGS.edge_share * (max(heights) - min(heights))  # dots are whole
    plot = Plot(
        (min(along), max(along)), (min(heights) - edge, max(heights) + edge),
        x_labels=[tuple(tick) for tick in one["ticks"]], titles=(" and ".join(axis), ""), size=SETTINGS.wide_plot_size,
    )  # fmt: skip
    for band, run in zip(bands, one["filled"], strict=True):
        (plot.band if len(band) > 1 else plot.stems)(band)
        if len(run) > 1:
            plot.line([(x, value) for x, value, *_ in run])
    plot.stems(one["held"], "grey").dots([(x, value) for x, value, *_ in filled], radius=1.8)
    plot.dots([(x, predicted) for x, _, predicted in one["held"]], radius=1.8)
    plot.dots([(x, value) for x, value, _ in one["held"]], "held", 2.5).dots(one["seen"], "grey", 1.8)
    name = ", ".join(label for _, label in one["labels"])
    return Markup(plot.svg(f"series {name}: seen and filled in"))


def _trials(trials: Sequence[Facts]) -> Facts | None:
    """What a search tried: a drawing of those that validated, and all rows, the best first."""
    known = sorted((one for one in trials if one["rmse"] is not None), key=lambda one: one["rmse"])
    if not known:
        return None
    near = [
        (one["name"], one["rmse"], one["spread"])
        for one in known
        if one["rmse"] <= SETTINGS.max_error_ratio * known[0]["rmse"]
    ]
    return {
        "plot": Markup(dots_with_spread(near, "RMSE of left-out entries by candidate")),
        "rows": [*known, *(one for one in trials if one["rmse"] is None)],
    }
