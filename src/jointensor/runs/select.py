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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import write_json, write_text, write_whole
from jointensor.data.split import Split, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, RunError
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_bias
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

MAX_STANDARD_ERRORS, TOLERANCE = 1.0, 0.005
"""Standard errors, and share of the least squared error, within which a simpler model is as good as the best."""

MIN_GAIN = 0.02
"""Share of the least squared error below which gains of components do not differ."""

RECIPE = make_recipe("default", fall_back=False, first="linear")
"""How every R/F is fitted: as it is, without falling back to a baseline."""

TITLES = ("R", "F", "rmse", "standard_error", "difference", "within", "parameters", "seconds")


@dataclass(frozen=True)
class RankResult:
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

    results: list[RankResult]
    chosen: tuple[int, int]
    best: tuple[int, int]
    identified: int | None = None
    """The multilinear rank, where R = 1, 2, … were tried without a network."""

    def rows(self) -> list[dict[str, Any]]:
        """One row per result, with the paired difference to the best one and its standard error."""
        lowest = next(result for result in self.results if result.rank == self.best)
        found = []
        for one in self.results:
            difference, noise = paired(one.errors, lowest.errors)
            fields = (*one.rank, one.rmse, noise, difference, as_good(one, lowest), one.parameters, one.seconds)
            found.append(dict(zip(TITLES, fields, strict=True)))
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
    on_result: Callable[[RankResult], None] = lambda _: None,
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
    for rank in grid:
        _model(tensor.shape, rank)  # one that cannot be made is refused before the first fit
    places = make_folds(tensor, (), seed)
    results, without = [], []
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
        results.append(RankResult(rank, np.concatenate(errors), parameters, time.monotonic() - begin))
        on_result(results[-1])
    return choose(results, float(np.mean(np.concatenate(without))))


def choose(results: list[RankResult], base: float | None = None) -> Selection:
    """The fewest components that are as good as the best; and the multilinear rank, if the error of none is known."""
    lowest = min(results, key=lambda result: result.rmse)
    near = [result for result in results if as_good(result, lowest)]
    chosen = min(near, key=lambda result: (sum(result.rank), result.rank[1]))
    return Selection(results, chosen.rank, lowest.rank, None if base is None else identify(results, base))


def as_good(result: RankResult, best: RankResult) -> bool:
    """Whether a result is within one standard error of the best, or so close that it does not matter."""
    difference, noise = paired(result.errors, best.errors)
    return difference <= max(MAX_STANDARD_ERRORS * noise, TOLERANCE * float(best.errors.mean()))


def identify(results: Sequence[RankResult], base: float) -> int | None:
    """Where the gains of one more component break off.

    That is where the least gain so far is largest, compared with all later ones; so the last R that was tried is never
    the answer, nor the one before where there are many.

    Parameters
    ----------
    results
        R = 1, 2, … with F = 0 among them; ``None`` is returned otherwise.
    base
        Squared error without any component.
    """
    alone = {one.rank[0]: float(one.errors.mean()) for one in results if one.rank[1] == 0 and one.rank[0]}
    if len(alone) < 2 or set(alone) != set(range(1, len(alone) + 1)):
        return None
    errors = [base, *(alone[r] for r in sorted(alone))]
    floor = MIN_GAIN * min(errors)
    gains = [max(before - after, floor) for before, after in pairwise(errors)]
    last = len(gains) - (1 if len(gains) < 5 else 2)  # a single gain may be small by chance
    ratios = [min(gains[:k]) / max(gains[k:]) for k in range(1, last + 1)]
    return int(np.argmax(ratios)) + 1


def paired(errors: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of the differences of squared errors, and its standard error."""
    differences = errors - others
    return float(differences.mean()), float(differences.std() / math.sqrt(len(differences)))


def _model(shape: Sequence[int], rank: tuple[int, int]) -> JointModel:
    return JointModel(shape, rank, linear=RECIPE.linear(rank[0]))


def _errors(
    parts: Split, rank: tuple[int, int], seed: int, device: str, engine: str
) -> tuple[NDArray[np.float64], int]:
    model = _model(parts.train.shape, rank)
    found = fit(model, parts, RECIPE, seed=seed, device=device, engine=engine)
    error = found.predict(parts.valid.indices) - parts.valid.values
    return error.astype(np.float64) ** 2, model.n_parameters()


@contextmanager
def selection_folder(out: Path) -> Iterator[Path]:
    """A new folder, made before the fits that will fill it: a place that cannot be written to costs no hours.

    Nothing of a selection can be continued, so a folder that stays empty is removed again.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{out} exists already; give another --out, or remove it") from None
    except OSError as error:
        raise RunError(f"{out} cannot be made: {error.strerror or error}") from error
    try:
        yield out
    finally:
        with suppress(OSError):  # not empty: the selection was written
            out.rmdir()


def write_selection(selection: Selection, out: Path) -> None:
    """Write ``grid.csv``, ``grid.png`` and ``selection.json`` to a folder."""
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
    for f in dict.fromkeys(result.rank[1] for result in selection.results):
        mine = sorted((one for one in selection.results if one.rank[1] == f), key=lambda one: one.rank[0])
        panel.plot([result.rank[0] for result in mine], [result.rmse for result in mine], "o-", label=f"F = {f}")
    panel.axvline(selection.chosen[0], color="0.6", linestyle="--", linewidth=1)
    panel.annotate(f"R/F = {selection.chosen[0]}/{selection.chosen[1]}", (selection.chosen[0], 1.0), (4, -12),
                   xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=9)  # fmt: skip
    panel.set_xticks(sorted({result.rank[0] for result in selection.results}))
    panel.set_xlabel("multilinear components R")
    panel.set_ylabel("RMSE of entries that were left out")
    panel.legend(frameon=False)
    figure.savefig(path, dpi=110, format="png")
