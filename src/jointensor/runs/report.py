"""``report.html`` of a folder: written with every fit and comparison, and again by ``jointensor report``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from jointensor.atomic import write_json, write_text
from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.report.facts import component_facts, data_facts, filled_facts, history_facts, mask_facts, quality_facts
from jointensor.report.pages import render_comparison, render_run
from jointensor.report.series import series_facts
from jointensor.report.settings import SETTINGS
from jointensor.runs.compare_table import TITLES, rows_of, shown_fields
from jointensor.runs.folder import CELLS, CONFIG, ENVIRONMENT, METRICS, read_object
from jointensor.training.history import Epoch

if TYPE_CHECKING:
    from jointensor.evaluation.evaluate import Entries
    from jointensor.evaluation.mask import Mask

FACTS, PAGE = "report.json", "report.html"


class Judged(NamedTuple):
    """The model that was evaluated, and on what."""

    predictor: JointPredictor | Ensemble
    """Another one than is kept, if that was refitted to all entries."""
    entries: Entries
    """That it was not trained on, of which there may be none."""
    calibrated: bool
    """Whether intervals were learnt from these entries."""
    together: NDArray[np.integer] | None = None
    """Group of each of these entries, where they were left out in groups."""


def write_run_report(
    path: Path,
    metrics: dict[str, Any],
    history: list[Epoch],
    tensor: SparseTensor,
    predictor: JointPredictor | Ensemble,
    judged: Judged,
    *,
    mask: Mask | None = None,
    entries: int | None = None,
) -> None:
    """Gather what the page shows, keep it as ``report.json``, and write the page.

    Parameters
    ----------
    path
        The run folder, with its configuration and environment.
    metrics
        What ``metrics.json`` will hold.
    history
        Epochs of all attempts.
    tensor
        All observed entries.
    predictor
        The model that was kept.
    judged
        The model that was evaluated.
    mask
        Which entries are learnt from, and which validate, if they are known.
    entries
        How many there are, where ``tensor`` is a sample of them.
    """
    facts: dict[str, Any] = {
        "data": data_facts(tensor),
        "history": history_facts(history),
        "quality": _quality(judged, tensor.modes),
        "mask": None if mask is None else mask_facts(mask),
        "components": component_facts(predictor.model, tensor.modes),
        "filled": filled_facts(predictor, tensor),
        "series": series_facts(predictor, tensor, judged.predictor, judged.entries) if entries is None else None,
    }
    if entries is not None:
        facts["data"] |= {"entries": entries, "density": entries / math.prod(tensor.shape)}
        if facts["data"]["density"] > SETTINGS.max_sampled_density:  # what is missing in a sample may well be there
            facts["filled"]["rows"] = []
    write_json(path / FACTS, facts)
    write_text(path / PAGE, render_run(facts, metrics, read_object(path / CONFIG), read_object(path / ENVIRONMENT)))


def _quality(judged: Judged, modes: Sequence[Mode]) -> dict[str, Any] | None:
    if not len(judged.entries[1]):
        return None
    return quality_facts(
        judged.predictor, modes, *judged.entries, calibrated=judged.calibrated, together=judged.together
    )


def report(path: Path) -> Path:
    """Write the page of a finished run or of a comparison again; returns where it is."""
    if not path.is_dir():
        raise RunError(f"there is no folder {path}")
    if (path / CELLS).is_dir():
        render = _comparison_page
    elif (path / METRICS).exists():
        render = _run_page
    else:
        raise RunError(f"{path} is neither a finished run nor a comparison: it has no {METRICS} and no {CELLS}/")
    try:
        write_text(path / PAGE, render(path))
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, TemplateError) as error:
        # its files were written by a run and are not checked one by one: whatever is wrong with them ends here
        reason = f"{type(error).__name__}: {error}"[:200]
        raise RunError(f"{path} is damaged: no page can be made of its files ({reason})") from None
    return path / PAGE


def write_comparison_report(path: Path) -> None:
    """Write the page of a comparison, from its fits."""
    write_text(path / PAGE, _comparison_page(path))


def _run_page(path: Path) -> str:
    facts = read_object(path / FACTS) if (path / FACTS).exists() else {}
    files = (path / name for name in (METRICS, CONFIG, ENVIRONMENT))
    return render_run(facts, *map(read_object, files))


def _comparison_page(path: Path) -> str:
    config = read_object(path / CONFIG)
    results = [read_object(file) for file in sorted((path / CELLS).glob("*.json"))]
    models = [model for model in config["models"] if any(one["model"] == model for one in results)]
    rows = rows_of(models, results)
    fields = [shown_fields(row) for row in rows]
    return render_comparison(rows, TITLES, fields, config, read_object(path / ENVIRONMENT))
