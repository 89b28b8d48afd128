"""The biases on a device against those of NumPy."""

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.biases import fit_bias, fit_bias_on_device


@pytest.mark.parametrize("valid", [0.1, 0.0])
def test_biases_are_those_of_numpy(valid):
    rng = np.random.default_rng(0)
    shape = (12, 9, 30)
    cells = np.unique(np.stack([rng.integers(size - 2, size=900) for size in shape], axis=1), axis=0)  # some never seen
    values = rng.normal(size=12)[cells[:, 0]] + rng.normal(size=9)[cells[:, 1]] + 0.3 * rng.normal(size=len(cells)) + 5
    parts = split(SparseTensor(cells, values, shape), valid=valid)
    expected = fit_bias(parts.train, parts.valid)
    given = [
        (torch.as_tensor(p.indices.copy()).long(), torch.as_tensor(p.values.copy())) for p in (parts.train, parts.valid)
    ]
    found = fit_bias_on_device(given[0], given[1], shape)
    assert found.shrinkage == expected.shrinkage
    every = np.stack(np.meshgrid(*(np.arange(size) for size in shape), indexing="ij"), axis=-1).reshape(-1, 3)
    np.testing.assert_allclose(found.predict(every), expected.predict(every), rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(found.tables, expected.tables, strict=True):
        np.testing.assert_array_equal(mine.keys, theirs.keys)
