"""Shared by all tests: where real tensors are, and names that doctests may use."""

import os
from pathlib import Path

# Two threads that wait for each other crawl when something else holds a core; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
# the same examples in every run; `make test-all` draws new ones, and what they find becomes an @example
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for a GPU run on the CPU; read when they are defined

pytest_plugins = ["tests.command_line"]

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    from jointensor import SparseTensor, split

    doctest_namespace |= {"np": np, "SparseTensor": SparseTensor, "split": split}


@pytest.fixture
def real():
    """Path of a real tensor; skips where the data are absent."""

    def path(name):
        file = REAL_DATA / name
        if not file.exists():
            pytest.skip(f"real data are not here: {file}")
        return file

    return path


def _bump(rows):
    return (rows[:, 0] * rows[:, 1]).sum(axis=1) ** 2 + rows[:, 2].sum(axis=1)


@pytest.fixture(scope="session")
def parts():
    """500 entries of a 9 × 8 × 7 tensor that is multilinear plus nonlinear: 360 for training, 40, 100."""
    from jointensor.data.split import split
    from jointensor.data.synthetic import make_joint

    tensor, _ = make_joint((9, 8, 7), (2, 2), _bump, observed=500, ratio=0.5, seed=3)
    return split(tensor, seed=0)


@pytest.fixture(scope="session")
def clear():
    """3,000 entries of a 20 × 18 × 15 tensor whose two components stand out."""
    from jointensor.data.split import split
    from jointensor.data.synthetic import make_joint

    tensor, _ = make_joint((20, 18, 15), (2, 2), _bump, observed=3000, ratio=0.3, seed=3)
    return split(tensor, seed=0)


@pytest.fixture
def short():
    """Every phase, a few epochs each, no stopping."""
    from jointensor.training.recipe import Recipe

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
