"""Which entries are left out together, which are given by others, and which only calibrate."""

import math

import numpy as np
import pytest

from jointensor.data.split import FOLDS, Tail, folds, held_out, make_folds
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.predictors.dependencies import seen_before
from jointensor.search.folds import fold_entries
from tests.search.searches import additive, along_days
from tests.search.test_dependencies import joined  # noqa: F401 - a fixture


def test_folds_are_fifths():
    tensor = additive(entries=503)
    fold = make_folds(tensor, (), 0)
    assert sorted(np.bincount(fold).tolist()) == [100, 100, 101, 101, 101]
    assert np.array_equal(fold, make_folds(tensor, (), 0))
    assert not np.array_equal(fold, make_folds(tensor, (), 1))


def test_entries_of_a_group_share_their_fold(planted):
    tensor = planted[0]
    for groups in ((0,), (0, 2)):
        fold = make_folds(tensor, groups, 0)
        assert set(fold.tolist()) == set(range(FOLDS))
        of = {}
        for row, one in zip(tensor.indices[:, groups].tolist(), fold.tolist(), strict=True):
            assert of.setdefault(tuple(row), one) == one


def test_nothing_is_held_out_of_small_tensors(planted):
    assert not held_out(planted[0], (), 0).any()
    assert len(fold_entries(planted[0], (), 0).untouched) == 0


def test_what_is_held_out_depends_on_the_seed_alone(planted, hold_out):
    hold_out(0.25)
    first, again, other = (held_out(planted[0], (), seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("more", "some"), [(0, True), (1, False)])
def test_tensors_hold_out_from_so_many_entries_on(planted, monkeypatch, more, some):
    monkeypatch.setattr(folds, "MIN_ENTRIES_TO_HOLD_OUT", len(planted[0]) + more)
    assert held_out(planted[0], (), 0).any() == some


def test_a_share_of_large_tensors_is_held_out_and_groups_stay_together(planted, hold_out, monkeypatch):
    tensor = planted[0]
    hold_out(0.25)
    assert abs(held_out(tensor, (), 0).sum() - 600) < 4 * math.sqrt(2400 * 0.25 * 0.75)
    away = held_out(tensor, (0, 1), 0)
    assert away.any()
    assert not {tuple(row) for row in tensor.indices[~away, :2].tolist()} & {
        tuple(row) for row in tensor.indices[away, :2].tolist()
    }
    monkeypatch.setattr(folds, "MAX_CALIBRATION_ENTRIES", 48)
    assert held_out(tensor, (), 0).sum() < 48 + 4 * math.sqrt(48)


def test_every_entry_is_left_out_once_or_untouched(planted, hold_out):
    hold_out(0.2)
    data = fold_entries(planted[0], (), 0)
    positions = data.positions_of(range(FOLDS))
    assert sorted(positions.tolist()) == list(range(len(data.tensor)))
    np.testing.assert_array_equal(data.truth(range(FOLDS)), data.tensor.values[positions])
    np.testing.assert_array_equal(data.whole.indices[data.positions], data.tensor.indices)
    cells = [tuple(row) for part in (data.tensor, data.untouched) for row in part.indices.tolist()]
    assert sorted(cells) == sorted(map(tuple, planted[0].indices.tolist()))
    for fold in range(FOLDS):
        train, valid = data.split(fold)
        assert len(train) + len(valid) == len(data.tensor)
        np.testing.assert_array_equal(valid.values, data.truth([fold]))


def test_nine_entries_are_too_few():
    with pytest.raises(ConfigError, match="at least 10 entries to learn from, there are 9"):
        fold_entries(additive((4, 3), 9), (), 0)


def test_neighbours_are_those_that_new_groups_can_have():
    """Entries along a mode that is not one of the groups' are of the same group."""
    tensor = along_days(entries=500)[0]
    assert fold_entries(tensor, (), 0).kriging_axes() == [(2,)]
    assert fold_entries(tensor, (), 0).knn_modes() == [0, 1, 2]
    assert fold_entries(tensor, (0, 1), 0).kriging_axes() == []
    assert fold_entries(tensor, (0, 2), 0).kriging_axes() == [(2,)]
    assert fold_entries(tensor, (0, 2), 0).knn_modes() == [0, 2]


# --- entries that others give


def test_new_groups_have_nothing_given(joined):  # noqa: F811
    data = fold_entries(joined[0], (0, 2), 0)
    assert data.deciding is None
    assert not data.dependent.any()
    assert (data.scored >= 0).all()


def test_entries_that_others_give_are_learnt_from_in_every_fold(joined):  # noqa: F811
    data = fold_entries(joined[0], (), 0)
    assert data.deciding == (0, 2)
    pairs = {}
    for (paper, _, word), fold in zip(data.tensor.indices.tolist(), data.fold.tolist(), strict=True):
        pairs.setdefault((paper, word), []).append(fold)
    for (paper, _, word), fold, dependent in zip(
        data.tensor.indices.tolist(), data.fold.tolist(), data.dependent, strict=True
    ):
        assert dependent == any(other != fold for other in pairs[paper, word])
    for fold in range(FOLDS):
        train, valid = data.split(fold)
        assert len(train) + len(valid) == len(data.tensor)
        assert len(valid) == (data.scored == fold).sum()


def test_where_next_to_nothing_is_open_all_entries_score():
    cells = np.argwhere(np.ones((20, 15, 10)))
    values = np.random.default_rng(0).normal(size=20)[cells[:, 0]]
    data = fold_entries(SparseTensor(cells, values, (20, 15, 10)), (), 0)
    assert data.deciding is None
    assert (data.scored >= 0).all()


def test_folds_in_time_learn_from_what_came_before():
    tensor, _ = along_days()
    data = fold_entries(tensor, (Tail(2, 2),), 0)
    for fold in range(FOLDS):
        train, left_out = data.split(fold)
        assert train.indices[:, 2].max() < left_out.indices[:, 2].min()
        assert len(set(left_out.indices[:, 2].tolist())) == 2
    assert data.groups == (2,)
    assert data.kriging_axes() == []  # residuals of all folds would have later ones beside them
    assert len(data.untouched) == 0
    parts, positions = data.default_split(0)
    assert (data.fold[positions] == 0).all()
    assert parts.train.indices[:, 2].max() < parts.valid.indices[:, 2].min()
    assert len(data.default_split(0, fold=1)[1]) == 0  # it would not know the last entries


def test_values_that_only_later_entries_give_are_left_to_be_predicted():
    cells = np.array([[k % 7, k % 3, k // 21] for k in range(21 * 40)])
    values = np.array([10.0 * (one[0] * 3 + one[1]) for one in cells])
    data = fold_entries(SparseTensor(cells, values, (7, 3, 40)), (Tail(2, 2),), 0)
    fold = np.array([0, 1, 0, -1, 1, 4])
    modes, pairs = (0, 1), np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 0], [2, 1]])
    few = SparseTensor(np.column_stack([pairs, np.arange(6)]), np.arange(6.0), (3, 2, 6))
    #                 by an earlier fold | only by a later one | by the past | itself the past | by nothing
    assert seen_before(few, modes, fold).tolist() == [True, False, True, False, False, False]
    assert len(data.tensor) == len(cells)
