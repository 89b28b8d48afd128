"""Bias and table predictors against exact ridge regression, planted tables and measured figures."""

import math

import numpy as np
import pytest

import jointensor
from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rmse
from jointensor.predictors import Mean, fit_baselines, fit_bias, fit_tables
from jointensor.predictors.biases import SHRINKAGE_GRID
from jointensor.predictors.tables import DEFAULT_SHRINKAGE, MAX_SUBSETS


def additive(seed, shape=(6, 5, 4), noise=0.5):
    rng = np.random.default_rng(seed)
    dense = noise * rng.standard_normal(shape)
    for n, size in enumerate(shape):
        dense = dense + rng.standard_normal([size if m == n else 1 for m in range(len(shape))])
    return SparseTensor.from_dense(dense)


def cut(tensor, train, valid=0, seed=0):
    order = np.random.default_rng(seed).permutation(len(tensor))
    pieces = order[:train], order[train : train + valid], order[train + valid :]
    return Split(*(tensor.take(piece) for piece in pieces))


def exact_ridge(train, shrinkage):
    """Effects of min ‖x − mean − D b‖² + λ ‖b‖² by a dense solve, one array per mode."""
    design = np.hstack([np.eye(size)[train.indices[:, n]] for n, size in enumerate(train.shape)])
    target = train.values - train.values.mean(dtype=np.float64)
    effects = np.linalg.solve(design.T @ design + shrinkage * np.eye(design.shape[1]), design.T @ target)
    return np.split(effects, np.cumsum(train.shape)[:-1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(9, 8), (6, 5, 4), (4, 4, 3, 3)])
def test_biases_without_validation_are_the_exact_ridge_solution(seed, shape):
    tensor = additive(seed, shape)
    parts = cut(tensor, train=int(0.6 * len(tensor)), seed=seed)
    bias = fit_bias(parts.train, parts.valid)
    assert bias.shrinkage == (DEFAULT_SHRINKAGE,) * len(shape)
    assert bias.mean == pytest.approx(parts.train.values.mean(dtype=np.float64))
    for table, expected in zip(bias.tables, exact_ridge(parts.train, DEFAULT_SHRINKAGE), strict=True):
        np.testing.assert_allclose(table.effects[:-1], expected[table.keys], atol=1e-3)


@pytest.mark.parametrize("noise", [0.1, 3.0, 30.0])
def test_biases_on_a_full_tensor_are_the_exact_ridge_solution_with_the_shrinkage_that_validates_best(noise):
    train = additive(1, noise=noise)  # full: the modes are orthogonal and one round is exact
    valid = additive(2, noise=noise)
    bias = fit_bias(train, valid)
    predictions = {}
    for shrinkage in SHRINKAGE_GRID:
        effects = exact_ridge(train, shrinkage)
        by_mode = sum(e[valid.indices[:, n]] for n, e in enumerate(effects))
        predictions[shrinkage] = train.values.mean(dtype=np.float64) + by_mode
    best = min(SHRINKAGE_GRID, key=lambda shrinkage: rmse(predictions[shrinkage], valid.values))
    assert bias.shrinkage == (best,) * 3
    np.testing.assert_allclose(bias.predict(valid.indices), predictions[best], rtol=1e-6, atol=1e-9)


def test_noise_is_shrunk_more_than_signal():
    shrinkages = []
    for noise in (0.0, 30.0):
        tensor = additive(0, (8, 7, 6), noise)
        parts = cut(tensor, 120, 60)
        shrinkages.append(fit_bias(parts.train, parts.valid).shrinkage[0])
    assert shrinkages[0] == min(SHRINKAGE_GRID)
    assert shrinkages[1] > shrinkages[0]


def test_one_mode_of_effects_is_the_shrunk_mean_of_each_label():
    values = np.array([1.0, 3.0, 2.0, 10.0, 20.0, 12.0])
    tensor = SparseTensor([[0, 0], [0, 1], [0, 2], [1, 3], [1, 4], [2, 5]], values, (3, 6))
    table = fit_tables(tensor, tensor.take(np.arange(0))).tables[0]
    singles = exact_ridge(tensor, DEFAULT_SHRINKAGE)[0]
    np.testing.assert_allclose(table.effects[:-1], singles, atol=1e-3)


def test_unseen_labels_and_combinations_add_nothing():
    parts = cut(additive(0), 70, 20)
    for fitted in (fit_bias(parts.train, parts.valid), fit_tables(parts.train, parts.valid)):
        assert fitted.predict(np.array([[-1, -1, -1]]))[0] == fitted.mean
        alone = next(table for table in fitted.tables if table.modes == (1,))
        assert alone.keys[2] == 2
        assert fitted.predict(np.array([[-1, 2, -1]]))[0] == pytest.approx(fitted.mean + alone.effects[2])
        assert all(table.effects[-1] == 0 for table in fitted.tables)


def test_a_label_without_training_entries_is_like_an_unknown_one():
    tensor = additive(0)
    train = tensor.take(np.flatnonzero(tensor.indices[:, 0] != 3))
    for fitted in (fit_bias(train, tensor.take(np.arange(20))), fit_tables(train, tensor.take(np.arange(20)))):
        there, unknown = (fitted.predict(np.array([[first, 1, 2]]))[0] for first in (3, -1))
        assert there == unknown


def test_tables_find_a_pair_of_modes_that_determines_the_value():
    rng = np.random.default_rng(0)
    pair = rng.standard_normal((7, 8))
    tensor = SparseTensor.from_dense(np.broadcast_to(pair[:, :, None], (7, 8, 9)))
    parts = cut(tensor, 350, 50)
    tables = fit_tables(parts.train, parts.valid)
    bias = fit_bias(parts.train, parts.valid)
    truth = pair[tuple(parts.test.indices[:, :2].T)]
    assert rmse(tables.predict(parts.test.indices), truth) < 0.05 * pair.std()
    assert rmse(bias.predict(parts.test.indices), truth) > 0.5 * pair.std()
    assert {table.modes for table in tables.tables} == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)}
    chosen = dict(zip([table.modes for table in tables.tables], tables.shrinkage, strict=True))
    assert chosen[0, 1] < 1.0


def test_tables_of_noise_are_left_out():
    rng = np.random.default_rng(0)
    parts = cut(SparseTensor.from_dense(rng.standard_normal((12, 11, 10))), 800, 260)
    tables = fit_tables(parts.train, parts.valid)
    assert rmse(tables.predict(parts.test.indices), parts.test.values) < 1.03 * parts.test.values.std()
    assert all(shrinkage >= 30 for table, shrinkage in zip(tables.tables, tables.shrinkage, strict=True))
    empty = [t for t, shrinkage in zip(tables.tables, tables.shrinkage, strict=True) if math.isinf(shrinkage)]
    assert all(not table.effects.any() for table in empty)


def test_the_figure_of_tables_is_that_of_their_sum_over_all_subsets():
    parts = cut(additive(3), 70, 20)
    tables = fit_tables(parts.train, parts.valid)
    cell = parts.test.indices[:1]
    expected = tables.mean
    for table in tables.tables:
        position = np.flatnonzero((parts.train.indices[:, table.modes] == cell[:, table.modes]).all(axis=1))
        if len(position):
            combinations = np.unique(parts.train.indices[:, table.modes], axis=0)
            row = np.flatnonzero((combinations == cell[0, list(table.modes)]).all(axis=1))[0]
            expected += table.effects[row]
    assert tables.predict(cell)[0] == pytest.approx(expected)


def test_subsets_are_bounded_small_ones_first():
    rng = np.random.default_rng(0)
    tensor = SparseTensor(np.unique(rng.integers(3, size=(60, 6)), axis=0)[:40], np.ones(40), (3,) * 6)
    tables = fit_tables(tensor, tensor.take(np.arange(0)))
    assert len(tables.tables) == MAX_SUBSETS
    assert [len(table.modes) for table in tables.tables] == [1] * 6 + [2] * 15 + [3] * 9


def test_subsets_whose_cells_cannot_be_numbered_are_left_out():
    """Three modes of two million labels have more cells than fit into 62 bits."""
    cells = np.array([[5, 6, 7, 8], [9, 10, 11, 12], [2, 3, 4, 10]])
    tensor = SparseTensor(cells, [1.0, 2.0, 6.0], (2**21,) * 4)
    tables = fit_tables(tensor, tensor.take(np.arange(0)))
    assert max(len(table.modes) for table in tables.tables) == 2
    together = tables.predict(cells)
    assert np.array_equal([tables.predict(cell[None])[0] for cell in cells], together)
    assert tables.predict(np.array([[1, 1, 1, 1]]))[0] == tables.mean == 3.0


def test_all_baselines_of_a_split():
    parts = cut(additive(0), 70, 20)
    fitted = fit_baselines(parts)
    assert list(fitted) == ["mean", "bias", "tables"]
    mean = fitted["mean"]
    assert isinstance(mean, Mean)
    assert mean.predict(parts.test.indices).tolist() == [pytest.approx(parts.train.values.mean(), rel=1e-6)] * 30


def figure(path, fitter):
    parts = jointensor.split(jointensor.read_tensor(path).tensor)
    return rmse(fitter(parts.train, parts.valid).predict(parts.test.indices), parts.test.values)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uber_apr_jun", 0.910),
        ("ml_100k", 0.934),
        ("ml_25m_first100k", 0.868),
        ("facebook_wall_1yr", 0.808),
        ("costco_demo", 0.1506),
    ],
)
def test_biases_of_real_tensors_have_the_measured_test_error(real, name, expected):
    assert figure(real(f"{name}.npz"), fit_bias) == pytest.approx(expected, rel=0.005)


@pytest.mark.slow
def test_tables_of_nips_have_the_measured_test_error(real):
    assert figure(real("nips_0_12.npz"), fit_tables) == pytest.approx(1.82, rel=0.01)
