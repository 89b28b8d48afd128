"""What ``auto`` chooses from: structures of g, sizes of f, and how each is fitted."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numba import get_num_threads

from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor
from jointensor.models.joint import JointModel
from jointensor.predictors import Predictor, fit_bias, fit_tables, fit_trees, refit_tables
from jointensor.predictors.target_encoding import subsets_of
from jointensor.training.fit import fit, pick_device
from jointensor.training.recipe import make_recipe

SHARED, WIDER = 8, 24
"""Width of the vectors of a factorisation machine, and a larger one."""

COMPANY = 3_000_000
"""Entries above which implicit labels are not tried: their systems grow with all pairs that were seen."""

MANY = 300_000
"""Entries above which chains are shorter."""

ENCODING, THREADS = 1.5e-7, 4
"""Seconds per column and entry that it takes to make columns for trees on one core; and cores that help with it."""

TREES_AVERAGED = 4
"""Sums of trees whose mean answers: each has other parts of the entries left out of its columns."""

Kind = Literal["bias", "tables", "trees", "drawn", "joint"]


@dataclass(frozen=True)
class Candidate:
    """One structure, and how it is fitted."""

    name: str
    kind: Kind
    simplicity: int
    """Place from the simplest to the least simple; decides where validation cannot."""
    rank: tuple[int, int] = (0, 0)
    linear: str = ""
    nonlinear: str = "julia"
    changes: dict[str, Any] = field(default_factory=dict)
    """To the recipe; options of trees."""
    core: bool = False
    """Tried before all others."""
    second: bool = False
    """Tried next where the core's one of its kind is out of the race."""
    after: str | None = None
    """Tried only where this one is the best of its kind."""
    effort: float = 1.0
    """How long it takes, compared with others of its kind."""
    share: float = 1.0
    """Most of the budget that one fit may take."""
    guess: float = 0.0
    """Seconds that a fit may take, where none of its kind was timed yet."""

    @property
    def refits(self) -> bool:
        """Whether the answer is one fit to all entries; else the mean of the fits to all folds but one."""
        return self.kind != "joint"

    @property
    def averaged(self) -> int:
        """Fits to all entries, from different seeds, whose mean answers where there is time for them."""
        return TREES_AVERAGED if self.kind == "trees" else 1

    @property
    def slug(self) -> str:
        """The name as a file's."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def candidates_for(tensor: SparseTensor) -> list[Candidate]:
    """Structures worth trying, the cheap ones first."""
    drawn = "mean+bias+tables" if tensor.n_modes > 2 else "mean+bias"
    shared, wide = f"{drawn}+fm:{SHARED}", f"{drawn}+fm:{WIDER}"
    first, second = sorted(np.argsort(tensor.shape)[-2:].tolist())  # the modes with most labels
    both = f"+implicit:{first}/{second}+implicit:{second}/{first}"
    found = [
        Candidate("bias", "bias", 0, core=True),
        Candidate("tables", "tables", 1, core=True),
        Candidate("trees", "trees", 5, core=True, share=0.15, guess=_growing(tensor)),
        Candidate(drawn, "drawn", 2, linear=drawn, core=True),
        Candidate(shared, "drawn", 3, linear=shared, core=True, effort=2.0),
        Candidate("julia:4/16", "joint", 6, (4, 16), core=True),
    ]
    if len(tensor) <= COMPANY:
        found += [
            Candidate(shared + "+implicit", "drawn", 4, linear=shared + both, effort=5.0),
            Candidate(wide + "+implicit", "drawn", 12, linear=wide + both, after=shared + "+implicit", effort=12.0),
        ]
    smooth = "".join(
        f"+{'cyclic' if mode.order == 'cyclic' else 'smooth'}:{n}"
        for n, mode in enumerate(tensor.modes)
        if mode.order != "none"
    )
    if smooth:
        found.append(Candidate(shared + "+smooth", "drawn", 4, linear=shared + smooth, effort=2.5))
    found.append(Candidate(wide, "drawn", 11, linear=wide, after=shared, effort=4.0))
    # the paper's grid, and either half alone; the network comes early where JULIA fails: it may be g that does
    found += [
        Candidate(f"julia:{r}/{f}", "joint", 7, (r, f), second=not r) for r, f in ((10, 10), (16, 4), (0, 20), (20, 0))
    ]
    found.append(Candidate("avocado:20", "joint", 8, (0, 20), nonlinear="avocado"))
    found.append(Candidate("julia:4/32", "joint", 13, (4, 32), after="julia:4/16", effort=2.5))
    return found


def _growing(tensor: SparseTensor) -> float:
    """Seconds that trees take at least; two, so that nothing has to be compiled in a budget of a few seconds."""
    columns = 2 * len(subsets_of(tensor.shape)) + tensor.n_modes  # two per label, pair and all but one; positions
    return 2.0 + ENCODING * len(tensor) * columns / min(get_num_threads(), THREADS)


def _epochs(entries: int, device: str) -> int:
    """Most epochs of refinement: cycles of 8, 16, 32 and 64; the last is for small tensors, the third for GPUs too."""
    if entries <= MANY:
        return 120
    return 56 if pick_device(device).type == "cuda" else 24


def _chain(entries: int) -> dict[str, int]:
    """How long to draw: chains over few entries mix more slowly, and cost little."""
    return {"burn_in": 40, "draws": 60, "thin": 2} if entries <= MANY else {"burn_in": 30, "draws": 50, "thin": 1}


@dataclass(frozen=True)
class Fitted:
    """A candidate fitted to some entries."""

    part: Predictor
    seconds: float


def fit_candidate(
    candidate: Candidate,
    train: SparseTensor,
    valid: SparseTensor,
    *,
    seed: int,
    device: str,
    engine: str,
    budget: float,
    groups: tuple[int, ...] = (),
    short: bool = False,
) -> Fitted:
    """Fit a candidate; ``valid`` may be empty where everything is known (refits)."""
    begin = time.monotonic()
    part: Predictor
    if candidate.kind == "bias":
        part = fit_bias(train, valid)
    elif candidate.kind == "tables":
        part = fit_tables(train, valid)
    elif candidate.kind == "trees":
        part = fit_trees(train, valid, groups=groups, seed=seed, seconds=budget, **candidate.changes)
    else:
        recipe = make_recipe("default", fall_back=False, refine_epochs=_epochs(len(train), device), **candidate.changes)
        linear = candidate.linear or recipe.linear(candidate.rank[0])
        if candidate.kind == "drawn":
            recipe = make_recipe(recipe, linear_solver="gibbs", restarts=0, **_chain(len(train)))
        if short:
            recipe = make_recipe(recipe, refine_epochs=2, cycle=2, restarts=0, burn_in=20, draws=15, thin=1)
        model = JointModel(train.shape, candidate.rank, linear=linear, nonlinear=candidate.nonlinear)
        nothing = train.take(np.zeros(0, dtype=np.int64))
        found = fit(
            model, Split(train, valid, nothing, rule="fold"), recipe, seed=seed, device=device, engine=engine,
            budget=budget,
        )  # fmt: skip
        part = found.predictor
    return Fitted(part, time.monotonic() - begin)


def refit_candidate(candidate: Candidate, fits: Sequence[Fitted], tensor: SparseTensor, **how: Any) -> Fitted:
    """Fit to all entries, shrunk as on the folds."""
    begin = time.monotonic()
    first = fits[0].part
    if candidate.kind in ("bias", "tables"):
        return Fitted(refit_tables(first, tensor), time.monotonic() - begin)  # type: ignore[arg-type]
    if candidate.kind == "trees":
        rounds = round(np.mean([len(one.part.roots) for one in fits]))  # type: ignore[attr-defined]
        candidate = replace(candidate, changes=candidate.changes | {"rounds": rounds})
    nothing = tensor.take(np.zeros(0, dtype=np.int64))
    return fit_candidate(candidate, tensor, nothing, **how)
