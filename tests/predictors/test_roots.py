"""Models of the roots of values: amounts and counts whose noise grows with their size."""

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.models.joint import JointModel
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.roots import Squares, has_roots, with_roots
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.families import FAMILIES, FitOptions
from jointensor.search.portfolio import Candidate, exact_candidates
from tests.predictors.test_ensemble import NONE, TENSOR, predictor_of

SQUARES = Squares(predictor_of(), 2.0, 0.25)
CANDIDATE = Candidate("roots", "roots", 4, (2, 0), linear="mean+bias+cp:2")


def counts(seed=0):
    """Poisson counts of two components, most cells observed, and their means."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(0.7, 3.0, (size, 2)) for size in (20, 15, 12)]
    means = np.einsum("ir,jr,kr->ijk", *factors)
    cells = np.argwhere(rng.random(means.shape) < 0.6)
    return SparseTensor(cells, rng.poisson(means[tuple(cells.T)]), (20, 15, 12)), means


def test_a_square_is_that_of_the_prediction_and_never_less_than_the_offset():
    roots = SQUARES.inner.predict(TENSOR.indices)
    assert (roots < 0).any()
    assert np.allclose(SQUARES.predict(TENSOR.indices), 2 * np.where(roots > 0, roots, 0) ** 2 + 0.25)


def test_scale_and_offset_are_those_of_the_least_squares_line():
    inner = predictor_of()
    squares = Squares(inner).predict(TENSOR.indices)
    rng = np.random.default_rng(0)
    values = 1.5 * squares - 0.2 + 0.1 * rng.standard_normal(len(squares))
    found = Squares.of(inner, TENSOR.with_values(values.astype(np.float32)))
    assert [found.scale, found.offset] == pytest.approx(np.polyfit(squares, values, 1).tolist(), rel=1e-4)
    assert Squares.of(inner, TENSOR.with_values((9 * squares).astype(np.float32))).scale == 2.0
    assert (Squares.of(inner, NONE).scale, Squares.of(inner, NONE).offset) == (1.0, 0.0)


def test_roots_are_taken_of_amounts_and_counts_of_different_sizes():
    assert has_roots(np.array([1.0, 2.0, 9.0, 30.0]))
    assert has_roots(np.append(np.arange(1000.0), -3.0))
    assert not has_roots(np.array([3.0, 4.0, 5.0, 3.0]))  # ratings
    assert not has_roots(np.array([-1.0, 0.0, 1.0, 9.0]))
    assert not has_roots(np.zeros(4))
    assert np.array_equal(with_roots(SparseTensor([[0, 0], [1, 1]], [-4.0, 9.0], (2, 2))).values, [0.0, 3.0])


def test_of_counts_a_model_of_roots_is_nearer_to_the_means_than_one_of_the_values():
    """Measured where counts are small: least squares of the values hardly sees those."""
    tensor, means = counts()
    train, valid = tensor.take(np.arange(300, len(tensor))), tensor.take(np.arange(300))
    options = FitOptions(device="cpu")
    roots = FAMILIES["roots"].fit(CANDIDATE, train, valid, options)
    plain = FAMILIES["exact"].fit(CANDIDATE, train, valid, options)
    cells = np.argwhere(means < np.median(means))
    errors = [np.abs(one.predict(cells) - means[tuple(cells.T)]).mean() for one in (roots, plain)]
    assert errors[0] < 0.8 * errors[1]


def test_a_refit_solves_on_with_the_roots_of_all_entries():
    tensor, _ = counts()
    train, valid = tensor.take(np.arange(300, len(tensor))), tensor.take(np.arange(300))
    options = FitOptions(device="cpu")
    found = FAMILIES["roots"].fit(CANDIDATE, train, valid, options)
    again = FAMILIES["roots"].refit(CANDIDATE, [found, found], tensor, options)
    assert (again.scale, again.offset) == (found.scale, found.offset)
    roots = np.sqrt(valid.values)
    errors = [np.square(one.inner.predict(valid.indices) - roots).mean() for one in (found, again)]
    assert errors[1] < errors[0]


def test_new_labels_are_learnt_on_the_scale_of_roots():
    tensor, _ = counts()
    model = JointModel(tensor.shape, (0, 0), linear="mean+bias").eval()
    found = Squares(JointPredictor(model, fit_bias(with_roots(tensor), with_roots(tensor))))
    modes = (Mode("mode_0", 21), *tensor.modes[1:])
    fresh = SparseTensor([[20, j, k] for j in range(15) for k in range(12)], np.full(180, 400.0), modes)
    grown = found.with_entries(fresh)
    assert grown.inner.fallback.predict(np.array([[20, 0, 0]]))[0] < 40.0  # 20 is the root
    assert np.array_equal(grown.predict(tensor.indices), found.predict(tensor.indices))


def test_they_are_a_candidate_of_amounts_only():
    tensor, _ = counts()
    assert [one.name for one in exact_candidates(tensor)] == ["cp", "cp, roots"]
    ratings = tensor.with_values(3.0 + np.arange(len(tensor)) % 3)
    assert [one.name for one in exact_candidates(ratings)] == ["cp"]


def test_an_offset_that_is_no_number_is_refused(tmp_path):
    save_predictor(Squares(SQUARES.inner, 1.0, float("nan")), tmp_path / "w")
    with pytest.raises(RunError, match="offset"):
        load_predictor(tmp_path / "w")
