"""Rank-one components against the singular value decomposition and planted components."""

import numpy as np
import pytest
import torch

from jointensor.data.store import Entries
from jointensor.evaluation.matching import match_factors
from jointensor.random_state import Generators
from jointensor.training.init_rank_one import rank_one_components

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def sample(dense, keep=None):
    indices = np.argwhere(np.ones(dense.shape))
    indices = indices if keep is None else indices[keep]
    return Entries(torch.as_tensor(indices), torch.as_tensor(dense[tuple(indices.T)], dtype=torch.float32))


def empty(modes):
    return Entries(torch.zeros(0, modes, dtype=torch.int64), torch.zeros(0))


def test_components_of_a_full_matrix_are_its_leading_singular_vectors():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((size, 4)))[0] for size in (60, 50))
    matrix = (left * [100.0, 50.0, 20.0, 5.0]) @ right.T
    found = rank_one_components(sample(matrix), empty(2), (60, 50), 3, Generators(CPU, 0))
    assert [tuple(table.shape) for table in found] == [(60, 3), (50, 3)]
    u, _, vt = np.linalg.svd(matrix)
    for r in range(3):
        assert abs(u[:, r] @ found[0][:, r].numpy()) / np.linalg.norm(found[0][:, r]) > 0.995
        assert abs(vt[r] @ found[1][:, r].numpy()) / np.linalg.norm(found[1][:, r]) > 0.995


def test_planted_components_are_found_from_a_third_of_the_cells():
    rng = np.random.default_rng(1)
    truth = [rng.standard_normal((24, 3)) * [1.5, 1.2, 1.0] for _ in range(3)]
    dense = np.einsum("ar,br,cr->abc", *truth)
    keep = rng.permutation(dense.size)
    found = rank_one_components(
        sample(dense, keep[:4600]), sample(dense, keep[4600:5000]), dense.shape, 3, Generators(CPU, 0)
    )
    assert match_factors(found, truth).congruence.min() > 0.95


def test_a_rank_one_tensor_is_explained_by_one_component_of_balanced_size():
    rng = np.random.default_rng(2)
    truth = [rng.standard_normal((size, 1)) + 2 for size in (30, 25, 20)]
    dense = np.einsum("ar,br,cr->abc", *truth)
    found = rank_one_components(sample(dense), empty(3), dense.shape, 1, Generators(CPU, 0))
    explained = np.einsum("ar,br,cr->abc", *found)
    assert np.linalg.norm(dense - explained) < 0.02 * np.linalg.norm(
        dense
    )  # every mode is shrunk by 3 of at least 500 entries
    sizes = [table.square().mean().sqrt().item() for table in found]
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-4)


def test_a_component_that_does_not_validate_ends_the_search():
    rng = np.random.default_rng(3)
    noise = sample(rng.standard_normal((12, 11, 10)))
    zeros = Entries(noise.indices[:100], torch.zeros(100))
    assert rank_one_components(noise, zeros, (12, 11, 10), 2, Generators(CPU, 0)) == []
    assert rank_one_components(noise, empty(3), (12, 11, 10), 2, Generators(CPU, 0))[0].shape == (12, 2)


def test_labels_without_entries_get_zero_rows():
    dense = np.outer(np.arange(1.0, 7.0), np.arange(1.0, 6.0))
    indices = np.argwhere(np.ones((6, 5)))
    indices = indices[indices[:, 0] != 2]
    values = torch.as_tensor(dense[tuple(indices.T)], dtype=torch.float32)
    found = rank_one_components(Entries(torch.as_tensor(indices), values), empty(2), (6, 5), 1, Generators(CPU, 0))
    assert found[0][2].item() == 0
    assert (found[0][[0, 1, 3, 4, 5]] != 0).all()
