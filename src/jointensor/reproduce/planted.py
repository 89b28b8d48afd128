"""Planted tensors of figure 2 of the paper: are the multilinear components of a mixed tensor recovered?

A 100 × 100 × 100 tensor with R = 3 multilinear and F = 10 nonlinear components, 80 % missing. The planted network
is a JULIA network, scaled to a multiple of the standard deviation of the multilinear part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.split import Split, split
from jointensor.data.synthetic import Network, Truth, make_joint
from jointensor.evaluation.matching import match_factors
from jointensor.metrics import measure
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear.julia import Julia
from jointensor.training.fit import fit
from jointensor.training.recipe import Recipe


def planted(size: int, rank: tuple[int, int], ratio: float, seed: int) -> tuple[Split, Truth]:
    """The paper's synthetic tensor: 20 % observed, of which 80 % for training and 20 % for testing."""
    tensor, truth = make_joint((size,) * 3, rank, julia_network(3, rank[1], seed), ratio=ratio, seed=seed)
    return split(tensor, test=0.2, valid=0.1, seed=seed), truth


def julia_network(modes: int, width: int, seed: int) -> Network:
    """A JULIA network with random weights, as a function of NumPy rows.

    Its output bias lets the output ReLU cut off the lowest tenth of the entries: a planted network that
    is zero almost everywhere would make a multilinear tensor with a few outliers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Julia(modes, width, output="identity")

    def evaluate(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        with torch.no_grad():
            score = network(torch.as_tensor(rows, dtype=torch.float32)).double().numpy()
        return np.maximum(score - np.quantile(score, 0.1), 0.0)

    return evaluate


def run_one(
    parts: Split, truth: Truth, recipe: Recipe, rank: tuple[int, int], *, ratio: float, seed: int, device: str = "auto"
) -> dict[str, Any]:
    """Fit one planted tensor and compare with the truth; skill is 1 − RMSE / standard deviation of the test values."""
    result = fit(JointModel(parts.train.shape, rank), parts, recipe, seed=seed, device=device)
    figures = measure(result.predict(parts.test.indices), parts.test.values)
    found = [factor.cpu().numpy() for factor in result.model.linear_factors]
    congruence = match_factors(found, truth.linear_factors).congruence
    return {
        "ratio": ratio,
        "seed": seed,
        "training": recipe.training,
        "guesses": recipe.guesses,
        "first": recipe.first,
        "congruence": [float(c) for c in congruence],
        "rmse": figures.rmse,
        "skill": 1 - figures.rmse / float(parts.test.values.std()),
        "epochs": len(result.history),
        "seconds": result.seconds,
        "outcome": result.outcome,
    }
