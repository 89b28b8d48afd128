"""Directions in which fibers agree, against dense matrices; and the sparse components that they make visible."""

import numpy as np
import pytest
import torch

from jointensor.data.store import Entries
from jointensor.evaluation.matching import match_factors
from jointensor.random_state import Generators
from jointensor.training import init_rank_one as rank_one
from jointensor.training.init_rank_one import leading_directions, rank_one_components

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def planted(shape, count, seed, rank=2, noise=0.3):
    rng = np.random.default_rng(seed)
    truth = [rng.standard_normal((size, rank)) for size in shape]
    cells = rng.choice(np.prod(shape), count, replace=False)
    indices = np.stack(np.unravel_index(cells, shape), axis=1)
    values = np.prod([table[indices[:, n]] for n, table in enumerate(truth)], axis=0).sum(axis=1)
    values += noise * values.std() * rng.standard_normal(count)
    return truth, torch.from_numpy(indices), torch.from_numpy(values).float()


@pytest.mark.parametrize("mode", range(4))
def test_directions_are_the_eigenvectors_of_products_of_entries_of_a_fiber(mode):
    shape = (9, 8, 7, 6)
    _, indices, values = planted(shape, 2000, 0, rank=3)
    dense = np.zeros(shape)
    dense[tuple(indices.numpy().T)] = values
    flat = np.moveaxis(dense, mode, 0).reshape(shape[mode], -1)
    gram = flat @ flat.T
    np.fill_diagonal(gram, 0.0)
    numbers, vectors = np.linalg.eigh(gram)
    order = np.argsort(-np.abs(numbers))
    found = leading_directions(indices, values, shape, mode, 3, Generators(CPU, 0)).double().numpy()
    assert found.shape == (shape[mode], 3)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-5)
    assert abs(vectors[:, order[0]] @ found).max() > 0.999


def test_nothing_is_said_where_fibers_are_not_shared_and_no_more_than_there_are_labels():
    alone = torch.stack([torch.arange(3000)] * 3, dim=1)
    assert leading_directions(alone, torch.randn(3000), (3000,) * 3, 0, 2, Generators(CPU, 0)) is None
    _, indices, values = planted((3, 40, 50), 3000, 1)
    assert leading_directions(indices, values, (3, 40, 50), 0, 8, Generators(CPU, 0)).shape == (3, 3)


def test_shapes_with_more_cells_than_numbers_of_64_bits():
    shape = (2**31, 2**31, 2**31, 50)
    _, indices, values = planted((20, 10, 15, 50), 4000, 2)
    large = indices * torch.tensor([10**8, 2 * 10**8, 10**8, 1])
    found = leading_directions(large, values, shape, 3, 2, Generators(CPU, 0))
    wanted = leading_directions(indices, values, (20, 10, 15, 50), 3, 2, Generators(CPU, 0))
    assert torch.linalg.svdvals(found.T @ wanted).min() > 0.999


@pytest.mark.parametrize("seed", range(3))
def test_components_of_one_cell_in_a_thousand_are_found(seed):
    shape = (600, 500, 400)
    truth, indices, values = planted(shape, 120_000, seed)
    train, valid = (Entries(indices[part], values[part]) for part in (slice(0, 110_000), slice(110_000, None)))
    found = rank_one_components(train, valid, shape, 2, Generators(CPU, 1), 0.4)
    assert match_factors(found, truth).congruence.min() > 0.95


def test_random_starts_alone_would_lose_them(monkeypatch):
    monkeypatch.setattr(rank_one, "leading_directions", lambda *_: None)
    lost = 0
    for seed in range(3):
        truth, indices, values = planted((600, 500, 400), 120_000, seed)
        train, valid = (Entries(indices[part], values[part]) for part in (slice(0, 110_000), slice(110_000, None)))
        found = rank_one_components(train, valid, (600, 500, 400), 2, Generators(CPU, 0), 0.4)
        lost += not found or found[0].shape[1] < 2 or match_factors(found, truth).congruence.min() < 0.95
    assert lost  # else the test above says nothing
