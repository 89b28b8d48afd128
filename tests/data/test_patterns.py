"""Cells that will be asked for: planted patterns of queries are found, and folds are drawn like them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.modes import Mode
from jointensor.data.split import (
    FOLDS,
    Asked,
    Tail,
    in_words,
    learnt_from,
    like_gaps,
    make_folds,
    new_modes,
    pattern_of_gaps,
    pattern_of_queries,
    places_of,
    split,
    with_folds,
)
from jointensor.data.tensor import SparseTensor, join
from jointensor.errors import ConfigError
from tests.data.test_gaps import MODES, SHAPE, hidden, tensor_of

SPARSE = (Mode("user", 300), Mode("film", 200), Mode("day", 60, order="ordered"))


def asked_of(cells, modes=MODES):
    return Asked(np.asarray(cells), modes)


def events(seed=0, count=6000):
    """A sparse tensor with few frequent and many rare labels, of which no two entries share user and film."""
    rng = np.random.default_rng(seed)
    shape = [mode.size for mode in SPARSE]
    cells = np.stack([(rng.random(3 * count) ** 1.5 * size).astype(int) for size in shape], axis=1)
    cells = cells[np.sort(np.unique(cells[:, :2], axis=0, return_index=True)[1])][:count]
    return SparseTensor(cells, np.arange(len(cells), dtype=np.float32), SPARSE)


def visits(seed=0):
    """Users who see some films on many days."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(np.argwhere(np.ones((40, 50))))[:500]
    days = rng.random((len(pairs), 60)) < 0.15
    who, day = np.nonzero(days)
    modes = (Mode("user", 40), Mode("film", 50), SPARSE[2])
    return SparseTensor(np.column_stack([pairs[who], day]), np.arange(len(who), dtype=np.float32), modes)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("make", "rule", "expected"),
    [
        (events, "standard", ()),
        (events, "slices:user", (0,)),
        (events, "slices:film", (1,)),
        (events, "slices:day", (2,)),
        (events, "time:day", (Tail(2, 4),)),
        (visits, "standard", ()),
        (visits, "group:user,film", (0, 1)),
        (visits, "group:film,day", (1, 2)),
        (visits, "slices:user", (0,)),
        (visits, "time:day", (Tail(2, 4),)),
    ],
)
def test_queries_that_were_split_off_have_folds_of_their_kind(make, rule, expected, seed):
    parts = split(make(seed), rule=rule, seed=seed)
    known = join(parts.train, parts.valid)
    found = pattern_of_queries(known, asked_of(parts.test.indices, known.modes), seed)
    assert found.groups == expected
    assert found.share == pytest.approx(1.0 if expected else 0.0, abs=0.03)
    assert found.cells == "cells that are asked for"
    assert found.difference <= found.difference_of_single


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [((1, 1, 1), ()), ((24, 1, 1), (1, 2)), ((1, 20, 1), (0, 2)), ((24, 20, 1), (2,))],
)
def test_in_a_dense_tensor_too(pattern, expected):
    seen = hidden(pattern, 0.3, seed=1)
    assert pattern_of_queries(tensor_of(seen), asked_of(np.argwhere(~seen)), 0).groups == expected


@pytest.mark.parametrize("pattern", [(1, 1, 1), (1, 1, 36), (24, 1, 6), (1, 1, 12)])
def test_queries_that_are_the_missing_cells_give_what_these_give(pattern):
    seen = hidden(pattern, 0.3)
    queries = asked_of(np.argwhere(~seen))
    assert pattern_of_queries(tensor_of(seen), queries).groups == like_gaps(tensor_of(seen))


def test_labels_that_come_after_the_last_one_are_a_tail_and_new_ones_are_slices():
    """Queries name labels that no entry has: of an ordered mode at its end, of another anywhere."""
    tensor = visits()
    later = Mode("day", 66, order="ordered")
    cells = tensor.indices[tensor.indices[:, 2] < 6] + np.array([0, 0, 60])
    found = pattern_of_queries(tensor, asked_of(cells, (*tensor.modes[:2], later)))
    assert found.groups == (Tail(2, 6),)
    assert in_words(found.groups, tensor.modes) == "the last 6 labels of day"
    assert found.in_words(tensor.modes).startswith("100 % of the cells that are asked for lie at the end of day")
    shifted = tensor.indices[tensor.indices[:, 0] < 8] + np.array([40, 0, 0])
    found = pattern_of_queries(tensor, asked_of(shifted, (Mode("user", 48), *tensor.modes[1:])))
    assert found.groups == (0,)


def test_a_tail_is_told_by_the_order_of_the_labels():
    tensor = visits()
    order = np.random.default_rng(4).permutation(60)
    labels = tuple(str(one) for one in order)
    named = Mode("day", 60, labels, order="ordered")
    place = np.argsort(order)
    cells = np.column_stack([tensor.indices[:, :2], place[tensor.indices[:, 2]]])
    named_tensor = SparseTensor(cells, tensor.values, (*tensor.modes[:2], named))
    parts = split(named_tensor, rule="time:day")
    assert set(order[parts.test.indices[:, 2]]) == set(range(60 - len(set(parts.test.indices[:, 2])), 60))
    known = join(parts.train, parts.valid)
    assert isinstance(pattern_of_queries(known, asked_of(parts.test.indices, known.modes)).groups[0], Tail)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["standard", "slices:user", "group:user,film", "time:day"]))
def test_names_of_unordered_labels_do_not_matter(seed, rule):
    tensor = visits()
    orders = [np.random.default_rng([seed, n]).permutation(size) for n, size in enumerate(tensor.shape[:2])]
    renamed = np.column_stack([*(orders[n][tensor.indices[:, n]] for n in (0, 1)), tensor.indices[:, 2]])
    found = []
    for cells in (tensor.indices, renamed):
        parts = split(SparseTensor(cells, tensor.values, tensor.modes), rule=rule)
        known = join(parts.train, parts.valid)
        found.append(pattern_of_queries(known, asked_of(parts.test.indices, known.modes)).groups)
    assert found[0] == found[1]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([((1, 1, 1), ()), ((1, 1, 36), (0, 1)), ((24, 1, 1), (1, 2))]))
def test_nor_do_they_for_gaps(seed, planted):
    pattern, expected = planted  # found in the order they have, see test_gaps
    order = np.random.default_rng(seed).permutation(SHAPE[0])
    assert like_gaps(tensor_of(hidden(pattern, 0.3)[order])) == expected


def test_rare_labels_are_not_new_ones():
    """Queries for users with few entries: single entries are hidden, not whole users."""
    tensor = visits()
    kept = (tensor.indices[:, 0] >= 8) | (np.random.default_rng(0).random(len(tensor)) < 0.15)
    rare, known = tensor.take(np.flatnonzero(~kept)), tensor.take(np.flatnonzero(kept))
    assert 0 not in new_modes(pattern_of_queries(known, asked_of(rare.indices, tensor.modes)).groups)


def test_cells_with_an_entry_do_not_count_and_others_there_have_to_be():
    tensor = visits()
    parts = split(tensor, rule="group:user,film")
    known = join(parts.train, parts.valid)
    every = np.concatenate([parts.test.indices, known.indices[:500]])
    assert pattern_of_queries(known, asked_of(every, known.modes)).groups == (0, 1)
    with pytest.raises(ConfigError, match="queries: every cell has an entry already"):
        pattern_of_queries(known, asked_of(known.indices[:5], known.modes))


def test_a_pattern_says_what_it_found():
    seen = hidden((1, 1, 36), 0.3)
    found = pattern_of_gaps(tensor_of(seen & hidden((1, 1, 1), 0.1, seed=2)))
    share = 100 * (~seen).sum() / (~(seen & hidden((1, 1, 1), 0.1, seed=2))).sum()
    assert found.in_words(MODES) == (
        f"{share:.0f} % of the missing cells lie in whole groups (station × day): validated by leaving out such groups"
    )
    record = found.to_dict(MODES)
    assert record["share_in_groups"] == pytest.approx(share / 100, abs=1e-6)
    assert 0 < record["difference"] < record["difference_of_single_entries"]
    single = pattern_of_gaps(tensor_of(hidden((1, 1, 1), 0.3)))
    assert single.in_words(MODES).endswith("look most like single cells: validated by leaving out single entries")


# --- folds


def test_folds_of_a_tail_follow_each_other_and_learn_from_nothing_later():
    tensor = events()
    folds = make_folds(tensor, (Tail(2, 3),), 0)
    days = tensor.indices[:, 2]
    ends = np.unique(days)[::-1]  # the last one first
    for fold in range(FOLDS):
        window = set(ends[3 * fold : 3 * fold + 3])
        assert set(days[folds == fold]) == window
        assert days[learnt_from(folds, fold, (Tail(2, 3),))].max() < min(window)
    assert (folds[days < ends[3 * FOLDS - 1]] == -1).all()
    random = make_folds(tensor, (), 0)
    assert (learnt_from(random, 1, ()) == (random != 1)).all()


def test_a_tail_leaves_half_of_the_labels_to_learn_from():
    assert Tail(0, 50).fitting(60) == Tail(0, 6)
    assert Tail(0, 2).fitting(60) == Tail(0, 2)
    assert Tail(0, 50).fitting(7) == Tail(0, 1)
    assert new_modes((Tail(2, 3),)) == (2,)


def test_the_last_labels_validate_and_whole_labels_do():
    tensor = visits()
    before = split(tensor, seed=1)
    last = with_folds(before, "time:day", 0.1)
    assert last.together == (Tail(2, 6),)
    assert set(last.valid.indices[:, 2]) == set(range(54, 60))
    assert last.train.indices[:, 2].max() == 53
    assert len(last.train) + len(last.valid) == len(before.train) + len(before.valid)
    whole, grouped = (with_folds(before, folds, 0.1) for folds in ("slices:film", "group:film"))
    np.testing.assert_array_equal(whole.valid.indices, grouped.valid.indices)
    assert not set(whole.valid.indices[:, 1]) & set(whole.train.indices[:, 1])


def test_a_split_by_time_can_be_validated_by_time():
    parts = split(visits(), rule="time:day")
    last = with_folds(parts, "time:day", 0.1)
    assert last.valid.indices[:, 2].min() > last.train.indices[:, 2].max()
    assert last.test is parts.test
    assert with_folds(parts, "like-gaps", 0.1) is parts  # as it always was


def test_validation_entries_look_like_queries():
    tensor = visits()
    parts = split(tensor, rule="time:day")
    known = join(parts.train, parts.valid)
    asked = asked_of(parts.test.indices, tensor.modes)
    found = with_folds(split(known, test=0.0), "like-gaps", 0.1, asked)
    assert found.together == pattern_of_queries(known, asked).groups
    assert found.valid.indices[:, 2].min() > found.train.indices[:, 2].max()
    nothing = with_folds(split(known, test=0.0, valid=0.0), "like-gaps", 0.0, asked)
    assert (len(nothing.valid), nothing.together) == (0, found.together)


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        ("time:user", "mode has no order with an end; say --order user=ordered"),
        ("time:dya", "there is no mode 'dya'; the modes are user, film, day"),
        ("slices:dya", "there is no mode 'dya'"),
    ],
)
def test_folds_that_cannot_be_drawn_are_refused(folds, message):
    with pytest.raises(ConfigError, match=message):
        with_folds(split(visits()), folds, 0.1)


def test_a_mode_with_few_labels_has_no_folds_in_time():
    tensor = visits()
    few = tensor.take(np.flatnonzero(tensor.indices[:, 2] < 5))
    with pytest.raises(ConfigError, match="5 of its labels have entries, 6 are needed"):
        with_folds(split(few), "time:day", 0.1)


def test_places_follow_labels():
    mode = Mode("day", 3, ("2024-01-03", "2024-01-01", "2024-01-02"), order="ordered")
    assert places_of(mode).tolist() == [2, 0, 1]
