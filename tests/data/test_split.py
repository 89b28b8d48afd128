import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor import SparseTensor, split
from jointensor.data.modes import Mode
from jointensor.data.split import share_of, with_folds
from jointensor.errors import ConfigError

RULES = ["standard", "first:40", "time:day", "slices:user", "group:user", "group:user,day"]


def numbered(n=100, shape=(7, 11, 13), seed=0):
    """Entry k has the value k."""
    cells = np.random.default_rng(seed).permutation(np.prod(shape))[:n]
    modes = tuple(Mode(name, size) for name, size in zip(("user", "item", "day"), shape, strict=True))
    return SparseTensor(np.stack(np.unravel_index(cells, shape), axis=1), np.arange(n), modes)


def positions(parts):
    return [part.values.astype(int).tolist() for part in (parts.train, parts.valid, parts.test)]


@pytest.mark.parametrize("n", [10, 99, 100, 1234])
@pytest.mark.parametrize("seed", [0, 7])
def test_standard_can_be_repeated_with_numpy_alone(n, seed):
    p = np.random.default_rng(seed).permutation(n)
    test, rest = p[: n // 5], p[n // 5 :]
    valid, train = rest[: len(rest) // 10], rest[len(rest) // 10 :]
    parts = split(numbered(n, (20, 20, 20)), seed=seed)
    assert positions(parts) == [train.tolist(), valid.tolist(), test.tolist()]


@pytest.mark.parametrize("rule", RULES)
def test_parts_are_disjoint_and_complete(rule):
    parts = split(numbered(), rule=rule, seed=3)
    assert sorted(itertools.chain(*positions(parts))) == list(range(100))
    assert len(parts.train) > 0
    assert len(parts.test) > 0


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(5, 200),
    seed=st.integers(0, 2**32),
    test=st.floats(0, 0.7),
    valid=st.floats(0, 0.7),
    rule=st.sampled_from(["standard", "time:day", "slices:item", "group:user"]),
)
def test_every_split_is_disjoint_and_complete(n, seed, test, valid, rule):
    parts = split(numbered(n), rule=rule, test=test, valid=valid, seed=seed)
    assert sorted(itertools.chain(*positions(parts))) == list(range(n))


@pytest.mark.parametrize("rule", RULES)
def test_the_same_seed_gives_the_same_split(rule):
    assert positions(split(numbered(), rule=rule, seed=5)) == positions(split(numbered(), rule=rule, seed=5))


@pytest.mark.parametrize("rule", [*RULES, "like-gaps"])
def test_a_split_says_how_it_was_made(rule):
    parts = split(numbered(), rule=rule, seed=5)
    assert (parts.rule, parts.seed) == (rule, 5)


@pytest.mark.parametrize("rule", ["standard", "first:200"])
def test_validation_entries_are_drawn_in_groups_where_the_rule_leaves_it_open(rule):
    before = split(numbered(300), rule=rule, seed=1)
    parts = with_folds(before, "group:user", 0.3)
    assert positions(parts)[2] == positions(before)[2]
    users = [set(part.indices[:, 0].tolist()) for part in (parts.train, parts.valid)]
    assert not users[0] & users[1]
    assert [len(one) for one in users] == [5, 2]
    assert parts.together == (0,)


@pytest.mark.parametrize(
    ("rule", "folds"), [("group:item", "group:user"), ("time:day", "like-gaps"), ("slices:item", "like-gaps")]
)
def test_validation_entries_of_other_rules_stay(rule, folds):
    """Groups say what validates; other rules leave it to single entries unless folds are asked for."""
    before = split(numbered(300), rule=rule, seed=1)
    assert with_folds(before, folds, 0.3) is before


def test_two_groups_are_enough_to_validate():
    parts = with_folds(split(numbered(20, shape=(2, 11, 13))), "group:user", 0.1)
    assert [len(set(part.indices[:, 0].tolist())) for part in (parts.train, parts.valid)] == [1, 1]


@pytest.mark.parametrize("rule", RULES)
def test_shares_of_zero_keep_all_entries_for_training(rule):
    parts = split(numbered(), rule="first:100" if rule.startswith("first") else rule, test=0, valid=0)
    assert len(parts.train) == 100


def test_same_split_in_another_process():
    program = f"""
import json, sys
sys.path.insert(0, {str(__file__).rpartition("/")[0]!r})
from test_split import RULES, numbered, positions
from jointensor import split
print(json.dumps([positions(split(numbered(), rule=rule, seed=5)) for rule in RULES]))
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == [positions(split(numbered(), rule=rule, seed=5)) for rule in RULES]


def test_seed_moves_the_split():
    assert positions(split(numbered(), seed=0)) != positions(split(numbered(), seed=1))
    assert (
        positions(split(numbered(), rule="slices:user", seed=0))[2]
        != (positions(split(numbered(), rule="slices:user", seed=1))[2])
    )


def test_first_tests_on_what_follows_in_file_order():
    train, valid, test = positions(split(numbered(), rule="first:30"))
    assert test == list(range(30, 100))
    assert sorted(train + valid) == list(range(30))
    assert len(valid) == 3


def test_time_tests_on_the_latest_labels_and_no_more_than_needed():
    tensor = numbered()
    parts = split(tensor, rule="time:day")
    held = set(parts.test.indices[:, 2].tolist())
    kept = set(parts.train.indices[:, 2].tolist()) | set(parts.valid.indices[:, 2].tolist())
    assert min(held) > max(kept)
    assert len(parts.test) >= 20
    assert np.count_nonzero(parts.test.indices[:, 2] > min(held)) < 20


@pytest.mark.parametrize(("by", "horizon", "origins"), [("day", 2, 3), ("item+day", 5, 4), ("day+item", 1, 9)])
def test_rolling_origins_test_on_the_last_labels_that_have_entries(by, horizon, origins):
    tensor = numbered(40)
    parts = split(tensor, rule=f"time:{by},horizon={horizon},origins={origins}", seed=2)
    places = [tuple(tensor.indices[k, tensor.mode(name)] for name in by.split("+")) for k in range(40)]
    last = sorted(set(places))[-horizon * origins :]
    assert sorted(positions(parts)[2]) == [k for k in range(40) if places[k] in last]
    assert sorted(itertools.chain(*positions(parts))) == list(range(40))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("time:day,horizon=2", "write time:MODE,horizon=H,origins=K"),
        ("time:day,horizon=2,origins=0", "whole numbers from 1 on"),
        ("time:day,horizon=2,origins=x", "whole numbers from 1 on"),
        ("time:day,horizon=2,origins=1,step=3", "write time:MODE"),
        ("time:,horizon=2,origins=1", "write time:MODE"),
        ("time:month,horizon=2,origins=1", "no mode 'month'"),
        ("time:day,horizon=13,origins=1", "test 13 labels, and day has 13 with entries"),
    ],
)
def test_rolling_origins_that_have_no_meaning_are_refused(rule, message):
    with pytest.raises(ConfigError, match=message):
        split(numbered(), rule=rule)


def test_slices_hold_out_whole_labels_and_no_more_than_needed():
    parts = split(numbered(), rule="slices:item", seed=2)
    held = set(parts.test.indices[:, 1].tolist())
    assert held.isdisjoint(parts.train.indices[:, 1].tolist() + parts.valid.indices[:, 1].tolist())
    largest = max(np.bincount(parts.test.indices[:, 1]))
    assert 20 <= len(parts.test) < 20 + largest


def test_slices_of_a_mode_with_billions_of_labels():
    indices = np.stack([np.arange(20) * 10**8 * 3, np.zeros(20, dtype=np.int64)], axis=1)
    parts = split(SparseTensor(indices, np.arange(20), (6 * 10**9, 2)), rule="slices:mode_0")
    assert len(parts.test) == 4


@pytest.mark.parametrize("modes", ["user", "user,day", " user , item "])
def test_groups_stay_on_one_side(modes):
    tensor = numbered(300)
    columns = [tensor.mode(name.strip()) for name in modes.split(",")]
    parts = split(tensor, rule=f"group:{modes}", seed=1)
    sides = [{tuple(row) for row in p.indices[:, columns].tolist()} for p in (parts.train, parts.valid, parts.test)]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]
    assert len(sides[2]) == sum(map(len, sides)) // 5


@pytest.mark.parametrize(("n", "share", "expected"), [(15, 0.2, 3), (10, 0.7, 7), (100, 0.29, 29), (7, 1e-9, 0)])
def test_shares_are_taken_in_decimal_arithmetic(n, share, expected):
    assert share_of(n, share) == expected


@pytest.mark.parametrize("share", [1, 1.0, 1.5, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["test", "valid"])
def test_shares_of_one_or_more_or_less_than_none_are_refused(name, share):
    with pytest.raises(ConfigError, match=f"the {name} share is {share:g}"):
        split(numbered(), **{name: share})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("random", "split 'random' is not known; give standard, first:N"),
        ("standard:3", "split 'standard:3' is not known"),
        ("time", "split 'time' is not known"),
        ("group:", "split 'group:' is not known"),
        ("first:", "give a number of entries between 1 and 100"),
        ("first:0", "give a number of entries between 1 and 100"),
        ("first:101", "give a number of entries between 1 and 100"),
        ("first:-1", "give a number of entries"),
        ("first:²", "give a number of entries"),
        ("first:1.5", "give a number of entries"),
    ],
)
def test_unknown_rules_are_refused(rule, message):
    with pytest.raises(ConfigError, match=message):
        split(numbered(), rule=rule)


@pytest.mark.parametrize("rule", ["time:month", "slices:month", "group:user,month"])
def test_rules_name_the_modes_there_are(rule):
    with pytest.raises(ConfigError, match="no mode 'month'; the modes are user, item, day"):
        split(numbered(), rule=rule)


def test_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="the split seed is -1"):
        split(numbered(), seed=-1)


@pytest.mark.parametrize("rule", ["time:mode_0", "slices:mode_0"])
def test_one_label_cannot_be_split_by_labels(rule):
    tensor = SparseTensor([[0, k] for k in range(10)], np.arange(10), (1, 10))
    with pytest.raises(ConfigError, match="mode 'mode_0' has one label"):
        split(tensor, rule=rule)


@pytest.mark.parametrize("rule", ["time:mode_0", "slices:mode_0"])
@pytest.mark.parametrize(("labels", "share", "kept"), [(2, 0.1, 1), (5, 0.2, 4), (5, 0.79, 1), (5, 0.99, 1)])
def test_one_label_is_left_to_learn_from(rule, labels, share, kept):
    cells = np.stack(np.unravel_index(np.arange(20 * labels), (labels, 20)), axis=1)
    parts = split(SparseTensor(cells, np.arange(20.0 * labels), (labels, 20)), rule=rule, test=share, valid=0)
    assert len(np.unique(parts.train.indices[:, 0])) == kept
    assert len(np.unique(parts.test.indices[:, 0])) == labels - kept


def test_a_single_first_entry_is_trained_on():
    assert positions(split(numbered(), rule="first:1", valid=0)) == [[0], [], list(range(1, 100))]


def test_no_training_entries_is_refused():
    with pytest.raises(ConfigError, match="leaves no training entries"):
        split(SparseTensor([], [], (2, 2)))


def test_by_time_the_latest_labels_are_tested_whatever_their_order_in_the_file():
    labels = ("2014-10", "2014-01", "2014-02", "2014-03", "2014-04")
    modes = (Mode("month", 5, labels, "ordered"), Mode("other", 4))
    cells = np.stack(np.unravel_index(np.arange(20), (5, 4)), axis=1)
    parts = split(SparseTensor(cells, np.arange(20.0), modes), rule="time:month", test=0.2)
    assert set(parts.test.indices[:, 0]) == {0}
