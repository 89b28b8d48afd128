"""Which candidates a search tries, and which it fits to more folds when the budget is short."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.split import FOLDS
from jointensor.search.cross_fit import OutOfFold
from jointensor.search.executor import FitResult
from jointensor.search.families import FAMILIES
from jointensor.search.portfolio import Candidate
from jointensor.search.screening import prediction_seconds
from jointensor.search.settings import SETTINGS
from tests.search.searches import BIAS, COMPONENTS, TABLES, TREES, additive, along_days, bench


def with_remaining(tensor, seconds, total=600.0):
    """The parts of a search that has so many seconds left for fits."""
    parts = bench(tensor, seconds=total)
    parts.clock.now = (1 - SETTINGS.reserve_share) * total - seconds
    assert parts.budget.remaining_for_fits() == pytest.approx(seconds)
    return parts


def tried(data, name, family, folds, cost, first, second):
    """A candidate whose errors on all entries lie in two orthogonal directions."""
    size = len(data.truth([0]))
    common, own = np.resize([1.0, 1.0, -1.0, -1.0], size), np.resize([1.0, -1.0], size)
    predicted = (data.truth([0]) + first * common + second * own).astype(np.float32)
    return OutOfFold(
        Candidate(name, family, 1), dict.fromkeys(range(folds)), dict.fromkeys(range(folds), predicted), cost
    )


# --- screening


def test_the_core_is_tried_as_far_as_its_share_of_the_budget_lasts(planted):
    """Of 5 fits 3 are for screening: of four candidates the first three, each of one fit, and then no more."""
    parts = bench(planted[0], BIAS, TABLES, replace(BIAS, name="again"), replace(TABLES, name="more"), fits=5)
    results = {}
    parts.screening.try_core(results)
    assert list(results) == ["bias", "tables", "again"]
    assert "more: not tried, it may take 1 fits" in parts.notes
    assert parts.budget.remaining() == 2


def test_the_first_candidate_is_tried_whatever_it_costs(planted):
    parts, results = bench(planted[0], replace(BIAS, effort=10.0), TABLES, fits=2), {}
    parts.screening.try_core(results)
    assert list(results) == ["bias"]


def test_in_seconds_candidates_are_expected_to_take_what_their_family_took(planted, monkeypatch):
    """Biases take 10 s of the 60 that screening may take; twice, five and four times as much is expected of others."""
    variants = [replace(BIAS, name=f"x{effort}", effort=float(effort)) for effort in (2, 5, 4)]
    parts, real = bench(planted[0], BIAS, *variants, seconds=100.0), FAMILIES["bias"].fit

    def slow(candidate, *args):
        parts.clock.now += 10 * candidate.effort
        return real(candidate, *args)

    monkeypatch.setattr(FAMILIES["bias"], "fit", slow)
    results = {}
    parts.screening.try_core(results)
    assert list(results) == ["bias", "x2"]
    assert "x5: not tried, it may take 50 s" in parts.notes
    assert "x4: not tried, it may take 40 s" in parts.notes
    assert [one.cost for one in results.values()] == [10, 20]


def test_what_the_default_fit_took_is_expected_of_families_that_were_not_tried_yet(planted):
    """Of 100 s, 60 are for screening; trees took 45 s elsewhere, and twice as many are expected to take 90."""
    more = replace(TREES, name="more trees", effort=2.0)
    parts = bench(planted[0], BIAS, more, TREES, seconds=100.0, costs=[(TREES, 45.0), (BIAS, 99.0)])
    results = {}
    parts.screening.try_core(results)
    assert "more trees: not tried, it may take 90 s" in parts.notes
    assert "trees" in results
    parts.screening.try_core(results)  # what a family takes here counts from now on
    assert "more trees" in results


def test_richer_candidates_follow_the_best_of_their_family(planted):
    richer = [
        Candidate("after bias", "bias", 3, stage="richer", after="bias"),
        Candidate("after other", "bias", 3, stage="richer", after="other"),
        Candidate("free", "bias", 3, stage="richer"),
    ]
    parts, results = bench(planted[0], BIAS, *richer), {}
    parts.screening.try_core(results)
    parts.screening.try_further(results, "richer")
    assert list(results) == ["bias", "free", "after bias"]  # those that follow come after those that do not


@pytest.mark.parametrize(("linear", "tried_late"), [("mean", []), ("mean+bias+cp:2", ["wide"])])
def test_late_candidates_of_a_family_that_is_far_behind_are_not_tried(linear, tried_late):
    first = Candidate("first", "joint", 5, linear=linear, stage="core")
    wide = Candidate("wide", "joint", 6, linear="mean+bias+cp:2", after="first")
    parts, results = bench(additive((60, 50), 2500), BIAS, first, wide), {}
    parts.screening.try_core(results)
    parts.screening.try_further(results, "late")
    assert list(results) == ["bias", "first", *tried_late]


# --- folds and members

ALIKE, HARDLY, LITTLE = ((0.95, 0.31), (0.95, -0.31)), ((1.0, 0.03), (1.0, -0.03)), ((1.0, 0.0), (0.9, 1.0))
"""How two members err, in two directions: the mean of the first two errs 10 % less than one, of the next 0.1 %, and
nine parts of the last but one and one part of the last 1 %."""


@pytest.mark.parametrize(
    ("families", "errors", "names", "folds"),
    [
        (("tables", "tables"), ALIKE, 2, 2),
        (("tables", "tables"), HARDLY, 1, 3),
        (("joint", "joint"), ALIKE, 2, 3),
        (("joint", "tables"), LITTLE, 1, FOLDS),  # one network alone gains most by being averaged
    ],
)
def test_a_member_that_helps_is_weighed_against_folds(planted, families, errors, names, folds):
    """There are 45 seconds, and every fit takes ten."""
    parts = with_remaining(planted[0], 45.0)
    results = {
        f"member {k}": tried(parts.data, f"member {k}", family, 1, 10.0, *error)
        for k, (family, error) in enumerate(zip(families, errors, strict=True))
    }
    chosen, many = parts.screening.affordable_members(results)
    assert (len(chosen), many) == (names, folds)


@pytest.mark.parametrize(("seconds", "expected"), [(35.0, ["trees"]), (55.0, ["network", "trees"])])
def test_folds_that_others_have_had_are_not_given_up(planted, seconds, expected):
    """Trees of all folds would not count beside networks of three."""
    parts = with_remaining(planted[0], seconds)
    results = {
        "trees": tried(parts.data, "trees", "trees", FOLDS, 10.0, 0.0, 1.0),
        "network": tried(parts.data, "network", "joint", 1, 10.0, 0.0, -1.0),
    }
    chosen, folds = parts.screening.affordable_members(results)
    assert (sorted(chosen), folds) == (expected, FOLDS)


def test_others_are_taken_along_only_where_members_have_time_for_all_folds(planted, monkeypatch):
    """Two that are good together need 40 s for three folds, a third, which adds nothing, ten more; there are 45."""
    parts = with_remaining(planted[0], 45.0)
    errors = {"a": (10.0, 0.95, 0.31), "b": (10.0, 0.95, -0.31), "c": (5.0, 1.0, 0.0)}
    results = {name: tried(parts.data, name, "joint", 1, *rest) for name, rest in errors.items()}
    fitted = []

    def fit(found, jobs):
        for job in jobs:
            if job.admitted():
                one = found[job.candidate.name]
                found[job.candidate.name] = replace(one, predictions={**one.predictions, job.fold: one.predictions[0]})
                parts.clock.now += one.cost
                fitted.append(job.candidate.name)
                yield job, FitResult()

    monkeypatch.setattr(parts.fitter, "fit_folds", fit)
    parts.screening.cross_fit(results)
    assert sorted(fitted) == ["a", "a", "b", "b"]


# --- predictions for all entries


def test_seconds_of_predictions_for_all_entries_are_those_of_the_fits_that_predict(hold_out):
    hold_out(0.1)
    data = bench(along_days(entries=5400)[0]).data
    network, trees = (
        OutOfFold(one, dict.fromkeys(range(2)), cost=1.0, predict_seconds=1e-3) for one in (COMPONENTS, TREES)
    )
    entries = len(data.tensor)
    assert prediction_seconds(data, [trees], 2, SETTINGS) == pytest.approx(1e-3 * entries)
    assert prediction_seconds(data, [network], 2, SETTINGS) == pytest.approx(2e-3 * entries)
    assert prediction_seconds(data, [network, trees], 3, SETTINGS) == pytest.approx(4e-3 * entries)
    assert prediction_seconds(data, [network, trees], FOLDS, SETTINGS) == 0  # all have out-of-fold predictions


def test_no_predictions_are_needed_where_no_mode_is_ordered(planted, hold_out):
    member = OutOfFold(BIAS, {0: None}, predict_seconds=1.0)
    assert prediction_seconds(bench(along_days()[0]).data, [member], 1, SETTINGS) == 0  # nothing is held out
    hold_out(0.1)
    assert prediction_seconds(bench(planted[0]).data, [member], 1, SETTINGS) == 0
