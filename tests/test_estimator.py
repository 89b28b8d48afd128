"""TensorCompleter: scikit-learn's own checks, labels of every kind, and what it learns."""

import importlib
import pickle
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from jointensor import JointModel, Recipe, TensorCompleter
from jointensor.data.modes import UNSEEN
from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError, MissingPackageError
from jointensor.predictors.biases import fit_bias

QUICK = Recipe(warm_epochs=2, rounds=2, refine_epochs=5, restarts=0)
LONGER = Recipe(
    warm_epochs=5, rounds=5, refine_epochs=20, restarts=0, batch_size=128, lr_linear=0.03, lr_nonlinear=0.03
)
SHAPE = (12, 10, 8)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models this small only wait for threads, the more so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def quick(**settings):
    return TensorCompleter(**{"rank": (2, 4), "recipe": QUICK, "device": "cpu", "random_state": 0} | settings)


def planted(seed=0):
    """Two thirds of a positive rank-one tensor: positions, values, and the positions held back."""
    rng = np.random.default_rng(seed)
    factors = [rng.uniform(0.5, 2.0, size) for size in SHAPE]
    cells = rng.permutation(np.argwhere(np.ones(SHAPE)))
    values = np.prod([factor[cells[:, n]] for n, factor in enumerate(factors)], axis=0)
    known = len(cells) * 2 // 3
    return cells[:known], values[:known], cells[known:], values[known:]


def ratings():
    """A table with a column of numbers, one of text, one of dates; some cells twice."""
    rng = np.random.default_rng(1)
    rows = 80
    users, films = rng.integers(0, 6, rows), np.array(["alien", "brazil", "casablanca"])[rng.integers(0, 3, rows)]
    days = np.array(["2024-01-01", "2024-01-02", "2024-01-03"])[rng.integers(0, 3, rows)]
    return pd.DataFrame({"user": users, "film": films, "day": days}), rng.normal(3.0, 1.0, rows)


@parametrize_with_checks([quick(random_state=None)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_settings_are_stored_and_cloned_as_given():
    settings = {"rank": (3, 0), "linear": "mean+cp:2", "recipe": QUICK, "loss": "huber", "budget": 9.0}
    copy = clone(TensorCompleter(**settings))
    assert {name: copy.get_params()[name] for name in settings} == settings
    with pytest.raises(TypeError, match="positional"):
        TensorCompleter((4, 16))


# --- labels


def test_one_table_in_any_frame_gives_the_same_predictions():
    frame, y = ratings()
    shapes = [
        (frame, pd.Series(y)),
        (pl.from_pandas(frame), pl.Series(y)),
        (pa.Table.from_pandas(frame), pa.chunked_array([y])),
        (frame.astype("category"), y),
        (frame.astype(object), y),
        (frame.to_numpy(), list(y)),
        (frame.to_numpy().tolist(), y),
    ]
    expected = quick().fit(frame, y).predict(frame)
    assert expected.std() > 0
    for X, values in shapes:
        np.testing.assert_array_equal(quick().fit(X, values).predict(X), expected, err_msg=str(type(X)))


def test_modes_are_named_after_the_columns():
    frame, y = ratings()
    named, nameless = quick().fit(frame, y), quick().fit(frame.to_numpy(), y)
    assert [mode.name for mode in named.modes_] == list(named.feature_names_in_) == ["user", "film", "day"]
    assert [mode.name for mode in nameless.modes_] == ["x0", "x1", "x2"]
    assert not hasattr(nameless, "feature_names_in_")
    assert named.modes_[1].labels == ("alien", "brazil", "casablanca")
    assert named.modes_[2].order == "ordered"


@pytest.mark.parametrize("names", [["value", "value_", "count"], ["a=b", "hour(x)", "user + 1"], ["", " ", "'"]])
def test_any_column_name_will_do(names):
    frame, y = ratings()
    expected = quick().fit(frame, y).predict(frame)
    renamed = frame.set_axis(names, axis=1)
    np.testing.assert_array_equal(quick().fit(renamed, y).predict(renamed), expected)


def test_a_number_is_one_label_however_it_is_stored():
    whole = np.array([[3, 10], [4, 10], [3, 20], [4, 20], [5, 20]])
    y = np.arange(5.0)
    fitted = quick().fit(whole, y)
    assert [mode.labels for mode in fitted.modes_] == [("3", "4", "5"), ("10", "20")]
    expected = fitted.predict(whole)
    for other in (whole.astype(float), whole.astype(object), whole.astype(str), whole.astype(np.uint8), whole.tolist()):
        np.testing.assert_array_equal(fitted.predict(other), expected)


def test_mixed_columns_keep_labels_apart_and_together():
    X = np.empty((6, 2), dtype=object)
    X[:, 0] = [3, 3.0, "3", np.float64(3), "03", 3.5]
    X[:, 1] = ["a", "b", "c", "d", "e", np.str_("f")]
    for given in (X, X.tolist(), pd.DataFrame(X)):
        assert quick().fit(given, np.arange(6.0)).modes_[0].labels == ("03", "3", "3.5")


def test_dates_have_one_label_in_frames_and_arrays():
    frame, y = ratings()
    frame = frame.assign(day=pd.to_datetime(frame["day"]))
    objects = frame.astype(object).to_numpy()
    objects[:, 2] = list(frame["day"].to_numpy())  # datetime64 scalars
    made = [quick().fit(X, y).modes_[2].labels for X in (frame, pl.from_pandas(frame), frame.to_numpy(), objects)]
    assert len(made[0]) == 3
    assert made.count(made[0]) == len(made)


@pytest.mark.parametrize("hole", [None, np.nan, np.inf, pd.NA, pd.NaT])
def test_a_missing_label_is_refused(hole):
    frame, y = ratings()
    fitted = quick().fit(frame, y)
    holed = frame.astype(object)
    holed.loc[7, "user"] = hole
    for X in (holed, holed.to_numpy()):
        with pytest.raises(DataError, match=r"column '(user|x0)'"):
            quick().fit(X, y)
    with pytest.raises(DataError, match="column 'user'"):
        fitted.predict(holed)


def test_a_missing_number_is_refused_in_typed_columns():
    with pytest.raises(DataError, match="column 'x1' of X contains NaN"):
        quick().fit(np.array([[1.0, 2.0], [1.0, np.nan]]), [1.0, 2.0])
    for user in (pd.Series([1.0, np.nan]), pd.Series([1, None], dtype="Int64"), pd.Series(["a", None])):
        with pytest.raises(DataError, match="column 'user' of X contains NaN"):
            quick().fit(pd.DataFrame({"user": user, "film": [1, 2]}), [1.0, 2.0])


@pytest.mark.parametrize("label", [1j, [1], object()])
def test_what_is_no_label_is_refused(label):
    X = np.array([["a", "b"], ["c", "d"]], dtype=object)
    X[0, 0] = label
    with pytest.raises(DataError, match="column 'x0' of"):
        quick().fit(X, [1.0, 2.0])


# --- wrong input


def test_frames_are_checked_as_arrays_are():
    frame, y = ratings()
    with pytest.raises(ValueError, match=r"1 feature\(s\) .* minimum of 2"):
        quick().fit(frame[["user"]], y)
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        quick().fit(frame[:0], y[:0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(frame[:-1], y)
    fitted = quick().fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[["film", "user", "day"]])
    with pytest.raises(ValueError, match="Expected 2D array"):
        quick().fit([[1, 2], [3]], [1.0, 2.0])


@pytest.mark.parametrize("values", [["a", "b"], [1.0, np.nan], [1.0, 1e300], [1.0, 1j], None])
def test_targets_that_are_no_numbers_are_refused(values):
    with pytest.raises(ValueError, match=r"string|NaN|32-bit|[Cc]omplex|requires y"):
        quick().fit([[1, 2], [3, 4]], values)


@pytest.mark.parametrize(
    "settings",
    [{"rank": (0, 0)}, {"validation_fraction": 1.0}, {"duplicates": "first"}, {"loss": "cubic"}, {"recipe": "none"}],
)
def test_settings_without_a_meaning_are_refused_by_fit(settings):
    with pytest.raises(ConfigError):
        quick(**settings).fit([[1, 2], [3, 4]], [1.0, 2.0])


def test_scikit_learn_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "jointensor.estimator")
    with pytest.raises(MissingPackageError, match=r"pip install jointensor\[sklearn\]"):
        importlib.import_module("jointensor.estimator")


# --- fitting


def test_learns_a_planted_tensor_far_better_than_the_mean():
    X, y, held, truth = planted()
    fitted = quick(rank=(1, 4), recipe=LONGER).fit(X, y)
    assert fitted.score(held, truth) > 0.9  # the mean scores 0
    assert [factor.shape for factor in fitted.linear_factors_] == [(size, 1) for size in SHAPE]


def test_fitted_attributes_tell_what_happened():
    X, y, _, _ = planted()
    fitted = quick().fit(X, y)
    assert fitted.n_features_in_ == 3
    assert isinstance(fitted.model_, JointModel)
    assert fitted.model_ is fitted.fit_.model
    assert not fitted.model_.training
    assert fitted.model_.shape == SHAPE
    assert fitted.outcome_ == fitted.fit_.outcome
    assert len(fitted.history_) == 2 + 2 * 2 + 5
    assert fitted.history_[0]["phase"] == "warm start"
    assert fitted.history_[0]["valid_loss"] is not None
    assert all(isinstance(factor, np.ndarray) for factor in fitted.linear_factors_)


def test_predictions_follow_the_order_of_the_rows():
    X, y, held, _ = planted()
    fitted = quick().fit(X, y)
    order = np.random.default_rng(2).permutation(len(held))
    expected = fitted.predict(held)
    assert expected.shape == (len(held),)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(fitted.predict(held[order]), expected[order], rtol=1e-6)


def test_unseen_labels_are_answered_by_the_bias_predictor():
    X, y, _, _ = planted()
    X = X + 100  # labels are not positions
    fitted = quick(validation_fraction=0.0).fit(X, y)
    tensor = SparseTensor(X - 100, y, SHAPE)
    order = np.lexsort(tensor.indices.T[::-1])
    parts = split(tensor.take(order), test=0.0, valid=0.0)
    bias = fit_bias(parts.train, parts.valid)
    answer = fitted.predict([[101, 102, 7], [7, 7, 7]])
    expected = bias.predict(np.array([[1, 2, UNSEEN], [UNSEEN] * 3]))
    np.testing.assert_allclose(answer, expected, rtol=1e-6)
    assert answer[1] == pytest.approx(y.mean(), rel=1e-6)


def test_the_same_random_state_gives_identical_predictions():
    X, y, held, _ = planted()

    def predictions(state):
        return quick(random_state=state).fit(X, y).predict(held)

    np.testing.assert_array_equal(predictions(3), predictions(3))
    np.testing.assert_array_equal(predictions(3), predictions(np.random.RandomState(3)))
    assert np.abs(predictions(3) - predictions(4)).max() > 1e-4


def test_torch_random_state_is_neither_read_nor_moved():
    X, y, held, _ = planted()

    class Drawn(nn.Module):
        def __init__(self, n_modes, width):
            super().__init__()
            self.weights = nn.Parameter(torch.randn(n_modes, width))  # nothing resets it

        def forward(self, rows):
            return (rows * self.weights).sum(dim=(1, 2))

    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        answers.append(quick(nonlinear=Drawn).fit(X, y).predict(held))
        assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(*answers)


def test_a_module_given_as_an_instance_is_never_trained():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, rows):
            return self.head(rows.sum(dim=1)).squeeze(-1)

    X, y, held, _ = planted()
    module = Summed()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    estimator = quick(nonlinear=module)
    first = estimator.fit(X, y).predict(held)
    assert estimator.nonlinear is module
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not torch.equal(estimator.model_.nonlinear.part.head.weight, before["head.weight"])
    np.testing.assert_array_equal(estimator.fit(X, y).predict(held), first)
    np.testing.assert_array_equal(clone(estimator).fit(X, y).predict(held), first)


def test_rows_of_one_cell_become_their_mean():
    X = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    twice = quick().fit(np.vstack([X, X]), [1.0, 2.0, 3.0, 4.0, 3.0, 4.0, 5.0, 6.0])
    once = quick().fit(X, [2.0, 3.0, 4.0, 5.0])
    np.testing.assert_array_equal(twice.predict(X), once.predict(X))
    with pytest.raises(DataError, match="share their cell"):
        quick(duplicates="error").fit(np.vstack([X, X]), np.arange(8.0))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_handful_of_rows_is_enough(rows):
    X, y, _, _ = planted()
    fitted = quick().fit(X[:rows], y[:rows])
    assert np.isfinite(fitted.predict(X)).all()
    assert fitted.history_[0]["valid_loss"] is None


def test_settings_reach_the_model_and_the_training():
    X, y, _, _ = planted()
    fitted = quick(linear="mean+bias+cp:3", rank=(9, 0), loss="kl").fit(X, y)
    assert fitted.model_.linear == "mean+bias+cp:3"
    assert fitted.model_.nonlinear is None
    assert fitted.linear_factors_[0].shape == (SHAPE[0], 3)
    assert fitted.fit_.recipe.loss == "kl"
    assert (fitted.predict(X) > 0).all()
    stopped = quick(budget=0.0).fit(X, y)
    assert (stopped.outcome_, stopped.history_) == ("budget", [])
    assert quick(rank=(0, 4)).fit(X, y).linear_factors_ == []


def test_pickles_with_what_it_learnt():
    frame, y = ratings()
    fitted = quick().fit(frame, y)
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(again.predict(frame), fitted.predict(frame))


# --- scikit-learn's tools


@pytest.mark.parametrize("brand", [pd.DataFrame, pl.from_pandas, pd.DataFrame.to_numpy])
def test_cross_validation(brand):
    frame, y = ratings()
    scores = cross_val_score(quick(), brand(frame), y, cv=3, error_score="raise")
    assert np.isfinite(scores).all()


def test_grid_search_over_the_rank():
    X, y, held, truth = planted()
    grid = {"rank": [(1, 0), (0, 2)], "recipe": [LONGER]}
    search = GridSearchCV(quick(), grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["rank"] == (1, 0)
    assert search.score(held, truth) > 0.9
