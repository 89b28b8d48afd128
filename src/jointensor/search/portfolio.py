"""The candidates that a search chooses from, as plain data. One line here adds a candidate.

How a candidate is fitted is the business of its family: :mod:`jointensor.search.families`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.axes import axes_of, longest_axis
from jointensor.predictors.roots import has_roots
from jointensor.predictors.target_encoding import subsets_of
from jointensor.predictors.unfolding import Unfolding
from jointensor.search.settings import SETTINGS, SearchSettings

Stage = Literal["core", "richer", "late"]
"""When a candidate is tried: ``core`` before all others, ``richer`` next, ``late`` after the first cross-fit."""


@dataclass(frozen=True)
class Candidate:
    """One structure."""

    name: str
    family: str
    """Which of the families fits it."""
    simplicity: int
    """Place from the simplest to the least simple; decides between candidates that validate alike."""
    rank: tuple[int, int] = (0, 0)
    """``(R, F)``: multilinear and nonlinear components."""
    linear: str = ""
    """Blocks of the multilinear part; those of the recipe where there are none."""
    nonlinear: str = "julia"
    """The network."""
    options: dict[str, Any] = field(default_factory=dict)
    """Changes to the recipe; options of trees."""
    stage: Stage = "late"
    after: str | None = None
    """Tried only if this candidate is the best of the family."""
    seed: int = 0
    """Added to the seed of a fit."""
    effort: float = 1.0
    """Cost of a fit compared with others of its family; its cost in a budget of fits."""
    max_share: float = 1.0
    """Share of the budget that one fit may take."""
    min_seconds: float = 0.0
    """Seconds that a fit is expected to take if no other one of its family was timed."""

    @property
    def slug(self) -> str:
        """The name in file names."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


BIAS = Candidate("bias", "bias", 0, stage="core")
"""Additive biases: the candidate that is always there."""


BASELINES = {
    "mean": Candidate("mean", "mean", 0),
    "bias": BIAS,
    "tables": Candidate("tables", "tables", 1, stage="core"),
    "interp": Candidate("interp", "interpolation", 1, stage="core"),
}
"""Baselines as candidates, by their names beside every fit."""


KRIGING = Candidate("tables+kriging", "kriging", 2, stage="core")
"""Tables with kriging of their residuals, for tensors with an ordered mode."""


def candidates_for(tensor: SparseTensor, settings: SearchSettings = SETTINGS) -> list[Candidate]:
    """Candidates worth trying on a tensor, those of the default fit first."""
    fm, wide = _pairs(tensor, settings), f"{_additive(tensor)}+fm:{settings.wide_fm_width}"
    trees = Candidate("trees", "trees", 5, stage="core", max_share=0.15, min_seconds=_tree_seconds(tensor, settings))
    sampled = Candidate(fm, "gibbs", 3, linear=fm, stage="core", effort=2.0)
    julia = Candidate("julia:4/16", "joint", 6, (4, 16), stage="core")
    found = [BIAS, BASELINES["tables"]]
    if axes_of(tensor.modes):
        found += [BASELINES["interp"], KRIGING]
    exact = exact_candidates(tensor, settings)
    if is_sparse(tensor, settings):
        found += [trees, sampled, *exact, julia]
    else:
        found += [*exact, julia, trees, sampled]
    if len(tensor) <= settings.max_implicit_entries:
        with_fm, implicit = implicit_candidate(tensor, settings), _implicit(tensor)
        wider = Candidate(
            f"{wide}+implicit", "gibbs", 12, linear=wide + implicit, stage="richer", after=with_fm.name, effort=12.0
        )
        found += [with_fm, wider]
    found.append(Candidate(wide, "gibbs", 11, linear=wide, stage="richer", after=fm, effort=4.0))
    found.append(Candidate("avocado:20", "joint", 8, (0, 20), nonlinear="avocado"))
    found.append(Candidate("julia:4/32", "joint", 13, (4, 32), after="julia:4/16", effort=2.5))
    return found


def default_candidates(tensor: SparseTensor, settings: SearchSettings = SETTINGS) -> list[Candidate]:
    """Candidates of the default fit, in the order in which they are fitted."""
    fm, found = _pairs(tensor, settings), [KRIGING] if axes_of(tensor.modes) else []
    sparse = is_sparse(tensor, settings)
    if sparse and len(tensor) <= settings.max_sampled_entries:
        found += [Candidate(fm, "gibbs", 3, linear=fm), Candidate("trees", "trees", 5)]
    found += [*exact_candidates(tensor, settings), Candidate("julia:4/16", "joint", 6, (4, 16))]
    if len(tensor) <= settings.max_repeated_entries:
        found += [
            Candidate(f"julia:4/16, seed {k}", "joint", 6, (4, 16), seed=k) for k in range(1, settings.n_repeated_fits)
        ]
    if sparse and len(tensor) <= settings.max_small_entries:
        found.append(implicit_candidate(tensor, settings))
    return found


def implicit_candidate(tensor: SparseTensor, settings: SearchSettings = SETTINGS) -> Candidate:
    """Pairs of modes with implicit feedback between the two modes that have most labels."""
    fm = _pairs(tensor, settings)
    return Candidate(f"{fm}+implicit", "gibbs", 4, linear=fm + _implicit(tensor), stage="richer", effort=5.0)


def _implicit(tensor: SparseTensor) -> str:
    first, second = sorted(np.argsort(tensor.shape)[-2:].tolist())
    return f"+implicit:{first}/{second}+implicit:{second}/{first}"


def _additive(tensor: SparseTensor) -> str:
    """Blocks of numbers."""
    return "mean+bias+tables" if tensor.n_modes > 2 else "mean+bias"


def _pairs(tensor: SparseTensor, settings: SearchSettings) -> str:
    """The same with a factorisation machine."""
    return f"{_additive(tensor)}+fm:{settings.fm_width}"


def exact_candidates(tensor: SparseTensor, settings: SearchSettings = SETTINGS) -> list[Candidate]:
    """CP of the unfolded tensor and of the tensor, with R by validation; none where there are too few entries."""
    return _unfolding(tensor, settings) + _cp(tensor, settings)


def _unfolding(tensor: SparseTensor, settings: SearchSettings) -> list[Candidate]:
    """The matrix of fibers by positions along the longest axis, unless the tensor is one already."""
    axis, rank = longest_axis(tensor.modes), settings.first_rank
    if not axis or tensor.n_modes == 2 or len(tensor) > settings.max_unfolded_entries:
        return []
    unfolding = Unfolding.of(tensor, axis)
    parameters = rank * (len(unfolding.fibers) + unfolding.along.size)
    if len(tensor) < settings.min_exact_entries * parameters:
        return []
    linear = f"mean+bias+cp:{rank}{_smooth((Mode('fiber', len(unfolding.fibers)), unfolding.along))}"
    found = Candidate("unfolding", "unfolding", 3, (rank, 0), linear=linear, stage="core", max_share=0.25)
    if not has_roots(tensor.values):
        return [found]
    return [found, replace(found, name="unfolding, roots", family="unfolded roots", simplicity=4)]


def _cp(tensor: SparseTensor, settings: SearchSettings) -> list[Candidate]:
    """With rows of ordered modes that are drawn to their neighbours, of the values and of their roots; and without."""
    rank, smooth, roots = settings.first_rank, _smooth(tensor.modes), has_roots(tensor.values)
    if _entries_per_parameter(tensor, settings) < settings.min_exact_entries:
        return []
    few = smooth or roots or len(tensor) > settings.max_averaged_entries
    options = {"solutions": settings.few_solutions if few else settings.solutions}
    found = [Candidate("cp", "exact", 2, (rank, 0), options=options, stage="core", max_share=0.25)]
    if smooth:
        found.insert(0, replace(found[0], name="cp+smooth", simplicity=3, linear=f"mean+bias+cp:{rank}{smooth}"))
    if roots:
        found.insert(1, replace(found[0], name=f"{found[0].name}, roots", family="roots", simplicity=4))
    return found


def _smooth(modes: Sequence[Mode]) -> str:
    """Priors by which rows of neighbouring labels are alike, for all ordered modes."""
    ordered = [(n, mode.order) for n, mode in enumerate(modes) if mode.order != "none"]
    return "".join(f"+{'cyclic' if order == 'cyclic' else 'smooth'}:{n}" for n, order in ordered)


def is_sparse(tensor: SparseTensor, settings: SearchSettings) -> bool:
    """Whether entries are few per label: then models of pairs of modes, and trees, may be ahead of CP."""
    return _entries_per_parameter(tensor, settings) < settings.max_sparse_entries


def _entries_per_parameter(tensor: SparseTensor, settings: SearchSettings) -> float:
    """Of the components that CP starts with."""
    return len(tensor) / (settings.first_rank * sum(tensor.shape))


def _tree_seconds(tensor: SparseTensor, settings: SearchSettings) -> float:
    """Seconds that boosted trees take at least: those of target encoding."""
    columns = 2 * len(subsets_of(tensor.shape)) + tensor.n_modes  # two per label, pair and all but one; positions
    threads = min(torch.get_num_threads(), settings.max_encoding_threads)
    return settings.min_tree_seconds + settings.encoding_seconds * len(tensor) * columns / threads
