"""Shared by all tests: where real tensors are, and names that doctests may use."""

import os
from pathlib import Path

# Two threads that wait for each other crawl when something else holds a core; set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for a GPU run on the CPU; read when they are defined

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
