"""The demo: an epidemic with gaps in its reporting, filled in by JULIA, CP and the network alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jointensor.data.epidemic import WHAT, Epidemic, make_epidemic
from jointensor.data.formats import write_table
from jointensor.data.frames import TableSpec, tensor_to_frame
from jointensor.data.queries import positions
from jointensor.errors import MissingPackageError
from jointensor.evaluation.components import draw_components, read_components
from jointensor.evaluation.pictures import BLUE, GREY, RED, save_picture
from jointensor.report.pages import figure_rows
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import Run, load_run, make_folder
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
    make_folder(out)
    for name, tensor in (("observed.csv", epidemic.observed), ("missing.csv", epidemic.missing)):
        write_table(tensor_to_frame(tensor, "number"), out / name)
    metrics = {}
    for name, (folder, rank) in MODELS.items():
        listener.on_note(f"— {name}")
        result = run(_config(out, rank, seed), out / folder, listener)
        metrics[name] = {} if result is None else result.to_dict()
    fitted = load_run(out / "run")
    complete_file(fitted, out / "filled.csv", where=None, on_note=listener.on_note)
    _pictures(fitted, epidemic, out, listener)
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
        draw_components(found, path / "components.png")
        save_picture(path / "regions.png", (11, 7), lambda figure: draw_places(figure, fitted, epidemic))
    except MissingPackageError as error:
        listener.on_note(f"no pictures: {error}")


def draw_places(figure: Any, fitted: Run, epidemic: Epidemic) -> None:
    """Reported, predicted and true values, for the places with the largest gaps."""
    gaps = np.bincount(epidemic.missing.indices[:, 0], minlength=len(epidemic.regions))
    regions = np.array(epidemic.regions)
    chosen = [max(np.flatnonzero(regions == r), key=lambda p: gaps[p]) for r in sorted(set(epidemic.regions))[:3]]
    panels = figure.subplots(len(chosen), len(WHAT), sharex=True)
    for row, place in enumerate(chosen):
        for what in range(len(WHAT)):
            _draw_series(panels[row, what], fitted, epidemic, int(place), what)
    panels[0, 0].legend(fontsize=7, frameon=False)
    panels[-1, 1].set_xlabel("day (shaded: not reported)", fontsize=8)


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
    panel.plot(epidemic.truth[place, what], color=GREY, linewidth=1, label="true")
    panel.plot(at, observed.values[seen], ".", color=BLUE, markersize=2, label="reported")
    panel.plot(np.flatnonzero(gap), filled, ".", color=RED, markersize=3, label="filled in")
    panel.set_title(f"{observed.modes[0].label(place)}: {WHAT[what]}", fontsize=9)
    panel.tick_params(labelsize=7)
