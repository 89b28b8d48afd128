"""Coverage by class against loops, with intervals whose coverage is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.evaluation.coverage import MIN_ENTRIES, coverage_by_class
from jointensor.predictors import fit_bias
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble, Member

SHAPE = (30, 25, 40)
MODES = (Mode("who", 30), Mode("what", 25), Mode("day", 40, order="ordered"))


def drawn(seed=0, count=4000):
    """Entries of labels of which some are rare, with noise."""
    rng = np.random.default_rng(seed)
    cells = np.stack([(rng.random(3 * count) ** (2 if n else 8) * size).astype(int) for n, size in enumerate(SHAPE)], 1)
    cells = np.unique(cells, axis=0)
    cells = rng.permutation(cells)[:count]
    return SparseTensor(cells, rng.standard_normal(len(cells)), MODES)


def predictor_of(learnt, held_out, spread=1.0):
    """Biases with intervals of noise of some size."""
    bias = fit_bias(learnt, learnt.take(np.arange(0)))
    predicted = bias.predict(held_out.indices)
    residuals = spread * (held_out.values - predicted)
    calibration = calibrate(
        HeldOut(held_out.indices, predicted, residuals, np.zeros(len(residuals), dtype=bool)), SHAPE
    )
    return Ensemble((Member("bias", 1.0, (bias,)),), (), bias, -9.0, 9.0, calibration=calibration)


@pytest.fixture(scope="module")
def parts():
    tensor = drawn()
    places = np.arange(len(tensor))
    return tuple(tensor.take(places[places % 3 == k]) for k in range(3))


def class_of(learnt, cell):
    """Names of both classes of a cell, by loops."""
    fiber = [e[2] for e in learnt.indices.tolist() if e[0] == cell[0] and e[1] == cell[1]]
    steps = min((abs(day - cell[2]) for day in fiber), default=math.inf)
    fewest = min(int((learnt.indices[:, n] == cell[n]).sum()) for n in range(3))
    distance = (
        "no entry in its series" if steps == math.inf else "1 step away" if steps == 1
        else "2 to 3 steps away" if steps < 4 else "4 to 7 steps away" if steps < 8 else "8 or more steps away"
    )  # fmt: skip
    count = "1 to 9" if fewest < 10 else "10 to 99" if fewest < 100 else "100 or more"
    return distance, f"a label with {count} entries" if fewest else "a new label"


def test_classes_and_shares_are_those_of_a_loop(parts):
    learnt, calibrates, asked = parts
    predictor = predictor_of(learnt, calibrates)
    rows = coverage_by_class(predictor, learnt, asked.indices, asked.values, halves=False)
    low, high = predictor.interval(asked.indices, 0.9).T
    inside, errors = (asked.values >= low) & (asked.values <= high), asked.values - predictor.predict(asked.indices)
    classes = [class_of(learnt, cell) for cell in asked.indices.tolist()]
    expected = {"all entries": np.ones(len(asked), dtype=bool)}
    for which in (0, 1):
        for name in {one[which] for one in classes}:
            expected[name] = np.array([one[which] == name for one in classes])
    expected = {
        name: here
        for name, here in expected.items()
        if here.sum() >= MIN_ENTRIES and (name == "all entries" or not here.all())
    }
    assert {row["class"] for row in rows} == set(expected)
    assert len(expected) > 6
    for row in rows:
        here = expected[row["class"]]
        assert row["n"] == here.sum()
        assert row["inside"] == pytest.approx(inside[here].mean())
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(errors[here] ** 2)), rel=1e-5)


def test_intervals_that_are_too_narrow_are_seen(parts):
    learnt, calibrates, asked = parts
    shares = [
        coverage_by_class(predictor_of(learnt, calibrates, spread), learnt, asked.indices, asked.values, halves=False)[
            0
        ]
        for spread in (0.5, 1.0)
    ]
    assert shares[0]["inside"] < 0.7
    assert 0.86 < shares[1]["inside"] < 0.94


def test_entries_that_calibrated_are_judged_by_the_other_half(parts):
    learnt, _, asked = parts
    some = asked.take(np.arange(60))
    predictor = predictor_of(learnt, some)
    together = np.arange(60) // 30
    grouped = coverage_by_class(predictor, learnt, some.indices, some.values, halves=True, together=together)[0]
    first, second = (HeldOut(s.indices, p := predictor.predict(s.indices), s.values - p, np.zeros(30, dtype=bool))
                     for s in (some.take(np.arange(30)), some.take(np.arange(30, 60))))  # fmt: skip
    inside = []
    for mine, other in ((first, second), (second, first)):
        ends = calibrate(other, SHAPE).interval(mine.indices, mine.predicted, 0.9, mine.unseen)
        values = mine.predicted + mine.residuals
        inside += ((values >= ends[:, 0]) & (values <= ends[:, 1])).tolist()
    assert grouped["inside"] == pytest.approx(np.mean(inside), abs=1e-9)


def test_without_intervals_or_known_labels_nothing_is_said(parts):
    learnt, calibrates, asked = parts
    bare = replace(predictor_of(learnt, calibrates), calibration=None)
    assert coverage_by_class(bare, learnt, asked.indices, asked.values, halves=False) is None
    nowhere = np.full((3, 3), -1)
    predictor = predictor_of(learnt, calibrates)
    assert coverage_by_class(predictor, learnt, nowhere, np.zeros(3), halves=False) is None


def test_without_ordered_modes_there_are_no_distances(parts):
    modes = tuple(replace(mode, order="none") for mode in MODES)
    learnt, calibrates, asked = (one.over(modes) for one in parts)
    rows = coverage_by_class(predictor_of(learnt, calibrates), learnt, asked.indices, asked.values, halves=False)
    assert {row["by"] for row in rows} == {"all", "entries"}
