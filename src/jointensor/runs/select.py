"""``select``: validation error over a grid of multilinear and nonlinear ranks, and the simplest that is good enough.

The multilinear rank can be identified: with too few components a part of the values is missing, with too many
little is gained, and what is gained then is an approximation of the nonlinear part, component by small component. So R
is where the gains of the multilinear half alone break off. The nonlinear one cannot: networks of many widths represent
the same function, so F is only ever large enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import write_json, write_text
from jointensor.data.split import FOLDS, Groups, Split, in_words, learnt_from, make_folds, split, with_folds
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.evaluation.pictures import save_picture
from jointensor.models.joint import JointModel
from jointensor.predictors import Predictor, fit_bias
from jointensor.runs.compare_table import as_csv
from jointensor.runs.dataset import fold_notes
from jointensor.runs.folder import make_folder
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe


@dataclass(frozen=True)
class SelectSettings:
    """Numbers of the choice; shares are of the least squared error."""

    max_standard_errors: float = 1.0
    """Standard errors within which a simpler model is as good as the best."""
    tolerance: float = 0.005
    """Share within which it is as good, too: so little does not matter, however small the standard error."""
    min_gain: float = 0.02
    """Share below which gains of components do not differ."""


SETTINGS = SelectSettings()

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
    together: str = "single cells"
    """What was left out together."""

    def rows(self) -> list[dict[str, Any]]:
        """One row per result, with the paired difference to the best one and its standard error."""
        lowest = next(result for result in self.results if result.rank == self.best)
        found = []
        for one in self.results:
            difference, noise = paired(one.errors, lowest.errors)
            fields = (*one.rank, one.rmse, noise, difference, as_good(one, lowest), one.parameters, one.seconds)
            found.append(dict(zip(TITLES, fields, strict=True)))
        return found


def select(  # noqa: PLR0913 - everything that decides a selection
    tensor: SparseTensor,
    linear: Sequence[int],
    nonlinear: Sequence[int],
    *,
    folds: str = "like-gaps",
    n_folds: int = 2,
    starts: int = 2,
    seed: int = 0,
    device: str = "auto",
    engine: str = "auto",
    on_result: Callable[[RankResult], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Selection:
    """Fit every R/F of a grid to folds of the entries and choose.

    Parameters
    ----------
    tensor
        The entries.
    linear, nonlinear
        Values of R and of F; both zero is left out.
    folds
        How they are drawn, see :func:`jointensor.data.split.with_folds`.
    n_folds
        How many of five folds are left out in turn.
    starts
        Fits per fold from different random starts; the one that validates best counts.
    seed
        Of folds and starts.
    device, engine
        As those of a fit.
    on_result
        Called with every R/F.
    on_note
        Called with a line for the user.
    """
    grid = [(r, f) for r in linear for f in nonlinear if r or f]
    if not grid or not 1 <= n_folds <= FOLDS or starts < 1:
        raise ConfigError("select needs at least one R/F besides 0/0, 1 to 5 folds and at least one start")
    for rank in grid:
        _model(tensor.shape, rank)  # one that cannot be made is refused before the first fit
    drawn = with_folds(split(tensor, test=0.0, valid=0.0, seed=seed), folds, 0.0)
    for note in fold_notes(tensor, drawn):
        on_note(note)
    parts = _left_out(tensor, drawn.together, n_folds, seed)
    results = []
    for rank in grid:
        begin = time.monotonic()
        tried = [[_errors(one, rank, seed + start, device, engine) for start in range(starts)] for one in parts]
        best = [min(fits, key=lambda errors: float(errors.mean())) for fits in tried]
        parameters = _model(tensor.shape, rank).n_parameters()
        results.append(RankResult(rank, np.concatenate(best), parameters, time.monotonic() - begin))
        on_result(results[-1])
    biases = [_squared(fit_bias(one.train, one.valid), one.valid) for one in parts]
    chosen = choose(results, float(np.mean(np.concatenate(biases))))
    return replace(chosen, together=in_words(drawn.together, tensor.modes))


def _left_out(tensor: SparseTensor, together: Groups, n_folds: int, seed: int) -> list[Split]:
    """Training and validation entries of every fold."""
    places, nothing = make_folds(tensor, together, seed), tensor.take(np.zeros(0, dtype=np.int64))
    found = []
    for fold in range(n_folds):
        sides = learnt_from(places, fold, together), places == fold
        train, valid = (tensor.take(np.flatnonzero(side)) for side in sides)
        found.append(Split(train, valid, nothing, rule="fold"))
    return found


def choose(results: list[RankResult], base: float | None = None) -> Selection:
    """The fewest components that are as good as the best; and the multilinear rank, if the error of none is known."""
    lowest = min(results, key=lambda result: result.rmse)
    near = [result for result in results if as_good(result, lowest)]
    chosen = min(near, key=lambda result: (sum(result.rank), result.rank[1]))
    return Selection(results, chosen.rank, lowest.rank, None if base is None else identify(results, base))


def as_good(result: RankResult, best: RankResult) -> bool:
    """Whether a result is within one standard error of the best, or so close that it does not matter."""
    difference, noise = paired(result.errors, best.errors)
    return difference <= max(SETTINGS.max_standard_errors * noise, SETTINGS.tolerance * float(best.errors.mean()))


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
    floor = SETTINGS.min_gain * min(errors)
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


def _errors(parts: Split, rank: tuple[int, int], seed: int, device: str, engine: str) -> NDArray[np.float64]:
    """Squared errors of a fit, one per left-out entry."""
    found = fit(_model(parts.train.shape, rank), parts, RECIPE, seed=seed, device=device, engine=engine)
    return _squared(found.predictor, parts.valid)


def _squared(predictor: Predictor, entries: SparseTensor) -> NDArray[np.float64]:
    return (predictor.predict(entries.indices) - entries.values).astype(np.float64) ** 2


@contextmanager
def selection_folder(out: Path) -> Iterator[Path]:
    """A new folder for the result; nothing of a selection can be continued, so one that stays empty is removed."""
    make_folder(out)
    try:
        yield out
    finally:
        with suppress(OSError):  # not empty: the selection was written
            out.rmdir()


def write_selection(selection: Selection, out: Path) -> None:
    """Write ``grid.csv``, ``grid.png`` and ``selection.json`` to a folder."""
    write_text(out / "grid.csv", as_csv(selection.rows(), TITLES))
    found: dict[str, Any] = {
        "chosen": selection.chosen,
        "best": selection.best,
        "identified_rank": selection.identified,
    }
    found["together"] = selection.together
    write_json(out / "selection.json", found)
    save_picture(out / "grid.png", (6, 4), lambda figure: _draw(figure.subplots(), selection))


def _draw(panel: Any, selection: Selection) -> None:
    """Validation error over R, a line per F, as in figure 3 of the paper."""
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
