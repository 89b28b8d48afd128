"""Patterns of missing cells: planted ones are found, and groups are left out whole."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor import TensorCompleter, write_tensor
from jointensor.data.modes import Mode
from jointensor.data.split import groups_of, in_words, like_gaps, make_folds, new_modes, split, with_folds
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import load_run
from jointensor.runs.pipeline import run
from jointensor.search.portfolio import BIAS, Candidate
from jointensor.search.search import search

SHAPE = (24, 20, 36)
MODES = (Mode("station", 24), Mode("day", 20, order="ordered"), Mode("slot", 36, order="ordered"))


def tensor_of(seen, modes=MODES):
    indices = np.argwhere(seen)
    return SparseTensor(indices, np.arange(len(indices), dtype=np.float32), modes)


def hidden(pattern, share, seed=0, shape=SHAPE):
    """Cells that stay; the pattern is the shape of the groups of cells that are hidden together."""
    rng = np.random.default_rng(seed)
    drawn = rng.random([-(-size // block) for size, block in zip(shape, pattern, strict=True)]) >= share
    for n, block in enumerate(pattern):
        drawn = np.repeat(drawn, block, axis=n)
    return drawn[tuple(slice(size) for size in shape)]


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ((1, 1, 1), ()),
        ((1, 1, 36), (0, 1)),  # a station is silent for a day
        ((24, 1, 1), (1, 2)),  # all stations are, for a moment
        ((1, 20, 1), (0, 2)),  # a station is, at the same time of every day
    ],
)
def test_planted_gaps_are_found(pattern, expected, share, seed):
    assert like_gaps(tensor_of(hidden(pattern, share, seed)), seed) == expected


@pytest.mark.parametrize(("pattern", "modes"), [((24, 1, 6), {1, 2}), ((1, 1, 12), {0, 1, 2})])
def test_gaps_of_neighbouring_labels_are_found_about_as_long_as_they_are(pattern, modes):
    found = like_gaps(tensor_of(hidden(pattern, 0.3)))
    sizes = dict(one if isinstance(one, tuple) else (one, 1) for one in found)
    assert set(sizes) == modes
    assert sizes[1] == 1
    assert pattern[2] / 2 <= sizes[2] <= 2 * pattern[2]
    assert new_modes(found) == ()  # a label beside the gap is known


def test_the_order_of_the_labels_counts_not_that_of_their_positions():
    seen = hidden((24, 1, 6), 0.3)
    order = np.random.default_rng(3).permutation(36)
    labels = tuple(str(one) for one in order)
    shuffled = tensor_of(seen[:, :, order], (*MODES[:2], Mode("slot", 36, labels, order="ordered")))
    assert like_gaps(shuffled) == like_gaps(tensor_of(seen))
    entries = groups_of(shuffled, (1, (2, 6)))[1]
    places = order[shuffled.indices[:, 2]] // 6
    by_hand = np.unique(shuffled.indices[:, 1] * 6 + places, return_inverse=True)[1]
    assert len({*zip(entries.tolist(), by_hand.tolist(), strict=True)}) == entries.max() + 1 == by_hand.max() + 1


@pytest.mark.parametrize("never", [0.0, 0.2, 0.5])
@pytest.mark.parametrize(("pattern", "expected"), [((1, 1, 1), ()), ((1, 12, 1), (0, 2))])
def test_combinations_of_unordered_labels_that_never_occur_are_no_gaps(pattern, expected, never):
    """A shop without a department has no sales of it on any day."""
    shape = (24, 12, 36)
    seen = hidden(pattern, 0.1, shape=shape) & hidden((1, 1, 36), never, seed=1, shape=shape)
    modes = (MODES[0], Mode("department", 12), MODES[2])
    assert like_gaps(tensor_of(seen, modes)) == expected


def test_blocks_are_as_long_where_some_labels_have_no_entries():
    seen = hidden((24, 1, 6), 0.3)
    dense = tensor_of(seen)
    wide = np.zeros((24, 20, 4 * 36), dtype=bool)
    wide[:, :, ::4] = seen
    spread = tensor_of(wide, (*MODES[:2], Mode("slot", 4 * 36, order="ordered")))
    counts = [groups_of(one, like_gaps(one))[0] for one in (dense, spread)]
    assert counts[0] == counts[1]


def test_many_modes_are_not_searched_for_patterns():
    """There would be twice as many patterns for every further mode."""
    seen = np.random.default_rng(0).random((3,) * 7) < 0.5
    assert like_gaps(tensor_of(seen, tuple(Mode(f"m{n}", 3, order="ordered") for n in range(7)))) == ()


@pytest.mark.parametrize(
    "tensor",
    [
        tensor_of(hidden((1, 1, 36), 0.3), (MODES[0], Mode("b", 20), Mode("c", 36))),  # nothing is ordered
        tensor_of(np.random.default_rng(0).random(SHAPE) < 0.01),  # events, not a table with gaps
        tensor_of(np.ones(SHAPE, dtype=bool)),
        tensor_of(hidden((24, 4, 36), 0.2)),  # five groups are too few for folds
    ],
)
def test_where_there_are_no_gaps_to_speak_of_entries_are_left_out_one_by_one(tensor):
    assert like_gaps(tensor) == ()


def test_a_large_tensor_is_judged_by_some_of_its_labels():
    shape = (900, 20, 36)
    seen = hidden((1, 1, 36), 0.3, shape=shape)
    modes = (Mode("station", 900), *MODES[1:])
    assert like_gaps(tensor_of(seen, modes)) == (0, 1)


def test_groups_are_those_of_labels_and_blocks():
    tensor = tensor_of(hidden((1, 1, 1), 0.4))
    for groups, key in [
        ((0, 1), lambda row: (row[0], row[1])),
        ((1, (2, 5)), lambda row: (row[1], row[2] // 5)),
        (((1, 7),), lambda row: row[1] // 7),
        ((0, (2, 2)), lambda row: (row[0], row[2] // 2)),
    ]:
        count, member = groups_of(tensor, groups)
        keys = [key(row) for row in tensor.indices.tolist()]
        assert count == len(set(keys))
        assert len(set(zip(keys, member.tolist(), strict=True))) == count
        fold = make_folds(tensor, groups, 0)
        assert len(set(zip(keys, fold.tolist(), strict=True))) == count  # a group is in one fold


def test_what_is_left_out_is_said_in_words():
    assert in_words((), MODES) == "single cells"
    assert in_words((0, 1), MODES) == "station × day"
    assert in_words((1, (2, 6)), MODES) == "day × 6 neighbouring slot"


# --- validation entries


def cells(tensor):
    return {tuple(row) for row in tensor.indices.tolist()}


def test_validation_entries_are_whole_groups_and_test_entries_stay():
    tensor = tensor_of(hidden((1, 1, 36), 0.3))
    before = split(tensor, seed=1)
    parts = with_folds(before, "like-gaps", 0.1)
    assert parts.together == (0, 1)
    assert cells(parts.test) == cells(before.test)
    assert cells(parts.train) | cells(parts.valid) == cells(before.train) | cells(before.valid)
    assert not cells(parts.train) & cells(parts.valid)
    days = [{row[:2] for row in cells(part)} for part in (parts.train, parts.valid)]
    assert not days[0] & days[1]
    assert len(days[1]) == int(0.1 * len(days[0] | days[1]))
    named = with_folds(before, "group:station,day", 0.1)
    assert cells(named.valid) == cells(parts.valid)


def test_a_split_like_the_gaps_tests_whole_groups_too():
    tensor = tensor_of(hidden((1, 1, 36), 0.3))
    parts, named = split(tensor, rule="like-gaps", seed=1), split(tensor, rule="group:station,day", seed=1)
    assert parts.together == named.together == (0, 1)
    for one, other in zip((parts.train, parts.valid, parts.test), (named.train, named.valid, named.test), strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
    single = split(tensor_of(hidden((1, 1, 1), 0.3)), rule="like-gaps")
    assert single.together == ()
    assert len(single.test) == int(0.2 * (len(single.train) + len(single.valid) + len(single.test)))


def test_random_gaps_random_folds_and_other_splits_change_nothing():
    gaps, none = (tensor_of(hidden(pattern, 0.3)) for pattern in ((1, 1, 36), (1, 1, 1)))
    for before, folds in [
        (split(gaps), "random"),
        (split(none), "like-gaps"),
        (split(gaps, rule="time:day"), "like-gaps"),
        (split(gaps, rule="group:slot"), "like-gaps"),
    ]:
        assert replace(with_folds(before, folds, 0.1), pattern=None) == before  # the same parts
    assert split(gaps, rule="group:slot").together == (2,)


def test_one_group_validates_at_least_and_not_all_of_them():
    tensor = tensor_of(hidden((1, 1, 1), 0.3), (Mode("station", 24), Mode("day", 20), Mode("region", 36)))
    few = tensor.take(np.flatnonzero(tensor.indices[:, 2] < 4))
    parts = with_folds(split(few), "group:region", 0.1)
    assert len(np.unique(parts.valid.indices[:, 2])) == 1
    one = tensor.take(np.flatnonzero(tensor.indices[:, 2] < 1))
    with pytest.raises(ConfigError, match="folds 'group:region': all entries are in one group"):
        with_folds(split(one), "group:region", 0.1)


@pytest.mark.parametrize(
    "folds", ["", "gaps", "random:day", "like-gaps:day", "group", "group:", "time", "time:day,slot", "slices:day,slot"]
)
def test_unknown_folds_are_refused(folds):
    with pytest.raises(ConfigError, match="give like-gaps, random, group:MODE,MODE, slices:MODE or time:MODE"):
        with_folds(split(tensor_of(hidden((1, 1, 1), 0.3))), folds, 0.1)


def test_a_mode_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="there is no mode 'dya'"):
        with_folds(split(tensor_of(hidden((1, 1, 1), 0.3))), "group:dya", 0.1)


def test_without_validation_entries_groups_are_kept_for_folds():
    before = split(tensor_of(hidden((1, 1, 36), 0.3)), valid=0.0)
    parts = with_folds(before, "like-gaps", 0.0)
    assert (parts.together, len(parts.valid), len(parts.train)) == ((0, 1), 0, len(before.train))
    assert replace(parts, together=()).train is parts.train


# --- what is chosen and calibrated by them


STATION_DAYS = (50, 30, 12)


def silent_days():
    """Stations with an effect of every day of theirs, of which days are missing whole: the other cells, and those."""
    rng = np.random.default_rng(5)
    stations, days, slots = STATION_DAYS
    values = rng.normal(size=(stations, 1, slots)) + rng.normal(size=(stations, days, 1))
    values = values + 0.2 * rng.normal(size=STATION_DAYS)
    modes = (Mode("station", stations), Mode("day", days, order="ordered"), Mode("slot", slots, order="ordered"))
    seen = hidden((1, 1, slots), 0.3, shape=STATION_DAYS)
    return [SparseTensor(np.argwhere(one), values[one].astype(np.float32), modes) for one in (seen, ~seen)]


def coverage(predictor, others, level=0.9):
    lower, upper = predictor.interval(others.indices, level).T
    return float(((others.values >= lower) & (others.values <= upper)).mean())


def test_intervals_and_figures_hold_for_gaps_where_they_are_imitated_and_only_there():
    """The effect of a day is known of random cells, and not of silent days."""
    known, others = silent_days()
    tables = Candidate("tables", "tables", 1, stage="core")
    held, claimed, error = {}, {}, {}
    for groups in (like_gaps(known), ()):
        found = search(known, groups=groups, candidates=[BIAS, tables], budget_fits=40, device="cpu")
        held[groups], claimed[groups] = coverage(found.predictor, others), found.figures["all"]
        error[groups] = float(np.sqrt(np.mean((found.predictor.predict(others.indices) - others.values) ** 2)))
    assert held[()] < 0.4
    assert claimed[()] < 0.3 * error[()]
    assert 0.87 < held[0, 1] < 0.93
    assert claimed[0, 1] == pytest.approx(error[0, 1], rel=0.06)


def test_python_has_the_same_folds():
    known, others = silent_days()
    found = {}
    for folds in ("like-gaps", "group:x0,x1", "random"):
        completer = TensorCompleter(rank=(1, 0), folds=folds, device="cpu", random_state=0)
        found[folds] = completer.fit(known.indices, known.values).predict(others.indices)
    np.testing.assert_array_equal(found["like-gaps"], found["group:x0,x1"])
    assert np.abs(found["like-gaps"] - found["random"]).max() > 1e-3
    with pytest.raises(ConfigError, match="folds 'gaps' are not known"):
        TensorCompleter(folds="gaps").fit(known.indices, known.values)


def test_intervals_of_the_default_fit_come_from_what_looks_like_the_gaps(tmp_path):
    """A default fit of baselines: test entries are random cells, and would claim too much."""
    known, others = silent_days()
    write_tensor(known, tmp_path / "known.npz")
    held = {}
    for folds in ("like-gaps", "random"):
        config = RunConfig(str(tmp_path / "known.npz"), folds=folds, device="cpu", budget=1e-3)
        run(config, tmp_path / folds)
        held[folds] = coverage(load_run(tmp_path / folds).predictor, others)
    run(RunConfig(str(tmp_path / "known.npz"), split="like-gaps", device="cpu", budget=1e-3), tmp_path / "tested")
    held["tested"] = coverage(load_run(tmp_path / "tested").predictor, others)
    assert held["random"] < 0.4
    assert 0.8 < held["like-gaps"] < 0.97
    assert 0.8 < held["tested"] < 0.97


def test_a_run_says_what_it_leaves_out(tmp_path):
    write_tensor(silent_days()[0], tmp_path / "known.npz")
    notes, figures = [], {}
    for folds in ("like-gaps", "random", "group:station,day"):
        config = RunConfig(str(tmp_path / "known.npz"), rank=(1, 0), folds=folds, device="cpu")
        result = run(config, tmp_path / folds.partition(":")[0], Listener(on_note=notes.append))
        assert result.split["folds"] == folds
        assert result.split["together"] == ("single cells" if folds == "random" else "station × day")
        figures[folds] = result.valid["rmse"]
    found = "of the cells that are missing or tested lie in whole groups (station × day): validated by leaving out such"
    assert sum(found in note for note in notes) == 1
    assert sum("tested on single entries, which are easier; --split like-gaps" in note for note in notes) == 1
    assert figures["like-gaps"] == figures["group:station,day"] != figures["random"]


def test_a_run_that_tests_single_cells_says_where_the_gaps_are_larger(tmp_path):
    """A quarter of what is not learnt from is missing, all of it in gaps; the others are test entries."""
    tensor = tensor_of(hidden((1, 1, 36), 0.06))
    write_tensor(tensor, tmp_path / "known.npz")
    notes = []
    for folds in ("like-gaps", "random"):
        config = RunConfig(str(tmp_path / "known.npz"), rank=(1, 0), folds=folds, device="cpu")
        result = run(config, tmp_path / folds, Listener(on_note=notes.append))
        if folds == "like-gaps":
            assert result.split["pattern"]["reason"] == (
                "the cells that are missing or tested look most like single cells: "
                "validated by leaving out single entries"
            )
    hints = [note for note in notes if "--split like-gaps" in note]
    assert hints == [
        "100 % of the missing cells lie in whole groups (station × day), but test entries do not; "
        "--split like-gaps tests and validates as cells are missing"
    ]


@pytest.mark.parametrize(("test", "cells"), [(0.2, "cells that are missing or tested"), (0.0, "missing cells")])
def test_test_entries_count_as_missing_and_are_named(test, cells):
    """They are not learnt from, and look missing to a fit."""
    tensor = tensor_of(hidden((1, 1, 36), 0.3))
    parts = with_folds(split(tensor, test=test), "like-gaps", 0.1)
    assert parts.together == (0, 1)
    share = 100 * parts.pattern.share
    unknown = np.prod(tensor.shape) - len(tensor)
    assert share == pytest.approx(100 * unknown / (unknown + len(parts.test)), abs=1)
    assert parts.pattern.how_cells_lie(MODES) == f"{share:.0f} % of the {cells} lie in whole groups (station × day)"
