"""Permutations undone from their swaps, beside NumPy's own."""

import numpy as np
import pytest

from jointensor.kernels import numba_shuffle
from jointensor.kernels.numba_shuffle import agrees_with_numpy, scatter_by_permutation


@pytest.mark.parametrize("count", [1, 2, 3, 100, 4097, 70_001])
@pytest.mark.parametrize("draws", [64, 1 << 20])
def test_what_is_at_a_place_comes_back_to_its_item(monkeypatch, tmp_path, count, draws):
    monkeypatch.setattr(numba_shuffle, "MAX_DRAWS", draws if count < 5000 else 1 << 14)
    written = np.random.default_rng(1).integers(256, size=count).astype(np.uint8)
    for seed in (0, 7):
        places = written.copy()
        scatter_by_permutation(places, seed, str(tmp_path))
        np.testing.assert_array_equal(places[np.random.default_rng(seed).permutation(count)], written)
    assert not list(tmp_path.iterdir())


def test_it_is_used_with_this_numpy():
    assert agrees_with_numpy()
