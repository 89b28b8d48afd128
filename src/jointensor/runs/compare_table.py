"""The result of a comparison: rows of figures, as CSV, as Markdown and as two pictures."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from jointensor.evaluation.pictures import BLUE, GREY, RED, save_picture

COLUMNS = (
    "model", "rmse", "rmse_sd", "mae", "rfe", "skill", "parameters", "seconds", "seconds_per_epoch", "success_rate",
    "first_success_rate", "rmse_median", "mae_sd", "rfe_sd", "fits", "restarts", "nonlinear_dead", "not_converged",
)  # fmt: skip
"""Columns of ``results.csv``. ``skill`` is 1 − RMSE / RMSE of the mean predictor; ``success_rate`` the share of fits
with a test RFE below 1 that learnt something, ``first_success_rate`` of those without a restart; ``nonlinear_dead`` how
many ended with a constant network, ``not_converged`` how many the budget ended, of epochs or seconds."""


def rows_of(models: Sequence[str], fits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per model, in the order of ``models``; figures are means over fits, ``_sd`` their standard deviation."""
    rows = [_row(model, [one for one in fits if one["model"] == model]) for model in models]
    lowest = min((row["rmse"] for row in rows if row["rmse"] is not None), default=None)
    return [row | {"best": row["rmse"] is not None and row["rmse"] == lowest} for row in rows]


def _row(model: str, fits: list[dict[str, Any]]) -> dict[str, Any]:
    judged = [one for one in fits if one["test"] is not None and one["test"]["rmse"] is not None]
    figures = {key: [one["test"][key] for one in judged] for key in ("rmse", "mae", "rfe")}
    skills = [1 - one["test"]["rmse"] / one["mean_rmse"] for one in judged if one["mean_rmse"]]
    row = {key: _mean(values) for key, values in figures.items()}
    row |= {f"{key}_sd": _spread(values) for key, values in figures.items()}
    return {
        "model": model,
        **row,
        "rmse_median": median(figures["rmse"]) if judged else None,
        "skill": _mean(skills),
        "parameters": judged[0]["parameters"] if judged else None,
        "seconds": _mean([one["seconds"] for one in judged]),
        "seconds_per_epoch": _mean([one["seconds_per_epoch"] for one in judged if "seconds_per_epoch" in one]),
        "success_rate": _mean([one["success"] for one in fits]),
        "first_success_rate": _mean([one["success"] and not one.get("restarts") for one in fits]),
        "fits": len(fits),
        "judged": len(judged),
        "restarts": sum(one.get("restarts", 0) for one in fits),
        "nonlinear_dead": sum(one.get("nonlinear_dead", False) for one in fits),
        "not_converged": sum(one.get("outcome") == "budget" for one in fits),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _spread(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) > 1 else None


def as_csv(rows: Sequence[dict[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """A table as text; an unknown figure is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


TITLES = ("model", "RMSE", "MAE", "RFE", "skill", "parameters", "seconds", "s/epoch", "success", "dead f")


def shown_fields(row: dict[str, Any], *, short: bool = False) -> list[str]:
    """The row's fields as they are shown, in the order of :data:`TITLES`; ``short`` shows the spread of RMSE only."""
    return [
        row["model"],
        *(_with_spread(row[k], None if short and k != "rmse" else row[f"{k}_sd"]) for k in ("rmse", "mae", "rfe")),
        "–" if row["skill"] is None else f"{100 * row['skill']:+.1f} %",
        "–" if row["parameters"] is None else f"{row['parameters']:,}",
        _plain(row["seconds"], 3),
        _plain(row["seconds_per_epoch"], 2),
        f"{100 * row['success_rate']:.0f} %",
        str(row["nonlinear_dead"] or "–"),
    ]


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table as Markdown, the best model in bold."""
    lines = ["| " + " | ".join(TITLES) + " |", "|---" + "|---:" * (len(TITLES) - 1) + "|"]
    for row in rows:
        fields = shown_fields(row)
        lines.append("| " + " | ".join(f"**{field}**" if row["best"] else field for field in fields) + " |")
    return "\n".join(lines) + "\n"


def _with_spread(value: float | None, spread: float | None) -> str:
    return _plain(value, 4) + ("" if value is None or spread is None else f" ± {spread:.2g}")


def _plain(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """``accuracy.png``: RMSE with its spread. ``accuracy_time.png``: RMSE against the time of a fit."""
    known = [row for row in rows if row["rmse"] is not None]
    size = (8, 1.6 + 0.32 * max(len(known), 8))
    save_picture(path / "accuracy.png", size, lambda figure: _draw_accuracy(figure.subplots(), known))
    save_picture(path / "accuracy_time.png", size, lambda figure: _draw_time(figure.subplots(), known))


def _draw_accuracy(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    for place, row in enumerate(reversed(rows)):
        colour = RED if row["best"] else BLUE
        panel.errorbar(row["rmse"], place, xerr=row["rmse_sd"] or 0.0, fmt="o", color=colour, capsize=3, markersize=5)
    panel.set_yticks(range(len(rows)), [row["model"] for row in reversed(rows)], fontsize=8)
    panel.set_xlabel("test RMSE, mean and standard deviation over fits")
    panel.grid(axis="x", color="#e3e8ec")


def _draw_time(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Models as points; baselines, whose time is negligible, as lines where they lie in the picture."""
    models = [row for row in rows if row["seconds_per_epoch"] is not None] or list(rows)
    for place, row in enumerate(models):
        colour = RED if row["best"] else BLUE
        seconds = max(row["seconds"], 1e-3)
        panel.errorbar(seconds, row["rmse"], yerr=row["rmse_sd"] or 0.0, fmt="o", color=colour, capsize=3, markersize=5)
        offset = (5, 4) if place % 2 else (5, -9)  # labels of neighbours apart
        panel.annotate(row["model"], (seconds, row["rmse"]), offset, textcoords="offset points", fontsize=7)
    panel.set_xscale("log")
    panel.margins(x=0.15)
    low, high = panel.get_ylim()
    for row in rows:
        if row not in models and low - (high - low) < row["rmse"] < high + (high - low):
            panel.axhline(row["rmse"], color=GREY, linewidth=1, linestyle="--")
            panel.text(0.01, row["rmse"], row["model"], fontsize=7, transform=panel.get_yaxis_transform(), va="bottom")
    panel.set_xlabel("seconds per fit")
    panel.set_ylabel("test RMSE")
    panel.grid(color="#e3e8ec")
