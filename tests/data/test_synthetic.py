import numpy as np
import pytest

from jointensor.data.synthetic import draw_cells, make_joint
from jointensor.errors import ConfigError


def product_network(rows):
    return np.tanh(rows).prod(axis=1).sum(axis=1) + 3


def test_values_are_the_dense_cp_at_the_observed_cells():
    tensor, truth = make_joint((4, 5, 6), (3, 0), observed=0.5, seed=1)
    dense = np.einsum("ir,jr,kr->ijk", *truth.linear_factors)
    np.testing.assert_allclose(tensor.values, dense[tuple(tensor.indices.T)], rtol=1e-6)
    np.testing.assert_array_equal(truth.nonlinear, 0)
    assert len(tensor) == 60


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_nonlinear_part_has_the_deviation_asked_for(ratio):
    tensor, truth = make_joint((10, 11, 12), (2, 4), product_network, observed=300, ratio=ratio, seed=0)
    assert truth.nonlinear.std() == pytest.approx(ratio * truth.multilinear.std(), rel=1e-12)
    np.testing.assert_array_equal(tensor.values, (truth.multilinear + truth.nonlinear).astype(np.float32))
    rows = np.stack([t[c] for t, c in zip(truth.nonlinear_factors, tensor.indices.T, strict=True)], axis=1)
    raw = product_network(rows)
    np.testing.assert_allclose(truth.nonlinear / truth.nonlinear.std(), raw / raw.std(), rtol=1e-12)


def test_nonlinear_part_alone():
    tensor, truth = make_joint((6, 7, 8), (0, 4), product_network, observed=200)
    np.testing.assert_array_equal(truth.multilinear, 0)
    assert tensor.values.std() == pytest.approx(1, rel=1e-6)


def test_noise_is_relative_to_the_values():
    clean, _ = make_joint((30, 30, 30), (3, 0), observed=20_000, seed=0)
    noisy, _ = make_joint((30, 30, 30), (3, 0), observed=20_000, noise=0.5, seed=0)
    np.testing.assert_array_equal(clean.indices, noisy.indices)
    assert (noisy.values - clean.values).std() == pytest.approx(0.5 * clean.values.std(), rel=0.03)


def test_seed_decides_everything():
    first, again, other = (make_joint((5, 5, 5), (2, 0), seed=seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.values, again.values)
    assert first.indices.tolist() != other.indices.tolist()


def test_numpy_integers_are_numbers_of_entries():
    assert len(make_joint((5, 5, 5), (1, 0), observed=np.int64(7))[0]) == 7


@pytest.mark.parametrize("entries", [1, 20, 24])
def test_drawn_cells_are_distinct_and_inside(entries):
    cells = draw_cells((2, 3, 4), entries, np.random.default_rng(0))
    assert len({tuple(cell) for cell in cells.tolist()}) == entries
    assert (cells >= 0).all()
    assert (cells < [2, 3, 4]).all()


def test_every_cell_is_drawn_as_often_as_any_other():
    rng = np.random.default_rng(0)
    counts = np.zeros((2, 3))
    for _ in range(3000):
        counts[tuple(draw_cells((2, 3), 2, rng).T)] += 1
    assert counts.sum() == 6000
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 20.5  # 99.9 % of five degrees of freedom


def test_huge_shapes_cost_as_much_as_their_entries():
    cells = draw_cells((10**9,) * 5, 1000, np.random.default_rng(0))
    assert cells.shape == (1000, 5)
    tensor, _ = make_joint((10**5,) * 4, (1, 0), observed=100)
    assert tensor.shape == (10**5,) * 4


@pytest.mark.parametrize("observed", [0, 0.0, -3, 126, 1.5])
def test_more_cells_than_there_are_or_none_are_refused(observed):
    with pytest.raises(ConfigError, match="entries cannot be drawn from 125 cells"):
        make_joint((5, 5, 5), (1, 0), observed=observed)


def test_nonlinear_components_need_a_network():
    with pytest.raises(ConfigError, match="F = 2 nonlinear components need a network"):
        make_joint((5, 5, 5), (1, 2))
