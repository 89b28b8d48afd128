"""Planted tensors of figure 2 of the paper: are the multilinear components of a mixed tensor recovered?

A 100 × 100 × 100 tensor with R = 3 multilinear and F = 10 nonlinear components, 80 % missing. The planted network, the
teacher, is a JULIA network. The paper does not say how it was drawn: :data:`TEACHERS` has two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.bench.records import Record
from jointensor.data.split import Split, split
from jointensor.data.synthetic import Network, Truth, make_joint
from jointensor.evaluation.matching import match_factors
from jointensor.metrics import measure
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear.julia import Julia
from jointensor.training.fit import Fit, fit
from jointensor.training.recipe import Recipe

FOUND = 0.99
"""Congruence from which a component counts as recovered."""

REACHED = 0.00125
"""An RMSE below this is the paper's in two digits."""


@dataclass(frozen=True)
class Teacher:
    """How a planted network is drawn; its layers have torch's own initialisation."""

    about: str
    spread: float
    """Standard deviation of the rows of its labels."""
    cut: float | None
    """Share of the entries that its output ReLU cuts off; ``None``: as drawn, which may be none or all of them."""
    ratios: tuple[float | None, ...]
    """Standard deviations of its output, relative to that of the multilinear part; ``None``: as drawn."""


TEACHERS = {
    "scaled": Teacher("standard normal rows, a tenth of the entries cut off, scaled", 1.0, 0.1, (0.3, 1.0)),
    "small": Teacher("rows of 0.1·N(0, 1), torch's own initialisation, not scaled", 0.1, None, (None,)),
}
"""By name."""


def planted(size: int, rank: tuple[int, int], teacher: Teacher, ratio: float | None, seed: int) -> tuple[Split, Truth]:
    """The paper's synthetic tensor: 20 % observed, of which 80 % for training and 20 % for testing."""
    network = julia_network(3, rank[1], seed, teacher.cut)
    tensor, truth = make_joint((size,) * 3, rank, network, ratio=ratio, spread=teacher.spread, seed=seed)
    return split(tensor, test=0.2, valid=0.1, seed=seed), truth


def julia_network(modes: int, width: int, seed: int, cut: float | None) -> Network:
    """A JULIA network with random weights, as a function of NumPy rows.

    With ``cut`` its output bias lets the output ReLU cut off the lowest such share of the entries: a planted network
    that is zero almost everywhere would make a multilinear tensor with a few outliers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Julia(modes, width, output="identity")

    def evaluate(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        with torch.no_grad():
            score = network(torch.as_tensor(rows, dtype=torch.float32)).double().numpy()
        return np.maximum(score - (0.0 if cut is None else np.quantile(score, cut)), 0.0)

    return evaluate


def run_one(
    parts: Split, truth: Truth, recipe: Recipe, rank: tuple[int, int], *, seed: int, device: str = "auto"
) -> dict[str, Any]:
    """Fit one planted tensor and compare with the truth."""
    result = fit(JointModel(parts.train.shape, rank), parts, recipe, seed=seed, device=device)
    order = {"training": recipe.training, "guesses": recipe.guesses, "first": recipe.first}
    found = [factor.cpu().numpy() for factor in result.model.linear_factors]
    return {"seed": seed, **order, **compared(result, parts, truth), "components": aligned(found, truth)}


def compared(result: Fit, parts: Split, truth: Truth) -> dict[str, Any]:
    """A fit beside the truth; skill is 1 − RMSE / standard deviation of the test values."""
    figures = measure(result.predict(parts.test.indices), parts.test.values)
    found = [factor.cpu().numpy() for factor in result.model.linear_factors]
    return {
        "teacher_spread": float(truth.nonlinear.std() / truth.multilinear.std()),
        "teacher_zeros": float(np.mean(truth.nonlinear == 0)),
        "congruence": [float(c) for c in match_factors(found, truth.linear_factors).congruence],
        "rmse": figures.rmse,
        "rfe": figures.rfe,
        "skill": 1 - figures.rmse / float(parts.test.values.std()),
        "epochs": len(result.history),
        "seconds": result.seconds,
        "outcome": result.outcome,
    }


def aligned(found: list[NDArray[np.floating]], truth: Truth) -> dict[str, list[list[float]]]:
    """Components of the first mode, planted and found: of norm one, in the same order, with the same sign."""
    order = match_factors(found, truth.linear_factors).order
    planted_, found_ = (
        one / np.maximum(np.linalg.norm(one, axis=0), 1e-12) for one in (truth.linear_factors[0], found[0][:, order])
    )
    found_ = found_ * np.where((planted_ * found_).sum(axis=0) < 0, -1.0, 1.0)
    return {name: np.round(one.T, 4).tolist() for name, one in (("planted", planted_), ("found", found_))}


def recovered(fits: Sequence[Record]) -> int:
    """Tensors whose components all were recovered."""
    return sum(min(one["congruence"]) >= FOUND for one in fits)
