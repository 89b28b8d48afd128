"""Interpolation against np.interp, fiber by fiber."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jointensor
from jointensor.data.modes import Mode
from jointensor.data.split import Split
from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rmse
from jointensor.predictors import Interpolation, fit_baselines, fit_bias
from jointensor.predictors.interpolation import best_interpolation


def partly(shape, share, seed, modes=None):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random(shape) < share, rng.standard_normal(shape), np.nan)
    dense[(0,) * len(shape)] = 1.0  # never empty
    return SparseTensor.from_dense(dense, modes)


def by_fiber(train, mode, coordinates, fallback, cells):
    """np.interp over the entries that agree with a cell in every other mode."""
    others = [n for n in range(train.n_modes) if n != mode]
    answers = []
    for cell in cells:
        fiber = (train.indices[:, others] == cell[others]).all(axis=1)
        if not fiber.any():
            answers.append(fallback.predict(cell[None])[0])
            continue
        at = coordinates[train.indices[fiber, mode]]
        order = np.argsort(at)
        answers.append(np.interp(coordinates[cell[mode]], at[order], train.values[fiber][order].astype(np.float64)))
    return np.array(answers)


@given(st.integers(0, 10_000), st.sampled_from([0, 1, 2]), st.sampled_from([0.1, 0.3, 0.9]))
@settings(max_examples=40, deadline=None)
def test_every_cell_is_interpolated_along_its_fiber(seed, mode, share):
    train = partly((4, 5, 6), share, seed)
    bias = fit_bias(train, train.take(np.arange(0)))
    cells = np.argwhere(np.ones(train.shape))
    expected = by_fiber(train, mode, np.arange(train.shape[mode], dtype=float), bias, cells)
    np.testing.assert_allclose(Interpolation.of(train, mode, bias).predict(cells), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("labels", [("0", "1", "10", "100", "1000"), ("30", "1", "2.5", "-4", "7")])
@pytest.mark.parametrize("mode", [0, 1])
def test_numbers_as_labels_are_the_coordinates_in_whatever_order_they_come(labels, mode):
    modes = [Mode("place", 4), Mode("place", 4)]
    modes[mode] = Mode("depth", 5, labels=labels, order="ordered")
    train = partly([m.size for m in modes], 0.6, 0, modes)
    bias = fit_bias(train, train.take(np.arange(0)))
    cells = np.argwhere(np.ones(train.shape))
    expected = by_fiber(train, mode, np.array([float(label) for label in labels]), bias, cells)
    np.testing.assert_allclose(Interpolation.of(train, mode, bias).predict(cells), expected, rtol=1e-6, atol=1e-7)


def test_observed_cells_come_back_as_they_are():
    train = partly((4, 5, 6), 0.5, 1)
    bias = fit_bias(train, train.take(np.arange(0)))
    np.testing.assert_allclose(Interpolation.of(train, 2, bias).predict(train.indices), train.values, rtol=1e-6)


def test_a_fiber_without_entries_and_an_unseen_label_are_answered_by_the_biases():
    dense = np.full((3, 2, 4), np.nan)
    dense[0, 0, [0, 3]] = [1.0, 4.0]
    dense[1, 1, 2] = 9.0
    train = SparseTensor.from_dense(dense)
    bias = fit_bias(train, train.take(np.arange(0)))
    interp = Interpolation.of(train, 2, bias)
    assert interp.predict(np.array([[0, 0, 1], [1, 1, 0]])).tolist() == pytest.approx([2.0, 9.0])
    asked = np.array([[2, 0, 1], [0, 1, 1], [-1, 0, 1], [0, 0, -1], [0, -1, 1]])
    np.testing.assert_allclose(interp.predict(asked), bias.predict(asked))


def test_the_ordered_mode_that_validates_best_is_chosen():
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((9, 3, 1)) + np.linspace(0, 5, 20) + 0.01 * rng.standard_normal((9, 3, 20))
    for along, sizes in ((2, (9, 3, 20)), (0, (20, 3, 9))):
        values = dense if along == 2 else dense.transpose(2, 1, 0)
        modes = [Mode(name, size, order="ordered") for name, size in zip("abc", sizes, strict=True)]
        tensor = SparseTensor.from_dense(values, modes)
        order = rng.permutation(len(tensor))
        parts = Split(*(tensor.take(piece) for piece in (order[:300], order[300:400], order[400:])))
        fitted = fit_baselines(parts)
        assert list(fitted) == ["mean", "bias", "tables", "interp"]
        assert fitted["interp"].mode == along
        assert rmse(fitted["interp"].predict(parts.test.indices), parts.test.values) < 0.3


def test_without_an_ordered_mode_there_is_nothing_to_interpolate_along():
    train = partly((4, 5), 0.5, 0)
    bias = fit_bias(train, train.take(np.arange(0)))
    assert best_interpolation(train, train, bias) is None


def test_cells_that_cannot_be_numbered_are_not_interpolated():
    """Four modes of two million labels have more cells than fit into 62 bits."""
    modes = [Mode(name, 2**21, order="ordered") for name in "abcd"]
    train = SparseTensor([[5, 6, 7, 8], [9, 10, 11, 12]], [1.0, 2.0], modes)
    bias = fit_bias(train, train.take(np.arange(0)))
    assert best_interpolation(train, train, bias) is None


@pytest.mark.slow
def test_healthcare_has_the_measured_test_error(real):
    parts = jointensor.split(jointensor.read_tensor(real("healthcare_hhs_county.npz")).tensor)
    interp = best_interpolation(parts.train, parts.valid, fit_bias(parts.train, parts.valid))
    assert rmse(interp.predict(parts.test.indices), parts.test.values) == pytest.approx(0.405, rel=0.01)
