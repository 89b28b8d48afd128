"""The demo: an epidemic with gaps in its reporting, filled in by JULIA, CP and the network alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jointensor.atomic import write_whole
from jointensor.data.epidemic import WHAT, Epidemic, make_epidemic
from jointensor.data.formats import write_table
from jointensor.data.frames import TableSpec, tensor_to_frame
from jointensor.data.queries import positions
from jointensor.errors import MissingPackageError
from jointensor.evaluation.components import draw_components, read_components
from jointensor.report.pages import figure_rows
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import Run, load_run, new_folder
from jointensor.runs.pipeline import run
from jointensor.runs.predict import complete_file

MODELS = {"JULIA 4/16": ("run", (4, 16)), "CP 20": ("run-cp", (20, 0)), "network 20": ("run-network", (0, 20))}
"""Same total number of components, multilinear/nonlinear."""


def run_demo(out: Path, *, seed: int = 0, listener: Listener | None = None) -> list[dict[str, Any]]:
    """Generate, fit, compare and write everything; returns the rows of the comparison.

    The models see what was reported and are judged on what was not.
    """
    listener = listener or Listener()
    epidemic = make_epidemic(seed)
    with new_folder(out) as path:
        (path / "checkpoints").rmdir()
        for name, tensor in (("observed.csv", epidemic.observed), ("missing.csv", epidemic.missing)):
            write_table(tensor_to_frame(tensor, "number"), path / name)
        metrics = {}
        for name, (folder, rank) in MODELS.items():
            listener.on_note(f"— {name}")
            result = run(_config(path, rank, seed), path / folder, listener)
            metrics[name] = {} if result is None else result.to_dict()
        fitted = load_run(path / "run")
        complete_file(fitted, path / "filled.csv", where=None, on_note=listener.on_note)
        _pictures(fitted, epidemic, path, listener)
    return _rows(metrics)


def _config(path: Path, rank: tuple[int, int], seed: int) -> RunConfig:
    table = TableSpec.of(["place", "what", "day"], "number").to_dict()
    source, missing = (str((path / name).resolve()) for name in ("observed.csv", "missing.csv"))
    return RunConfig(source=source, table=table, test_file=missing, rank=rank, seed=seed)


def _rows(metrics: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One table of all models and, once, the baselines."""
    tables = {name: figure_rows(one) for name, one in metrics.items()}
    rows = [{**table[0], "model": name} for name, table in tables.items()]
    rows += next(iter(tables.values()))[1:]
    best = min(row["rmse"] for row in rows)
    return [{**row, "on": "missing", "best": row["rmse"] == best} for row in rows]


def _pictures(fitted: Run, epidemic: Epidemic, path: Path, listener: Listener) -> None:
    try:
        found = read_components(fitted.predictor.model.linear_factors, fitted.modes)  # type: ignore[union-attr]
        write_whole(path / "components.png", lambda draft: draw_components(found, draft))
        write_whole(path / "regions.png", lambda draft: draw_places(fitted, epidemic, draft))
    except MissingPackageError as error:
        listener.on_note(f"no pictures: {error}")


def draw_places(fitted: Run, epidemic: Epidemic, path: Path) -> None:
    """What was reported, what was filled in and what was true, for the places with the largest gaps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    gaps = np.bincount(epidemic.missing.indices[:, 0], minlength=len(epidemic.regions))
    regions = np.array(epidemic.regions)
    chosen = [max(np.flatnonzero(regions == r), key=lambda p: gaps[p]) for r in sorted(set(epidemic.regions))[:3]]
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(chosen), len(WHAT), sharex=True)
    for row, place in enumerate(chosen):
        for what in range(len(WHAT)):
            _draw_series(panels[row, what], fitted, epidemic, int(place), what)
    panels[0, 0].legend(fontsize=7, frameon=False)
    panels[-1, 1].set_xlabel("day (shaded: not reported)", fontsize=8)
    figure.savefig(path, dpi=110, format="png")


def _draw_series(panel: Any, fitted: Run, epidemic: Epidemic, place: int, what: int) -> None:
    observed = epidemic.observed
    days = observed.shape[2]
    seen = (observed.indices[:, :2] == (place, what)).all(axis=1)
    at = observed.indices[seen, 2]
    gap = np.ones(days, dtype=np.bool_)
    gap[at] = False
    cells = np.array([(place, what, day) for day in np.flatnonzero(gap)])
    filled = fitted.predictor.predict(positions(cells, observed.modes, fitted.modes))  # the run orders its own labels
    panel.fill_between(range(days), 0, 1, where=gap, transform=panel.get_xaxis_transform(), color="#f3e9d2", step="mid")
    panel.plot(epidemic.truth[place, what], color="#9aa7b4", linewidth=1, label="true")
    panel.plot(at, observed.values[seen], ".", color="#1f6f8b", markersize=2, label="reported")
    panel.plot(np.flatnonzero(gap), filled, ".", color="#c0392b", markersize=3, label="filled in")
    panel.set_title(f"{observed.modes[0].label(place)}: {WHAT[what]}", fontsize=9)
    panel.tick_params(labelsize=7)
