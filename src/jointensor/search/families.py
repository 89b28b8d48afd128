"""How candidates are fitted: one class per family. A class here, and its line in ``FAMILIES``, adds a family."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor, join
from jointensor.models.blocks.spec import parse_blocks
from jointensor.models.joint import JointModel
from jointensor.predictors import Predictor, fit_bias, fit_tables, fit_trees, refit_tables
from jointensor.predictors.axes import axes_of, longest_axis
from jointensor.predictors.interpolation import Interpolation, best_interpolation
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.kriged_tables import krige_tables, refit_kriged_tables
from jointensor.predictors.roots import Squares, with_roots
from jointensor.predictors.tables import Mean
from jointensor.predictors.unfolding import Unfolded, Unfolding
from jointensor.search.budget import Clock
from jointensor.search.interruption import StopRequested
from jointensor.search.portfolio import Candidate
from jointensor.search.settings import SETTINGS, SearchSettings
from jointensor.training.checkpoint import Slot
from jointensor.training.fit import fit, pick_device
from jointensor.training.history import OnEpoch
from jointensor.training.recipe import make_recipe
from jointensor.training.solve_on import solve_on

EPOCHS = {"small": 120, "cuda": 56, "cpu": 24}
"""Most epochs of refinement: cycles of 8, 16, 32 and 64. The last one is for small tensors, the third for GPUs too."""

LONG_CHAIN = {"burn_in": 40, "draws": 60, "thin": 2}
"""Gibbs chain of small tensors: chains over few entries mix more slowly, and cost little."""

CHAIN = {"burn_in": 30, "draws": 50, "thin": 1}
"""Gibbs chain of other tensors."""

SHORT = {"refine_epochs": 2, "cycle": 2, "restarts": 0, "burn_in": 20, "draws": 15, "thin": 1, "max_rank": 0,
         "solutions": 1}  # fmt: skip
"""Changes to the recipe for a fit that only compiles what a candidate needs."""


MAX_RANK = 128
"""Components up to which the multilinear part of a candidate grows."""


@dataclass(frozen=True)
class FitOptions:
    """What decides a fit beside its candidate and its entries."""

    seed: int = 0
    device: str = "auto"
    engine: str = "auto"
    groups: tuple[int, ...] = ()
    """Modes whose labels, taken together, will be new in the entries to predict."""
    seconds: float = math.inf
    """After which a fit stops with its best state."""
    short: bool = False
    """Whether a fit only compiles what the candidate needs."""
    settings: SearchSettings = SETTINGS
    stopping: Callable[[], bool] = lambda: False
    """Asked by fits that can be stopped between their steps."""
    checkpoint: Slot | None = None
    """Where fits by steps keep their state."""
    on_epoch: OnEpoch | None = None
    """Called after every epoch of such fits."""
    clock: Clock = time.monotonic
    """Returns seconds."""

    def in_time(self) -> Callable[[], bool]:
        """Whether a fit that begins now may make another step, to be asked before every one of them."""
        end = self.clock() + self.seconds
        return lambda: self.clock() < end and not self.stopping()


class Family(ABC):
    """Candidates that are fitted in the same way."""

    refits = True
    """Whether one fit to all entries predicts in the end; else the mean of the fits to all folds but one."""
    on_cpu = True
    """Whether a fit uses no GPU, where there is one."""
    random = False
    """Whether two fits to nearly the same entries differ by chance, so that their mean is safer than either."""

    @abstractmethod
    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """Fit a candidate to ``train``; ``valid`` says when to stop, and may be empty."""

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """Fit to all entries of a tensor; ``fits`` to its folds may say how."""
        del fits
        return self.fit(candidate, tensor, _no_entries(tensor), options)

    refit_cost = 1.0
    """Seconds of a refit as a share of those of the first fit."""

    def n_averaged(self, settings: SearchSettings) -> int:
        """Fits to all entries, from different seeds, whose mean predicts if there is budget for them."""
        del settings
        return 1

    def tabulates(self, candidate: Candidate) -> bool:
        """Whether it has numbers for combinations of labels, so that tables of its residuals would repeat them."""
        del candidate
        return False

    def to_cpu(self, part: Any) -> Predictor:
        """A fit in the memory of the CPU; fits of most families are there anyway."""
        return part

    def warmup_key(self, candidate: Candidate) -> tuple[object, ...] | None:
        """What decides which code is compiled: two candidates with the same key need one warm-up. None: nothing is."""
        del candidate
        return None

    def warmup_candidates(self, candidate: Candidate) -> list[Candidate]:
        """Candidates whose short fits compile everything that a fit of this one needs."""
        return [candidate]


class MeanFamily(Family):
    """The mean of all values."""

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """One number."""
        del candidate, valid, options
        return Mean(float(train.values.mean(dtype=np.float64)))


class BiasFamily(Family):
    """Additive biases."""

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """With one shrinkage for all modes."""
        del candidate, options
        return fit_bias(train, valid)

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """With the shrinkage of the first fold."""
        del candidate, options
        return refit_tables(fits[0], tensor)


class TablesFamily(BiasFamily):
    """Shrunk tables."""

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """By backfitting."""
        del candidate, options
        return fit_tables(train, valid)

    def tabulates(self, candidate: Candidate) -> bool:
        """Yes."""
        del candidate
        return True


class InterpolationFamily(BiasFamily):
    """Interpolation along an ordered mode."""

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """Along the mode that validates best."""
        del candidate, options
        found = best_interpolation(train, valid, fit_bias(train, valid))
        if found is None:
            raise RuntimeError("no mode can be interpolated along")
        return found

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """Along the mode of the first fold."""
        del candidate, options
        return Interpolation.of(tensor, fits[0].mode, refit_tables(fits[0].fallback, tensor))


class KrigedTablesFamily(BiasFamily):
    """Shrunk tables with kriging of their residuals."""

    refit_cost = 0.6  # covariances are known

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """Along every axis on which that helps, as far as there is time."""
        del candidate
        groups, seed, in_time = options.groups, options.seed, options.in_time()
        along = [axis for axis in axes_of(train.modes) if not groups or set(axis) <= set(groups)]
        tables, bias = fit_tables(train, valid), fit_bias(train, valid)
        return krige_tables(tables, bias, train, along=along, groups=groups, seed=seed, in_time=in_time)

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """With the shrinkage and the covariances of the first fold."""
        del candidate
        return refit_kriged_tables(fits[0], tensor, groups=options.groups, seed=options.seed)

    def tabulates(self, candidate: Candidate) -> bool:
        """Yes."""
        del candidate
        return True


class TreesFamily(Family):
    """Boosted trees on target encoding."""

    random = True

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """As many trees as validate best."""
        seed, seconds = options.seed, options.seconds
        return fit_trees(train, valid, groups=options.groups, seed=seed, seconds=seconds, **candidate.options)

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """With the mean number of trees of the folds: no entries are left to choose it."""
        rounds = round(np.mean([len(one.roots) for one in fits]))
        with_rounds = replace(candidate, options=candidate.options | {"rounds": rounds})
        return self.fit(with_rounds, tensor, _no_entries(tensor), options)

    def n_averaged(self, settings: SearchSettings) -> int:
        """Several: target encoding depends on the seed."""
        return settings.trees_averaged

    def tabulates(self, candidate: Candidate) -> bool:
        """Yes, by target encoding."""
        del candidate
        return True

    def warmup_key(self, candidate: Candidate) -> tuple[object, ...] | None:
        """All trees run the same code."""
        del candidate
        return ("trees",)


class JointFamily(Family):
    """Joint models by the default recipe. Their folds' fits are averaged: a refit would have nothing to stop by."""

    refits, on_cpu = False, False

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """By alternating optimisation, or as the family changes the recipe."""
        small = len(train) <= options.settings.max_small_entries
        epochs = EPOCHS["small"] if small else EPOCHS.get(pick_device(options.device).type, EPOCHS["cpu"])
        recipe = make_recipe("default", fall_back=False, refine_epochs=epochs, **candidate.options)
        linear = candidate.linear or recipe.linear(candidate.rank[0])
        recipe = make_recipe(recipe, **self.recipe_changes(small=small))
        recipe = make_recipe(recipe, **SHORT) if options.short else recipe
        model = JointModel(train.shape, candidate.rank, linear=linear, nonlinear=candidate.nonlinear)
        parts = Split(train, valid, _no_entries(train), rule="fold")
        found = fit(
            model, parts, recipe, seed=options.seed + candidate.seed, device=options.device, engine=options.engine,
            budget=options.seconds, stopping=options.stopping, checkpoint=options.checkpoint, on_epoch=options.on_epoch,
        )  # fmt: skip
        if found.stopped:
            raise StopRequested
        return found.predictor

    def to_cpu(self, part: Any) -> Predictor:
        """The model is moved."""
        part.model.cpu()
        return part

    def recipe_changes(self, *, small: bool) -> dict[str, Any]:
        """Changes to the default recipe, for a tensor that is small or not."""
        del small
        return {}

    def warmup_key(self, candidate: Candidate) -> tuple[object, ...] | None:
        """Blocks without their sizes and modes, the network, and which halves there are."""
        blocks = tuple(sorted({piece.kind.name for piece in parse_blocks(candidate.linear)}))
        return candidate.family, blocks, candidate.nonlinear, *(size > 0 for size in candidate.rank)


class GibbsFamily(JointFamily):
    """Multilinear parts drawn by Gibbs sampling. Draws are averaged already, so that one refit predicts."""

    refits, random = True, True

    def recipe_changes(self, *, small: bool) -> dict[str, Any]:
        """The sampler, and its chain."""
        return {"linear_solver": "gibbs", "restarts": 0, **(LONG_CHAIN if small else CHAIN)}

    def tabulates(self, candidate: Candidate) -> bool:
        """If it has a block of tables."""
        return any(piece.kind.name == "tables" for piece in parse_blocks(candidate.linear))


class ExactFamily(JointFamily):
    """Multilinear parts solved exactly, with R chosen by validation. Solutions are averaged already."""

    refits, refit_cost = True, 0.25

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """The mean of the solutions of all fits, each solved on with all entries."""
        del candidate
        recipe = make_recipe("default")
        found = solve_on(fits, tensor, recipe, device=options.device, engine=options.engine, stopping=options.stopping)
        if options.stopping():
            raise StopRequested
        return found

    def warmup_candidates(self, candidate: Candidate) -> list[Candidate]:
        """One of every rank: kernels for a GPU are compiled for each."""
        ranks = [candidate.rank[0]]
        while 2 * ranks[-1] <= MAX_RANK:
            ranks.append(2 * ranks[-1])
        first = f"cp:{ranks[0]}"
        return [
            replace(candidate, rank=(rank, 0), linear=candidate.linear.replace(first, f"cp:{rank}")) for rank in ranks
        ]

    def recipe_changes(self, *, small: bool) -> dict[str, Any]:
        """R doubles for as long as that validates better; how many solutions are averaged, the candidate says."""
        del small
        return {"max_rank": MAX_RANK, "restarts": 0}


class UnfoldingFamily(ExactFamily):
    """CP of the unfolded tensor: of the matrix of its fibers by the positions along its longest axis."""

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """Rows are the fibers of training and validation entries, so that a refit has the same ones."""
        unfolding = Unfolding.of(join(train, valid), longest_axis(train.modes))
        found = super().fit(candidate, unfolding.matrix(train), unfolding.matrix(valid), options)
        return Unfolded(unfolding, _on_cpu(found), fit_bias(train, valid))

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """The mean of the solutions of all fits with the same rows, each solved on with all entries."""
        unfolding = fits[0].unfolding
        alike = [one.inner for one in fits if np.array_equal(one.unfolding.fibers, unfolding.fibers)]
        found = super().refit(candidate, alike, unfolding.matrix(tensor), options)
        return Unfolded(unfolding, _on_cpu(found), refit_tables(fits[0].fallback, tensor))

    def to_cpu(self, part: Any) -> Predictor:
        """It is there."""
        return part


class RootsFamily(Family):
    """Candidates of another family, fitted to the roots of the values."""

    def __init__(self, inner: ExactFamily) -> None:
        self.inner, self.on_cpu, self.refit_cost = inner, inner.on_cpu, inner.refit_cost

    def fit(self, candidate: Candidate, train: SparseTensor, valid: SparseTensor, options: FitOptions) -> Predictor:
        """What is chosen validates on roots; scale and offset of the squares on values."""
        found = self.inner.fit(candidate, with_roots(train), with_roots(valid), options)
        return Squares.of(self.inner.to_cpu(found), valid)

    def refit(self, candidate: Candidate, fits: Sequence[Any], tensor: SparseTensor, options: FitOptions) -> Predictor:
        """With the scale and the offset of the first fold."""
        found = self.inner.refit(candidate, [one.inner for one in fits], with_roots(tensor), options)
        return replace(fits[0], inner=self.inner.to_cpu(found))

    def warmup_key(self, candidate: Candidate) -> tuple[object, ...] | None:
        """That of the values."""
        return self.inner.warmup_key(candidate)

    def warmup_candidates(self, candidate: Candidate) -> list[Candidate]:
        """Those of the values."""
        return self.inner.warmup_candidates(candidate)


def _on_cpu(found: Predictor) -> JointPredictor:
    """An exact fit in the memory of the CPU, where it predicts fast."""
    assert isinstance(found, JointPredictor)  # it is what exact fits are
    found.model.cpu()
    return found


FAMILIES: dict[str, Family] = {
    "mean": MeanFamily(),
    "bias": BiasFamily(),
    "tables": TablesFamily(),
    "interpolation": InterpolationFamily(),
    "kriging": KrigedTablesFamily(),
    "exact": ExactFamily(),
    "unfolding": UnfoldingFamily(),
    "roots": RootsFamily(ExactFamily()),
    "unfolded roots": RootsFamily(UnfoldingFamily()),
    "trees": TreesFamily(),
    "gibbs": GibbsFamily(),
    "joint": JointFamily(),
}
"""All families by name."""


def family_of(candidate: Candidate) -> Family:
    """The family that fits a candidate."""
    return FAMILIES[candidate.family]


def _no_entries(tensor: SparseTensor) -> SparseTensor:
    return tensor.take(np.zeros(0, dtype=np.int64))
