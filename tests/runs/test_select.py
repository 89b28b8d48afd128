"""Ranks chosen by validation: the one-standard-error rule by hand, planted ranks, and files that agree."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from jointensor.data.synthetic import make_joint
from jointensor.errors import ConfigError, RunError
from jointensor.runs.select import (
    SETTINGS,
    TITLES,
    RankResult,
    choose,
    identify,
    paired,
    select,
    selection_folder,
    write_selection,
)


def result(rank, errors):
    return RankResult(rank, np.asarray(errors, dtype=np.float64), 10, 0.5)


def spread_over(mean, deviation, n=100):
    """Numbers with this mean and standard deviation."""
    return mean + deviation * np.tile([-1.0, 1.0], n // 2)


@pytest.fixture(scope="module")
def planted():
    """25 × 25 × 25, all observed, two components and noise."""
    return make_joint((25, 25, 25), (2, 0), observed=1.0, noise=0.3, seed=0)[0]


@pytest.fixture(scope="module")
def selection(planted):
    heard = []
    found = select(planted, (0, 1, 2, 3), (0,), n_folds=1, starts=1, device="cpu", on_result=heard.append)
    assert heard == found.results
    return found


# --- the rule


def test_differences_are_paired():
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal(50) ** 2, 0.01 * rng.standard_normal(50)
    difference, noise = paired(shared + own, shared)
    assert difference == pytest.approx(own.mean())
    assert noise == pytest.approx(math.sqrt(np.mean((own - own.mean()) ** 2) / 50))
    assert paired(shared, shared + own) == pytest.approx((-difference, noise))
    assert paired(shared, shared) == (0.0, 0.0)


def test_the_simplest_within_one_standard_error_of_the_best_is_chosen():
    best = np.ones(100)
    # a standard deviation of 1 over 100 entries: one standard error is 0.1
    inside, outside = result((1, 0), best + spread_over(0.09, 1.0)), result((1, 0), best + spread_over(0.11, 1.0))
    others = [result((3, 0), best), result((5, 0), best + 0.001)]
    assert choose([inside, *others]).chosen == (1, 0)
    assert choose([outside, *others]).chosen == (3, 0)
    assert choose([inside, *others]).best == choose([outside, *others]).best == (3, 0)


def test_what_is_nearly_as_good_is_good_enough():
    """Without any spread of the differences, a share of the least error decides."""
    best = np.ones(100)
    for share, chosen in ((0.9 * SETTINGS.tolerance, (1, 0)), (1.1 * SETTINGS.tolerance, (3, 0))):
        assert choose([result((1, 0), best + share), result((3, 0), best)]).chosen == chosen


def test_a_larger_model_that_is_no_better_is_not_chosen():
    even = np.ones(10)
    results = [result((8, 0), even), result((4, 0), even), result((2, 2), even), result((1, 8), even)]
    assert choose(results).chosen == (4, 0)  # fewest components, and of those the least nonlinear
    assert choose(results[::-1]).chosen == (4, 0)


def test_a_single_cell_is_chosen():
    found = choose([result((0, 4), np.zeros(3))])
    assert found.chosen == found.best == (0, 4)
    assert found.rows()[0]["rmse"] == found.rows()[0]["difference"] == 0


def test_rows_say_which_cells_are_within():
    rng = np.random.default_rng(1)
    errors = {(r, f): (1 + abs(r - 3)) * rng.standard_normal(400) ** 2 for r in range(1, 6) for f in (0, 4)}
    found = choose([result(rank, one) for rank, one in errors.items()])
    rows = found.rows()
    assert [(row["R"], row["F"]) for row in rows] == list(errors)
    for row in rows:
        own = errors[row["R"], row["F"]]
        assert row["rmse"] == pytest.approx(math.sqrt(own.mean()))
        assert row["difference"] == pytest.approx(np.mean(own - errors[found.best]))
        assert row["within"] == (
            row["difference"] <= max(row["standard_error"], SETTINGS.tolerance * errors[found.best].mean())
        )
    within = [(row["R"], row["F"]) for row in rows if row["within"]]
    assert found.best in within
    assert sum(found.chosen) == min(map(sum, within))


def alone(*errors):
    """R = 1, 2, … with these squared errors."""
    return [result((r, 0), np.full(20, error)) for r, error in enumerate(errors, start=1)]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((5.0, 1.0, 1.0, 1.0), 2),
        ((9.9, 1.0, 0.99, 1.02), 2),  # a first component that gains little alone
        ((4.0, 2.0, 1.0, 0.95, 0.9, 0.86), 3),  # small ones that follow
        ((1.0, 1.0, 1.0), 1),
        ((9.0, 6.0, 1.0, 1.001), 3),
    ],
)
def test_the_rank_is_where_gains_break_off(errors, expected):
    results = alone(*errors)
    assert identify(results, 10.0) == expected
    assert identify(results[::-1], 10.0) == expected
    assert (
        identify([result((r, 4), np.zeros(20)) for r in range(3)] + results, 10.0) == expected
    )  # networks do not count
    assert choose(results, 10.0).identified == expected
    assert choose(results).identified is None


def test_the_rank_does_not_depend_on_the_scale():
    for scale in (1e-6, 1e6):
        assert identify(alone(*(scale * error for error in (4.0, 2.0, 1.0, 0.95, 0.94))), 10.0 * scale) == 3


def test_gains_that_are_too_little_do_not_differ():
    """Steps of the size of chance: the ratio between two of them says nothing."""
    least = SETTINGS.min_gain / 2
    assert identify(alone(2.0, 1.0 + 3 * least, 1.0 + 2 * least, 1.0 + 1.999 * least, 1.0), 10.0) == 2


def test_without_every_rank_nothing_is_identified():
    results = alone(5.0, 1.0, 1.0, 1.0)
    assert identify(results[:1], 10.0) is None
    assert identify([results[0], results[1], results[3]], 10.0) is None
    assert identify(results[1:], 10.0) is None
    assert identify([result((1, 4), np.ones(3)), result((2, 4), np.ones(3))], 10.0) is None


# --- planted ranks


def test_the_planted_rank_is_chosen(selection, planted):
    assert selection.chosen == (2, 0)
    assert selection.identified == 2
    assert [one.rank for one in selection.results] == [(1, 0), (2, 0), (3, 0)]  # 0/0 is nothing
    by_rank = {one.rank: one for one in selection.results}
    # what is left at the planted rank is the noise alone
    noise = 0.3 / math.sqrt(1.09) * float(planted.values.std())
    assert by_rank[2, 0].rmse == pytest.approx(noise, rel=0.05)
    assert by_rank[1, 0].rmse > 1.5 * noise
    assert by_rank[3, 0].rmse > 0.95 * noise
    assert by_rank[1, 0].parameters < by_rank[2, 0].parameters < by_rank[3, 0].parameters


def test_each_fold_adds_its_entries_once(planted):
    small = planted.take(np.arange(0, len(planted), 10))
    sizes = [len(select(small, (1,), (0,), n_folds=k, starts=1, device="cpu").results[0].errors) for k in (1, 5)]
    assert sizes == [pytest.approx(len(small) / 5, abs=1), len(small)]


def test_the_same_seed_selects_the_same(planted):
    small = planted.take(np.arange(0, len(planted), 5))
    first, again = (select(small, (1, 2), (0,), n_folds=1, starts=2, seed=3, device="cpu") for _ in range(2))
    for one, other in zip(first.results, again.results, strict=True):
        assert np.array_equal(one.errors, other.errors)


def test_more_starts_are_never_worse(planted):
    small = planted.take(np.arange(0, len(planted), 10))
    one, three = (select(small, (3,), (4,), n_folds=1, starts=k, device="cpu").results[0].rmse for k in (1, 3))
    assert three <= one


@pytest.mark.parametrize(
    "grid", [((0,), (0,), 1, 1), ((), (4,), 1, 1), ((1,), (0,), 0, 1), ((1,), (0,), 6, 1), ((1,), (0,), 1, 0)]
)
def test_grids_without_a_meaning_are_refused(planted, grid):
    linear, nonlinear, folds, starts = grid
    with pytest.raises(ConfigError, match="select needs"):
        select(planted, linear, nonlinear, n_folds=folds, starts=starts)


# --- files


def test_files_agree_with_the_selection(selection, tmp_path):
    out = tmp_path / "some" / "where"
    with selection_folder(out):
        write_selection(selection, out)
    assert {path.name for path in out.iterdir()} == {"grid.csv", "grid.png", "selection.json"}
    assert json.loads((out / "selection.json").read_text(encoding="utf-8")) == {
        "chosen": list(selection.chosen),
        "best": list(selection.best),
        "identified_rank": selection.identified,
        "together": "single cells",
    }
    with (out / "grid.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert tuple(read[0]) == TITLES
    for row, expected in zip(read, selection.rows(), strict=True):
        assert row["within"] == str(expected["within"])
        numbers = {name: float(value) for name, value in row.items() if name != "within"}
        assert numbers == pytest.approx({name: value for name, value in expected.items() if name != "within"})
    assert (out / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_the_folder_is_made_before_the_fits_and_one_that_stays_empty_goes_again(tmp_path):
    (tmp_path / "there").mkdir()
    for place in (tmp_path / "there", Path("/proc/none"), Path("/dev/null/none")):
        with pytest.raises(RunError, match=r"exists already|cannot be made"), selection_folder(place):
            pytest.fail("fits would begin here")
    with selection_folder(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    with pytest.raises(KeyboardInterrupt), selection_folder(tmp_path / "new"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_rank_beyond_memory_is_refused_before_the_first_fit(planted):
    with pytest.raises(ConfigError, match="rank 999999999999/0 of a"):
        select(planted, (1, 999_999_999_999), (0,), device="cpu", on_result=pytest.fail)


def test_folds_are_drawn_as_they_say(planted):
    """Whole labels are left out, each once."""
    small, said = planted.take(np.arange(0, len(planted), 10)), []
    whole = select(small, (1,), (0,), folds="slices:mode_0", n_folds=5, starts=1, device="cpu", on_note=said.append)
    assert (whole.together, len(whole.results[0].errors), said) == ("mode_0", len(small), [])
    with pytest.raises(ConfigError, match="folds '2' are not known"):
        select(small, (1,), (0,), folds="2")
