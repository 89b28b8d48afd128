"""Figure 5 of the paper: how often does a method succeed from a random start?

    python -m jointensor.reproduce.success_rate TENSOR.npz … --out FOLDER --seeds 50 --jobs 2

A fit succeeds when its test RFE is below 1 and its predictions are not all the same. Every method is fitted
once per seed, alone and inside JULIA: from raw starts without restarts (standard normal factors, torch's own
layer defaults), and from robust starts (scales from the data, a lost start is made anew). Finished fits are
kept, so that the command can be run again to go on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jointensor.atomic import write_json, write_text, write_whole
from jointensor.errors import MissingPackageError
from jointensor.runs.compare import compare, finished_rows
from jointensor.runs.compare_fits import CompareConfig

METHODS = {
    "COSTCO": "costco:20",
    "JULIA-COSTCO (4/16)": "julia-costco:4/16",
    "NeurTN": "neurtn:10",
    "JULIA-NeurTN (2/8)": "julia-neurtn:2/8",
}
STARTS = {"raw": ",start=raw,restarts=0", "robust": ""}


def success_rates(
    source: Path,
    out: Path,
    *,
    seeds: int,
    jobs: int,
    device: str,
    changes: dict[str, Any] | None = None,
    finished: bool = False,
) -> list[dict[str, Any]]:
    """One row per method and start for one tensor; of what is ``finished`` already, or of all."""
    config = CompareConfig(
        source=str(source.resolve()),
        models=tuple(spec + option for spec in METHODS.values() for option in STARTS.values()),
        seeds=seeds,
        recipe_changes=changes or {},
        device=device,
    )
    rows = finished_rows(config, out) if finished else compare(config, out, jobs=jobs, on_fit=_progress)
    found = {row["model"]: row for row in rows}
    return [
        {"tensor": source.stem, "method": method, "start": start, **found[spec + option]}
        for method, spec in METHODS.items()
        for start, option in STARTS.items()
    ]


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table: successes, dead networks and median RMSE of every method, start and tensor."""
    lines = [
        "| tensor | method | start | success | without a restart | dead networks | median RMSE |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        succeeded, at_once = (round(row[key] * row["fits"]) for key in ("success_rate", "first_success_rate"))
        middle = "–" if row["rmse_median"] is None else f"{row['rmse_median']:.4g}"
        lines.append(
            f"| {row['tensor']} | {row['method']} | {row['start']} | {succeeded} of {row['fits']} "
            f"| {at_once} of {row['fits']} | {row['nonlinear_dead'] or '–'} | {middle} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars of the success rates, one panel per tensor."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise MissingPackageError("drawing needs matplotlib: pip install jointensor[plot]") from None

    tensors = list(dict.fromkeys(row["tensor"] for row in rows))
    figure = Figure(figsize=(4.2 * len(tensors), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(tensors), sharey=True, squeeze=False)[0]
    for panel, tensor in zip(panels, tensors, strict=True):
        for k, (start, colour) in enumerate(zip(STARTS, ("#c0392b", "#1f6f8b"), strict=True)):
            mine = [row for row in rows if row["tensor"] == tensor and row["start"] == start]
            places = [place + 0.38 * (k - 0.5) for place in range(len(mine))]
            panel.bar(places, [100 * row["success_rate"] for row in mine], 0.36, color=colour, label=f"{start} start")
        panel.set_xticks(range(len(METHODS)), [m.replace(" (", "\n(") for m in METHODS], fontsize=7)
        panel.set_title(tensor, fontsize=9)
    panels[0].set_ylabel("success rate, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, format="png")


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment, print its table and draw its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tensors", type=Path, nargs="+", metavar="TENSOR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    same = {"seeds": options.seeds, "jobs": options.jobs, "device": options.device}
    rows = [row for path in options.tensors for row in success_rates(path, options.out / path.stem, **same)]
    write_text(options.out / "success.md", as_markdown(rows))
    write_json(options.out / "success.json", rows)
    sys.stdout.write(as_markdown(rows))
    try:
        write_whole(options.out / "success.png", partial(draw, rows))
    except MissingPackageError as error:
        sys.stderr.write(f"no picture: {error}\n")


def _progress(record: dict[str, Any], done: int, total: int) -> None:
    if done % 20 == 0:
        sys.stderr.write(f"{done} of {total}: {record['model']}\n")


if __name__ == "__main__":
    main()
