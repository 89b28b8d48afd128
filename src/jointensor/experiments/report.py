"""One page about a run that can be opened and sent on: figures, how training went, options."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from jointensor.training.history import Epoch

COLOURS = {
    "warm start": "#b07c00",
    "alternate: nonlinear": "#a03070",
    "alternate: linear": "#1f6f8b",
    "refine": "#2f7d32",
}
WIDTH, HEIGHT = 720, 240


def render_report(metrics: dict[str, Any], config: dict[str, Any], history: list[Epoch], tensor: str) -> str:
    """The page as text, self-contained: no scripts, no outside files."""
    template = files("jointensor.experiments").joinpath("report.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    return page.render(
        metrics=metrics,
        rows=figure_rows(metrics),
        config={k: json.dumps(v, ensure_ascii=False) for k, v in config.items()},
        curve=loss_curve(history),
        colours=COLOURS,
        tensor=tensor,
        number=lambda value: "–" if value is None else f"{value:.4g}",
        width=WIDTH,
        height=HEIGHT,
    )


def figure_rows(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per model, the joint model first, with its skill over the mean predictor."""
    part = "test" if metrics["test"] is not None else "valid"
    joint = metrics["returned"].get("joint", metrics)  # its own figures, where another model was returned
    name = "auto" if "auto" in metrics else "joint model"
    every = {name: joint[part], **{k: v[part] for k, v in metrics["baselines"].items()}}
    known = {name: figures for name, figures in every.items() if figures is not None}
    if not known:
        return []
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


def loss_curve(history: list[Epoch]) -> dict[str, Any] | None:
    """Points of the training and validation figures of the last attempt, scaled to the drawing."""
    rows = [row for row in history if row.attempt == history[-1].attempt] if history else []
    if len(rows) < 2:
        return None
    figures = [f for row in rows for f in (row.train_loss, row.valid_loss) if f is not None]
    low, high = min(figures), max(figures)
    span = (high - low) or 1.0

    def at(k: int, figure: float) -> tuple[float, float]:
        return round(k * WIDTH / (len(rows) - 1), 1), round(HEIGHT * (1 - (figure - low) / span), 1)

    return {
        "low": low,
        "high": high,
        "epochs": len(rows),
        "train": " ".join("{},{}".format(*at(k, row.train_loss)) for k, row in enumerate(rows)),
        "valid": [(*at(k, row.valid_loss), row.phase) for k, row in enumerate(rows) if row.valid_loss is not None],
    }
