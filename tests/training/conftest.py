"""Tensors and recipes that train in a moment."""

import pytest

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.training.recipe import Recipe


def _bump(rows):
    return (rows[:, 0] * rows[:, 1]).sum(axis=1) ** 2 + rows[:, 2].sum(axis=1)


@pytest.fixture(scope="session")
def parts():
    """500 entries of a 9 × 8 × 7 tensor that is multilinear plus nonlinear: 360 for training, 40, 100."""
    tensor, _ = make_joint((9, 8, 7), (2, 2), _bump, observed=500, ratio=0.5, seed=3)
    return split(tensor, seed=0)


@pytest.fixture(scope="session")
def clear():
    """3,000 entries of a 20 × 18 × 15 tensor whose two components stand out."""
    tensor, _ = make_joint((20, 18, 15), (2, 2), _bump, observed=3000, ratio=0.3, seed=3)
    return split(tensor, seed=0)


@pytest.fixture
def short():
    """Every phase, a few epochs each, no stopping."""
    return Recipe(
        batch_size=64,
        lr_linear=0.02,
        lr_nonlinear=0.02,
        warm_epochs=3,
        rounds=4,
        refine_epochs=5,
        tolerance=0.0,
        patience=0,
        restarts=0,
    )
