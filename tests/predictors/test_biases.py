"""The biases against tables of single modes with the same λ, which are fitted in NumPy by other code."""

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.predictors import tables
from jointensor.predictors.biases import SHRINKAGE_GRID, fit_bias, fit_bias_on_device
from jointensor.predictors.tables import DEFAULT_SHRINKAGE

SHAPE = (12, 9, 30)


def by_tables(parts, shrinkage):
    """Error and tables of one λ."""
    fits = [tables._TableFit.of(parts.train, parts.valid, (n,)) for n in range(len(SHAPE))]
    found = tables._backfit(fits, parts.train, parts.valid, (shrinkage,))
    return np.sqrt(np.mean((found.predict(parts.valid.indices) - parts.valid.values) ** 2)), found


@pytest.mark.parametrize("valid", [0.1, 0.0])
def test_biases_are_shrunk_means_of_single_modes(valid):
    rng = np.random.default_rng(0)
    cells = np.unique(np.stack([rng.integers(size - 2, size=900) for size in SHAPE], axis=1), axis=0)  # some never seen
    values = rng.normal(size=12)[cells[:, 0]] + rng.normal(size=9)[cells[:, 1]] + 0.3 * rng.normal(size=len(cells)) + 5
    parts = split(SparseTensor(cells, values, SHAPE), valid=valid)
    if valid:
        (_, expected), best = min((by_tables(parts, one), one) for one in SHRINKAGE_GRID)
    else:
        expected, best = tables._backfit(
            [tables._TableFit.of(parts.train, parts.valid, (n,)) for n in range(len(SHAPE))],
            parts.train, parts.valid, (DEFAULT_SHRINKAGE,),
        ), DEFAULT_SHRINKAGE  # fmt: skip
    given = [(torch.as_tensor(p.indices.copy()), torch.as_tensor(p.values.copy())) for p in (parts.train, parts.valid)]
    every = np.stack(np.meshgrid(*(np.arange(size) for size in SHAPE), indexing="ij"), axis=-1).reshape(-1, 3)
    for found in (fit_bias(parts.train, parts.valid), fit_bias_on_device(*given, SHAPE)):
        assert set(found.shrinkage) == {best}
        np.testing.assert_allclose(found.predict(every), expected.predict(every), rtol=1e-7, atol=1e-7)
        for mine, theirs in zip(found.tables, expected.tables, strict=True):
            np.testing.assert_array_equal(mine.keys, theirs.keys)
