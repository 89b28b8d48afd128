"""TensorCompleter: everything chosen by validation, intervals, and labels that come later."""

import math
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from jointensor import TensorCompleter
from jointensor.data.synthetic import make_joint
from jointensor.errors import ConfigError, DataError, RunError
from jointensor.predictors.ensemble import Ensemble
from jointensor.search.portfolio import BIAS, Candidate
from jointensor.search.search import search

SHAPE = (16, 14, 10)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models this small only wait for threads, the more so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(**settings):
    return TensorCompleter(**{"rank": (2, 0), "device": "cpu", "random_state": 0} | settings)


def frame_of(cells):
    """Text, whole numbers and dates."""
    return pd.DataFrame(
        {
            "user": [f"u{i:02d}" for i in cells[:, 0]],
            "film": cells[:, 1] * 10,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(cells[:, 2], unit="D"),
        }
    )


@pytest.fixture(scope="module")
def planted():
    """Two components and a little noise: rows to learn from and others."""
    tensor, _ = make_joint(SHAPE, (2, 0), observed=2000, noise=0.1, seed=1)
    X, y = frame_of(tensor.indices), tensor.values.astype(np.float64)
    return X[:1500], y[:1500], X[1500:].reset_index(drop=True), y[1500:]


@pytest.fixture(scope="module")
def searched(planted):
    return small(rank="auto", budget_fits=14).fit(*planted[:2])


def later(planted, users=("u14", "u15")):
    """The rows in three: of known users, new ones to learn from, new ones to judge by."""
    X = pd.concat([planted[0], planted[2]], ignore_index=True)
    y = np.concatenate([planted[1], planted[3]])
    new = X["user"].isin(users).to_numpy()
    rows = np.flatnonzero(new)
    half = len(rows) // 2
    return (X[~new], y[~new]), (X.iloc[rows[:half]], y[rows[:half]]), (X.iloc[rows[half:]], y[rows[half:]])


def error(completer, X, y):
    return float(np.sqrt(np.mean((completer.predict(X) - y) ** 2)))


# --- everything chosen by validation


def test_a_search_finds_what_was_planted(searched, planted):
    assert searched.score(*planted[2:]) > 0.9
    assert isinstance(searched.predictor_, Ensemble)
    assert searched.outcome_ in ("converged", "budget")
    assert searched.auto_.chosen
    assert searched.history_ == []
    assert [mode.name for mode in searched.modes_] == ["user", "film", "day"]
    rank = {factor.shape[1] for factor in searched.linear_factors_}
    assert len(rank) == (1 if searched.linear_factors_ else 0)


def test_a_search_survives_being_pickled(searched, planted):
    copy = pickle.loads(pickle.dumps(searched))  # noqa: S301 - our own
    np.testing.assert_array_equal(copy.predict(planted[2]), searched.predict(planted[2]))


@pytest.mark.parametrize("setting", [{"linear": "cp:2"}, {"nonlinear": "costco"}, {"loss": "huber"}])
def test_a_search_decides_by_itself(planted, setting):
    with pytest.raises(ConfigError, match="chooses"):
        small(rank="auto", budget_fits=5, **setting).fit(*planted[:2])


def test_settings_are_cloned_as_given():
    completer = small(rank="auto", budget_fits=8)
    assert clone(completer).get_params() == completer.get_params()
    assert completer.get_params()["rank"] == "auto"
    assert completer.set_params(rank=(1, 2)).rank == (1, 2)


# --- intervals


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_their_share(searched, planted, level):
    X, y = planted[2:]
    values, ends = searched.predict(X, return_interval=level)
    np.testing.assert_array_equal(values, searched.predict(X))
    assert ends.shape == (len(X), 2)
    assert values.dtype == ends.dtype == np.float64
    inside = np.mean((ends[:, 0] <= y) & (y <= ends[:, 1]))
    assert abs(inside - level) < 4 * math.sqrt(level * (1 - level) * (1 / len(X) + 1 / 1500))


def test_a_plain_fit_has_intervals_too(planted):
    completer = small().fit(*planted[:2])
    X, y = planted[2:]
    narrow, wide = (completer.predict(X, return_interval=level)[1] for level in (0.5, 0.9))
    assert (np.diff(narrow) <= np.diff(wide) + 1e-6).all()
    inside = np.mean((wide[:, 0] <= y) & (y <= wide[:, 1]))
    # 150 validation entries calibrate, and chose when to stop too: not much narrower than they should be
    assert abs(inside - 0.9) < 4 * math.sqrt(0.09 * (1 / len(X) + 1 / 150))


@pytest.mark.parametrize("level", [0.0, 1.0, 90, -0.5])
def test_a_level_that_is_no_share_is_refused(searched, planted, level):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        searched.predict(planted[2], return_interval=level)


def test_without_validation_there_are_no_intervals(planted):
    completer = small(validation_fraction=0.0).fit(*planted[:2])
    with pytest.raises(RunError, match="no intervals"):
        completer.predict(planted[2], return_interval=0.9)


# --- labels that come later


def test_new_labels_are_learnt_and_known_ones_stay(planted):
    known, fresh, others = later(planted)
    completer = small().fit(*known)
    before, lost = completer.predict(known[0]), error(completer, *others)
    assert completer.partial_fit(*fresh) is completer
    np.testing.assert_array_equal(completer.predict(known[0]), before)
    every = pd.concat([known[0], fresh[0]]), np.concatenate([known[1], fresh[1]])
    best = error(small().fit(*every), *others)
    assert lost - error(completer, *others) > 0.7 * (lost - best) > 0
    assert completer.modes_[0].labels == tuple(f"u{i:02d}" for i in range(16))
    assert [len(factor) for factor in completer.linear_factors_] == [mode.size for mode in completer.modes_]


def test_new_labels_come_after_the_known_ones(planted):
    """Whatever their place in the alphabet: positions of known labels must not move."""
    known, fresh, others = later(planted, users=("u00", "u07"))
    completer = small().fit(*known)
    before, lost = completer.predict(known[0]), error(completer, *others)
    completer.partial_fit(*fresh)
    assert completer.modes_[0].labels[-2:] == ("u00", "u07")
    np.testing.assert_array_equal(completer.predict(known[0]), before)
    assert error(completer, *others) < 0.5 * lost


def test_numbers_and_dates_may_be_new_too(planted):
    X, y = planted[:2]
    new = ((X["film"] == 40) | (X["day"] == pd.Timestamp("2024-01-03"))).to_numpy()
    completer = small().fit(X[~new], y[~new])
    before, lost = completer.predict(X[~new]), error(completer, X[new], y[new])
    completer.partial_fit(X[new], y[new])
    assert completer.modes_[1].labels[-1] == "40"
    assert "2024-01-03" in completer.modes_[2].labels[-1]
    np.testing.assert_array_equal(completer.predict(X[~new]), before)
    assert error(completer, X[new], y[new]) < 0.6 * lost


def test_the_first_call_fits(planted):
    X, y = planted[:2]
    np.testing.assert_array_equal(small().partial_fit(X, y).predict(X), small().fit(X, y).predict(X))


def test_fitting_again_forgets_what_came_later(planted):
    known, fresh, _ = later(planted)
    completer = small().fit(*known).partial_fit(*fresh)
    assert completer.fit(*known).modes_[0].size == 14


def test_rows_without_new_labels_change_nothing(planted):
    known, _, _ = later(planted)
    completer = small().fit(*known)
    before = completer.predict(known[0])
    completer.partial_fit(known[0][:20], known[1][:20] + 5)
    np.testing.assert_array_equal(completer.predict(known[0]), before)


def test_intervals_go_on_after_new_labels(planted):
    known, fresh, others = later(planted)
    completer = small().fit(*known).partial_fit(*fresh)
    ends = completer.predict(others[0], return_interval=0.9)[1]
    assert np.isfinite(ends).all()
    inside = np.mean((ends[:, 0] <= others[1]) & (others[1] <= ends[:, 1]))
    assert inside > 0.6  # about a new label less is known than about those that calibrated


def test_arrays_and_lists_with_mixed_types_find_their_labels():
    """3, 3.0 and "3" are one label, known or new."""
    cells = np.argwhere(np.ones((6, 5)))
    y = (cells[:, 0] + 1.0) * (cells[:, 1] - 2)
    old = cells[:, 0] < 5
    results = []
    for kind in (int, float, str, object):
        completer = small(rank=(1, 0)).fit(cells[old], y[old])
        completer.partial_fit(cells[~old].astype(kind), y[~old])
        assert completer.modes_[0].labels == tuple("012345")
        results.append(completer.predict(cells))
    completer = small(rank=(1, 0)).fit(cells[old], y[old])
    completer.partial_fit([[5, "0"], ["5", 1.0], [5.0, 2], [np.int64(5), "3"], [np.float64(5), 4]], y[~old])
    results.append(completer.predict(cells))
    for one in results[1:]:
        np.testing.assert_array_equal(one, results[0])


def test_repeated_rows_are_one_entry(planted):
    known, fresh, others = later(planted)
    once = small().fit(*known).partial_fit(*fresh).predict(others[0])
    doubled = pd.concat([fresh[0], fresh[0]]), np.concatenate([fresh[1], fresh[1]])
    np.testing.assert_array_equal(small().fit(*known).partial_fit(*doubled).predict(others[0]), once)


def test_other_columns_are_refused(planted):
    known, fresh, _ = later(planted)
    completer = small().fit(*known)
    before = completer.predict(known[0])
    with pytest.raises(ValueError, match="feature"):
        completer.partial_fit(fresh[0][["user", "film"]], fresh[1])
    with pytest.raises(ValueError, match="feature names"):
        completer.partial_fit(fresh[0][["film", "user", "day"]], fresh[1])
    with pytest.raises(ValueError, match="inconsistent"):
        completer.partial_fit(fresh[0], fresh[1][:-1])
    holed = fresh[0].astype(object)
    holed.iloc[3, 0] = None
    with pytest.raises(DataError, match="column 'user'"):
        completer.partial_fit(holed, fresh[1])
    with pytest.raises(ValueError, match="NaN"):
        completer.partial_fit(fresh[0], np.full(len(fresh[1]), np.nan))
    assert completer.modes_[0].size == 14  # refused means untouched
    np.testing.assert_array_equal(completer.predict(known[0]), before)


def test_arrays_of_another_width_are_refused():
    cells = np.argwhere(np.ones((4, 3)))
    completer = small(rank=(1, 0)).fit(cells, np.arange(12.0))
    for columns in (cells[:, :1], np.column_stack([cells, cells[:, 0]])):
        with pytest.raises(ValueError, match="features"):
            completer.partial_fit(columns, np.arange(12.0))
        with pytest.raises(ValueError, match="features"):
            completer.predict(columns)


def test_nothing_is_predicted_before_a_fit(planted):
    with pytest.raises(NotFittedError):
        small().predict(planted[2], return_interval=0.9)


def test_a_budget_is_in_seconds_or_in_fits_and_fits_are_for_searches(planted):
    with pytest.raises(ConfigError, match="not both"):
        small(rank="auto", budget=5.0, budget_fits=5).fit(*planted[:2])
    with pytest.raises(ConfigError, match="budget_fits=5 counts the fits of a search"):
        small(budget_fits=5).fit(*planted[:2])


def search_of(monkeypatch, *candidates):
    """An estimator that chooses from a few candidates alone."""
    monkeypatch.setattr("jointensor.estimator.search", partial(search, candidates=list(candidates)))
    return small(rank="auto", budget_fits=20)


def test_a_search_learns_new_labels(planted, monkeypatch):
    known, fresh, others = later(planted)
    completer = search_of(monkeypatch, BIAS, Candidate("julia:2/0", "joint", 6, (2, 0), stage="core")).fit(*known)
    lost, before = error(completer, *others), completer.predict(known[0])
    completer.partial_fit(*fresh)
    assert error(completer, *others) < lost
    assert completer.modes_[0].size == 16
    np.testing.assert_array_equal(completer.predict(known[0]), before)


def test_a_search_that_cannot_learn_new_labels_refuses_and_stays_as_it_was(planted, monkeypatch):
    """Vectors of implicit feedback depend on all entries of a label."""
    known, fresh, _ = later(planted)
    linear = "mean+bias+fm:4+implicit:0/1+implicit:1/0"
    completer = search_of(monkeypatch, Candidate("implicit", "gibbs", 3, linear=linear, stage="core")).fit(*known)
    before = completer.predict(known[0])
    with pytest.raises(ConfigError, match="implicit"):
        completer.partial_fit(*fresh)
    assert completer.modes_[0].size == 14
    np.testing.assert_array_equal(completer.predict(known[0]), before)


def test_what_validates_looks_like_queries():
    """Pairs that will be new: whole pairs are left out, as if they had been named."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(np.argwhere(np.ones((12, 12))))
    cells = np.array([[*pair, day] for pair in pairs for day in range(8) if rng.random() < 0.6])
    y = cells[:, 0] + 0.1 * cells[:, 1] + rng.normal(size=len(cells))
    keys = cells[:, 0] * 12 + cells[:, 1]
    new = np.isin(keys, keys[:120])
    found = {}
    for name, folds, queries in (
        ("asked", "like-gaps", cells[new]),
        ("named", "group:x0,x1", None),
        ("none", "random", None),
    ):
        completer = small(rank=(1, 0), folds=folds, validation_fraction=0.2)
        found[name] = completer.fit(cells[~new], y[~new], queries=queries).predict(cells[new])
    np.testing.assert_array_equal(found["asked"], found["named"])
    assert np.abs(found["asked"] - found["none"]).max() > 1e-6
    with pytest.raises(ConfigError, match="folds='random' says what validates, and so do queries"):
        small(folds="random").fit(cells[~new], y[~new], queries=cells[new])
    with pytest.raises(DataError, match="queries have 4 columns, X has 3"):
        small().fit(cells[~new], y[~new], queries=np.column_stack([cells[new], cells[new][:, :1]]))
