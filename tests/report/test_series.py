"""Series of a report against brute force: which are chosen, what is drawn of them, and where."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.predictors import fit_bias
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble
from jointensor.report import series
from jointensor.report.pages import _series
from jointensor.report.series import series_facts, time_axis
from jointensor.report.settings import SETTINGS

DATES = tuple(f"2024-01-{day:02d}" for day in range(1, 11))
WHO, DATE, HOUR = Mode("who", 6, tuple("abcdef")), Mode("date", 10, DATES, "ordered"), Mode("hour", 12, None, "cyclic")
MODES = (WHO, DATE, HOUR)
TRUTH = np.random.default_rng(0).normal(size=(6, 10, 12))


class Known(Ensemble):
    """Right everywhere but in the series ``d``, where it is off by 3."""

    def predict(self, indices):
        return TRUTH[tuple(indices.T)] + 3.0 * (indices[:, 0] == 3)


def known(calibrated=True):
    every = SparseTensor(np.argwhere(np.ones(TRUTH.shape)), TRUTH.ravel(), MODES)
    bias = fit_bias(every, every.take(np.arange(0)))
    noise = np.random.default_rng(1).normal(size=len(every))
    held = HeldOut(every.indices, every.values, noise, np.zeros(len(every), dtype=bool))
    return Known((), (), bias, -9.0, 9.0, calibrate(held, every.shape) if calibrated else None)


@pytest.fixture
def tensor():
    """Series with 120, 100, 80, 60, 50 and 10 values; none of b from its 2nd to its 3rd day."""
    rng = np.random.default_rng(2)
    there = np.zeros(TRUTH.shape, dtype=bool)
    for who, count in enumerate((120, 100, 80, 60, 50, 10)):
        there[who].flat[rng.permutation(120)[:count]] = True
    there[1] = True
    there[1, 1:3] = there[1, 5, 0] = there[1, 5, 3] = False
    return SparseTensor(np.argwhere(there), TRUTH[there], MODES)


def held(tensor, share=0.2):
    some = np.random.default_rng(3).permutation(len(tensor))[: int(share * len(tensor))]
    return tensor.indices[some], tensor.values[some]


NOTHING = np.empty((0, 3), dtype=int), np.empty(0)


def facts(tensor, held_out=NOTHING, **more):
    return series_facts(known(**more), tensor, known(), held_out)


def labels(found):
    return {one["labels"][0][1]: one["why"] for one in found["series"]}


def test_the_axis_of_time_is_a_date_and_its_hours_or_the_longest_mode_of_time():
    user, rank = Mode("user", 50), Mode("rank", 99, None, "ordered")
    week = Mode("week", 8, None, "ordered")
    assert time_axis(MODES) == (1, 2)
    assert time_axis((HOUR, user, DATE)) == (2, 0)
    assert time_axis((user, DATE, rank)) == (1,)
    assert time_axis((user, rank)) is None
    assert time_axis((user, HOUR)) is None  # it does not go on
    assert time_axis((user, week, DATE)) == (1, 2)


def test_series_are_chosen_by_gaps_and_errors(tensor):
    counts = np.bincount(tensor.indices[:, 0])
    found = facts(tensor, held(tensor))
    chosen = labels(found)
    # half of what the best observed one has: a, b, c and d; with the most gaps: d and c
    assert counts[0] == 120
    assert list(chosen)[:2] == ["d", "c"]
    assert "largest error" in chosen["d"]
    assert sum("typical" in why for why in chosen.values()) == 1
    assert "f" not in chosen  # too few values
    assert found["axis"] == ["date", "hour"]
    assert found["size"] == 120
    for one in found["series"]:
        assert one["entries"] == counts["abcdef".index(one["labels"][0][1])]
        assert one["rmse"] == pytest.approx(3.0 if one["labels"][0][1] == "d" else 0.0, abs=1e-6)


def test_without_held_out_entries_there_are_no_errors(tensor):
    found = facts(tensor)
    assert set(labels(found).values()) <= {"many gaps", "typical", "many gaps, typical"}
    assert all(one["rmse"] is None and not one["held"] for one in found["series"])


def test_every_place_is_seen_or_left_out_or_filled_in(tensor):
    held_out = held(tensor)
    found = facts(tensor, held_out)
    there = {tuple(cell): value for cell, value in zip(tensor.indices.tolist(), tensor.values, strict=True)}
    out = set(map(tuple, held_out[0].tolist()))
    for one in found["series"]:
        who = "abcdef".index(one["labels"][0][1])
        off = 3.0 * (who == 3)
        places = {}
        for kind in ("seen", "held"):
            places |= {round(point[0]): (kind, point) for point in one[kind]}
        places |= {round(point[0]): ("filled", point) for run in one["filled"] for point in run}
        assert sorted(places) == list(range(120))
        for place, (kind, point) in places.items():
            cell = (who, place // 12, place % 12)
            assert kind == ("filled" if cell not in there else "held" if cell in out else "seen")
            assert point[1] == pytest.approx(TRUTH[cell] + off * (kind == "filled"), rel=1e-6)
            if kind == "held":
                assert point[2] == pytest.approx(TRUTH[cell] + off, rel=1e-6)
            if kind == "filled":
                assert point[2] < point[1] < point[3]


def test_gaps_that_touch_are_one_run(tensor):
    (found,) = (one for one in facts(tensor.take(np.flatnonzero(tensor.indices[:, 0] == 1)))["series"])
    assert [[point[0] for point in run] for run in found["filled"]] == [list(range(12, 36)), [60.0], [63.0]]
    assert found["ticks"] == [[0.0, "2024-01-01 0"], [60.0, "2024-01-06 0"], [119.0, "2024-01-10 11"]]


def test_of_a_long_series_a_stretch_with_gaps_and_values_is_drawn(tensor, monkeypatch):
    monkeypatch.setattr(series, "SETTINGS", replace(SETTINGS, max_series_points=30))
    (found,) = (one for one in facts(tensor.take(np.flatnonzero(tensor.indices[:, 0] == 1)))["series"])
    places = [point[0] for point in found["seen"]] + [point[0] for run in found["filled"] for point in run]
    assert max(places) - min(places) == 29
    assert sum(map(len, found["filled"])) == 15  # half of it


def test_without_intervals_there_are_no_bands(tensor):
    found = facts(tensor, calibrated=False)
    assert not found["intervals"]
    assert all(len(point) == 2 for one in found["series"] for run in one["filled"] for point in run)
    assert "band" not in _series(found["series"][0], found["axis"])


def test_what_has_no_time_or_too_few_values_has_no_series(tensor):
    assert facts(tensor.over((WHO, Mode("a", 10), Mode("b", 12)))) is None
    assert facts(tensor.take(np.arange(0, len(tensor), 40))) is None


def test_test_entries_of_other_series_do_no_harm(tensor):
    some = tensor.take(np.flatnonzero(tensor.indices[:, 0] < 3))
    entries = np.array([[5, 0, 0], [-1, 0, 0], [0, 3, 4]] * 5), np.zeros(15)
    found = facts(some, entries)
    assert set(labels(found)) <= {"a", "b", "c"}


def test_a_drawing_stays_inside_and_cuts_intervals_that_would_hide_the_rest(tensor):
    found = facts(tensor, held(tensor))["series"][0]
    plain = _series(found, ["date", "hour"])
    for run in found["filled"]:
        for point in run:
            point[2:] = [-1e9, 1e9]
    wide = _series(found, ["date", "hour"])
    for drawing in (plain, wide):
        for name in ("band", "stem one", "dot held", "dot grey", "line one"):
            assert name in drawing
    values = [point[1] for point in found["seen"]]
    heights = [float(part.split('"')[0]) for part in wide.split('cy="')[1:]]
    assert max(heights) - min(heights) > 0.3 * (SETTINGS.wide_plot_size[1] - 56)  # a third of the plot, at the least
    assert len(values) > 20
