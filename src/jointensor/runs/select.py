"""``select``: validation error over a grid of multilinear and nonlinear ranks, and the simplest that is good enough.

The multilinear rank can be identified: with too few components a part of the values is missing, with too many
little is gained, and what is gained then is an approximation of the nonlinear part, component by small component. So R
is where the gains of the multilinear half alone break off. The nonlinear one cannot: networks of many widths represent
the same function, so F is only ever large enough.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import write_json, write_text, write_whole
from jointensor.data.split import Split, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_bias
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

NOISE, WORTH = 1.0, 0.005
"""Standard errors, and share of the least squared error, within which a simpler model is as good as the best."""

LITTLE = 0.02
"""Share of the least squared error below which gains of components do not differ."""

TITLES = ("R", "F", "rmse", "standard_error", "difference", "within", "parameters", "seconds")


@dataclass(frozen=True)
class Cell:
    """One R/F, and what it predicts for entries that were left out."""

    rank: tuple[int, int]
    errors: NDArray[np.float64]
    """Squared, one per left-out entry."""
    parameters: int
    seconds: float

    @property
    def rmse(self) -> float:
        """Root mean square over all left-out entries."""
        return math.sqrt(float(self.errors.mean()))


@dataclass(frozen=True)
class Selection:
    """The grid and the choice."""

    cells: list[Cell]
    chosen: tuple[int, int]
    best: tuple[int, int]
    identified: int | None = None
    """The multilinear rank, where R = 1, 2, … were tried without a network."""

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell, with the paired difference to the best one and its standard error."""
        lowest = next(cell for cell in self.cells if cell.rank == self.best)
        found = []
        for cell in self.cells:
            difference, noise = paired(cell.errors, lowest.errors)
            within = as_good(cell, lowest)
            found.append(
                dict(
                    zip(
                        TITLES,
                        (
                            *cell.rank, cell.rmse, noise, difference, within,
                            cell.parameters, cell.seconds,
                        ),
                        strict=True,
                    )
                )
            )  # fmt: skip
        return found


def select(
    tensor: SparseTensor,
    linear: Sequence[int],
    nonlinear: Sequence[int],
    *,
    folds: int = 2,
    starts: int = 2,
    seed: int = 0,
    device: str = "auto",
    engine: str = "auto",
    on_cell: Callable[[Cell], None] = lambda _: None,
) -> Selection:
    """Fit every R/F of a grid to folds of the entries and choose.

    Parameters
    ----------
    tensor
        The entries.
    linear, nonlinear
        Values of R and of F; both zero is left out.
    folds
        Fifths of the entries that are left out in turn, 1 to 5.
    starts
        Fits per fold from different random starts; the one that validates best counts.
    seed
        Of folds and starts.
    """
    grid = [(r, f) for r in linear for f in nonlinear if r or f]
    if not grid or not 1 <= folds <= 5 or starts < 1:
        raise ConfigError("select needs at least one R/F besides 0/0, 1 to 5 folds and at least one start")
    places = make_folds(tensor, (), seed)
    cells, without = [], []
    for fold in range(folds):
        train, valid = (tensor.take(np.flatnonzero(side)) for side in (places != fold, places == fold))
        without.append((fit_bias(train, valid).predict(valid.indices) - valid.values) ** 2)
    for rank in grid:
        begin = time.monotonic()
        errors, parameters = [], 0
        for fold in range(folds):
            parts = Split(
                tensor.take(np.flatnonzero(places != fold)),
                tensor.take(np.flatnonzero(places == fold)),
                tensor.take(np.zeros(0, dtype=np.int64)),
                rule="fold",
            )
            tried = [_errors(parts, rank, seed + start, device, engine) for start in range(starts)]
            best, parameters = min(tried, key=lambda one: float(one[0].mean()))
            errors.append(best)
        cells.append(Cell(rank, np.concatenate(errors), parameters, time.monotonic() - begin))
        on_cell(cells[-1])
    return choose(cells, float(np.mean(np.concatenate(without))))


def choose(cells: list[Cell], base: float | None = None) -> Selection:
    """The fewest components that are as good as the best; and the multilinear rank, if the error of none is known."""
    lowest = min(cells, key=lambda cell: cell.rmse)
    near = [cell for cell in cells if as_good(cell, lowest)]
    chosen = min(near, key=lambda cell: (sum(cell.rank), cell.rank[1]))
    return Selection(cells, chosen.rank, lowest.rank, None if base is None else identify(cells, base))


def as_good(cell: Cell, best: Cell) -> bool:
    """Whether a cell is within one standard error of the best, or so close that it does not matter."""
    difference, noise = paired(cell.errors, best.errors)
    return difference <= max(NOISE * noise, WORTH * float(best.errors.mean()))


def identify(cells: Sequence[Cell], base: float) -> int | None:
    """Where the gains of one more component break off.

    That is where the least gain so far is largest, compared with all later ones; so the last R that was tried is never
    the answer, nor the one before where there are many.

    Parameters
    ----------
    cells
        R = 1, 2, … with F = 0 among them; ``None`` is returned otherwise.
    base
        Squared error without any component.
    """
    alone = {cell.rank[0]: float(cell.errors.mean()) for cell in cells if cell.rank[1] == 0 and cell.rank[0]}
    if len(alone) < 2 or set(alone) != set(range(1, len(alone) + 1)):
        return None
    errors = [base, *(alone[r] for r in sorted(alone))]
    floor = LITTLE * min(errors)
    gains = [max(before - after, floor) for before, after in pairwise(errors)]
    last = len(gains) - (1 if len(gains) < 5 else 2)  # a single gain may be small by chance
    ratios = [min(gains[:k]) / max(gains[k:]) for k in range(1, last + 1)]
    return int(np.argmax(ratios)) + 1


def paired(errors: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of the differences of squared errors, and its standard error."""
    differences = errors - others
    return float(differences.mean()), float(differences.std() / math.sqrt(len(differences)))


def _errors(
    parts: Split, rank: tuple[int, int], seed: int, device: str, engine: str
) -> tuple[NDArray[np.float64], int]:
    recipe = make_recipe("default", fall_back=False, first="linear")
    model = JointModel(parts.train.shape, rank, linear=recipe.linear(rank[0]))
    found = fit(model, parts, recipe, seed=seed, device=device, engine=engine)
    error = found.predict(parts.valid.indices) - parts.valid.values
    return error.astype(np.float64) ** 2, model.n_parameters()


def write_selection(selection: Selection, out: Path) -> None:
    """``grid.csv``, ``grid.png`` and ``selection.json`` in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, TITLES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(selection.rows())
    write_text(out / "grid.csv", text.getvalue())
    found = {"chosen": selection.chosen, "best": selection.best, "identified_rank": selection.identified}
    write_json(out / "selection.json", found)
    write_whole(out / "grid.png", lambda draft: draw(selection, draft))


def draw(selection: Selection, path: Path) -> None:
    """Validation error over R, a line per F, as in figure 3 of the paper."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only for a picture

    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    for f in dict.fromkeys(cell.rank[1] for cell in selection.cells):
        mine = sorted((cell for cell in selection.cells if cell.rank[1] == f), key=lambda cell: cell.rank[0])
        panel.plot([cell.rank[0] for cell in mine], [cell.rmse for cell in mine], "o-", label=f"F = {f}")
    panel.axvline(selection.chosen[0], color="0.6", linestyle="--", linewidth=1)
    panel.annotate(f"R/F = {selection.chosen[0]}/{selection.chosen[1]}", (selection.chosen[0], 1.0), (4, -12),
                   xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=9)  # fmt: skip
    panel.set_xticks(sorted({cell.rank[0] for cell in selection.cells}))
    panel.set_xlabel("multilinear components R")
    panel.set_ylabel("RMSE of entries that were left out")
    panel.legend(frameon=False)
    figure.savefig(path, dpi=110, format="png")
