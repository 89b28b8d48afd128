"""Facts of a report against brute force, on a planted model whose answers are known."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from jointensor import JointModel, SparseTensor
from jointensor.data.modes import Mode
from jointensor.predictors import fit_bias
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.joint import JointPredictor
from jointensor.report import facts
from jointensor.report.facts import component_facts, data_facts, filled_facts, history_facts, quality_facts
from jointensor.report.settings import SETTINGS
from jointensor.training.history import Epoch

SHAPE = (10, 6, 130)
DAYS = tuple(f"day {n:03d}" for n in range(130))
MODES = (Mode("who", 10, tuple("abcdefghij")), Mode("what", 6), Mode("day", 130, DAYS, "ordered"))
FACTORS = [np.random.default_rng(n).standard_normal((size, 2)) * (0.5, 2.0) for n, size in enumerate(SHAPE)]
TRUTH = np.einsum("ir,jr,kr->ijk", *FACTORS)
CELLS = np.argwhere(np.ones(SHAPE))


def drawn(entries, seed=0, noise=0.0):
    """Random cells and their values."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(CELLS)[:entries]
    return cells, TRUTH[tuple(cells.T)] + noise * rng.standard_normal(entries)


def planted():
    model = JointModel(SHAPE, (2, 0))
    for table, factor in zip(model.linear_factors, FACTORS, strict=True):
        table.copy_(torch.as_tensor(factor))
    return model


def exact(calibration=None):
    """A predictor that is right everywhere."""
    every = SparseTensor(CELLS, TRUTH.ravel(), MODES)
    return JointPredictor(planted(), fit_bias(every, every.take(np.arange(0))), calibration=calibration)


def learnt(cells, values):
    left = values - TRUTH[tuple(cells.T)]
    return calibrate(HeldOut(cells, values - left, left, np.zeros(len(left), dtype=bool)), SHAPE)


def test_the_data_are_counted(monkeypatch):
    monkeypatch.setattr(facts, "SETTINGS", replace(SETTINGS, max_curve_points=120))
    cells, values = drawn(900)
    cells, values = cells[cells[:, 1] != 3], values[cells[:, 1] != 3].astype(np.float32)  # a label without entries
    found = data_facts(SparseTensor(cells, values, MODES))
    assert (found["shape"], found["entries"], found["density"]) == ([10, 6, 130], len(cells), len(cells) / 7800)
    histogram = found["values"]
    assert sum(histogram["counts"]) == len(cells)
    for a, b, count in zip(histogram["edges"], histogram["edges"][1:], histogram["counts"], strict=False):
        assert abs(sum(a <= v < b for v in values) - count) <= 1  # the last column has its right edge
    assert (histogram["low"], histogram["high"]) == (values.min(), values.max())
    assert (histogram["mean"], histogram["sd"]) == pytest.approx((np.mean(values), np.std(values)))
    for n, (mode, one) in enumerate(zip(MODES, found["modes"], strict=True)):
        counts = Counter(cells[:, n].tolist())
        every = [counts[i] for i in range(mode.size)]
        assert (one["least"], one["median"], one["most"]) == (min(every), np.median(every), max(every))
        assert (one["name"], one["without"]) == (mode.name, every.count(0))
        assert (one["labels"] is not None) == (mode.name == "day")
        if mode.name != "day":
            assert one["curve"] == [[i, count] for i, count in enumerate(sorted(every, reverse=True), start=1)]
        names = [(label, counts[i]) for i, label in enumerate(mode.decode(np.arange(mode.size)))]
        assert one["top"] == [list(row) for row in sorted(names, key=lambda row: -row[1])[: SETTINGS.top_labels]]
        ranked = sorted(every, reverse=True)
        assert sum(ranked[: one["half"] - 1]) < len(cells) / 2 <= sum(ranked[: one["half"]])
    curve = found["modes"][2]["curve"]  # 130 labels are thinned, and no entry is lost
    assert len(curve) == 120
    assert sum(y * round(2 * (x - int(x)) + 1) for x, y in curve) == pytest.approx(len(cells))  # of one label or two
    assert found["modes"][2]["labels"] == [[0, "day 000"], [64, "day 064"], [129, "day 129"]]


@pytest.mark.parametrize(
    "values", [(5, 5), (20240102, 20270130), (-3e30, 1e30), (1e30, 1e30), (-(2.0**60), -(2.0**60)), (0, 1e20)]
)
def test_values_have_a_histogram_even_where_32_bits_leave_no_room_for_its_columns(values):
    found = data_facts(SparseTensor([[0, 0], [1, 1]], values, (2, 2)))["values"]
    assert sum(found["counts"]) == 2
    low, high = np.float32(min(values)), np.float32(max(values))
    assert found["edges"][0] <= low <= high <= found["edges"][-1]


def test_errors_by_label_are_those_of_brute_force():
    cells, values = drawn(400, noise=1.0)
    few = cells[:, 1] != 2
    few[np.flatnonzero(~few)[:2]] = True  # two entries of a label say nothing
    cells, values = cells[few], values[few] + 1e3 * (cells[few, 1] == 2)
    unknown = [[-1, 0, 0], [0, -1, 3], [3, 2, -1]]
    found = quality_facts(
        exact(), MODES, np.concatenate([unknown, cells]), np.append([1e9] * 3, values), calibrated=True
    )
    errors = TRUTH[tuple(cells.T)] - values
    assert (found["n"], found["calibration"]) == (len(cells), None)
    for n, mode in enumerate(MODES[:2]):
        mine = {mode.label(i): errors[cells[:, n] == i] for i in range(mode.size)}
        rows = [
            (label, np.sqrt(np.mean(e**2)), len(e)) for label, e in mine.items() if len(e) >= SETTINGS.min_label_entries
        ]
        rows = sorted(rows, key=lambda row: -row[1])[: SETTINGS.top_labels]
        assert found["modes"][n]["worst"] == [[one, pytest.approx(rmse, rel=1e-4), count] for one, rmse, count in rows]
        assert found["modes"][n]["curve"] is None
    assert "2" not in [label for label, _, _ in found["modes"][1]["worst"]]
    np.testing.assert_allclose(np.diff(found["points"], axis=1)[:, 0], errors, atol=1e-4)


def test_the_error_along_an_ordered_mode_is_pooled():
    cells, values = drawn(3000)
    values += np.where(cells[:, 2] >= 65, 3.0, 1.0)
    curve = quality_facts(exact(), MODES, cells, values, calibrated=True)["modes"][2]["curve"]
    for place, figure in curve:
        if abs(place - 64.5) > 3:  # groups of two or three labels
            assert figure == pytest.approx(3.0 if place > 65 else 1.0, rel=1e-4)
    assert quality_facts(exact(), MODES, np.array([[-1, 0, 0]]), np.array([1.0]), calibrated=True) is None


def test_intervals_of_gaussian_noise_hold_their_share():
    cells, values = drawn(4000, noise=2.0)
    found = quality_facts(exact(learnt(cells, values)), MODES, cells, values, calibrated=True)["calibration"]
    assert found == [[level, pytest.approx(level, abs=0.04)] for level in SETTINGS.levels]
    assert len(quality_facts(exact(), MODES, cells, values, calibrated=True)["points"]) == SETTINGS.max_scatter_points


def test_intervals_are_judged_on_entries_that_they_were_not_learnt_from():
    """Of entries that an interval was learnt from, the same share lies inside every time."""
    calibration, shares, own = learnt(*drawn(40, noise=1.0)), [], []
    for seed in range(12):
        cells, values = drawn(40, seed, noise=1.0)
        shares.append(
            dict(quality_facts(exact(calibration), MODES, cells, values, calibrated=True)["calibration"])[0.5]
        )
        ends = exact(learnt(cells, values)).interval(cells, 0.5)
        own.append(np.mean((ends[:, 0] <= values) & (values <= ends[:, 1])))
    assert np.std(own) < 0.02 < 0.04 < np.std(shares)


def test_intervals_that_have_not_seen_the_entries_are_judged_as_they_are():
    own = learnt(*drawn(1000, noise=1.0))
    ensemble = Ensemble((Member("cp", 1.0, (exact(),)),), (), exact().fallback, -np.inf, np.inf, own)
    cells, values = drawn(1000, seed=1, noise=3.0)  # three times as far off as what it has learnt
    for level, share in quality_facts(ensemble, MODES, cells, values, calibrated=False)["calibration"]:
        ends = ensemble.interval(cells, level)
        assert share == pytest.approx(np.mean((ends[:, 0] <= values) & (values <= ends[:, 1])))
        assert share < 0.7


def test_planted_components_come_largest_first_with_their_signs_and_labels():
    found = component_facts(planted(), MODES)
    lengths = np.prod([np.linalg.norm(factor, axis=0) for factor in FACTORS], axis=0)
    assert [one["weight"] for one in found] == pytest.approx(lengths[::-1], rel=1e-5)
    assert [one["share"] for one in found] == pytest.approx(lengths[::-1] / lengths.sum(), rel=1e-5)
    for one, r in zip(found, (1, 0), strict=True):
        who, what, day = one["modes"]
        signs = [np.sign(factor[np.abs(factor[:, r]).argmax(), r]) for factor in FACTORS[1:]]
        for mode, n, sign in ((who, 0, signs[0] * signs[1]), (what, 1, signs[0])):
            column = sign * FACTORS[n][:, r] / np.linalg.norm(FACTORS[n][:, r])
            order = sorted(range(len(column)), key=lambda i: -abs(column[i]))[: SETTINGS.top_labels]
            assert mode["top"] == [[MODES[n].label(i), pytest.approx(column[i], rel=1e-5)] for i in order]
        assert max(y for _, y in day["curve"]) > -min(y for _, y in day["curve"])
    assert component_facts(None, MODES) == component_facts(JointModel(SHAPE, (0, 2)), MODES) == []
    assert [one["share"] for one in component_facts(JointModel(SHAPE, (2, 0)), MODES)] == [0, 0]  # all zeros


class OnGpu(torch.Tensor):
    def __array__(self, dtype=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_of_many_components_the_largest_are_shown():
    model = JointModel(SHAPE, (40, 0))
    with torch.no_grad():
        for table in model.linear_factors:
            table.copy_(torch.rand(table.shape, generator=torch.Generator().manual_seed(0)))
    weights = [one["weight"] for one in component_facts(model, MODES)]
    sizes = np.prod([np.linalg.norm(table.detach().numpy(), axis=0) for table in model.linear_factors], axis=0)
    assert np.allclose(weights, np.sort(sizes)[::-1][:24])


def test_components_of_a_model_on_a_gpu_are_read():
    model = SimpleNamespace(linear_factors=[torch.as_tensor(factor).as_subclass(OnGpu) for factor in FACTORS])
    assert component_facts(model, MODES)[0]["weight"] == pytest.approx(component_facts(planted(), MODES)[0]["weight"])


@pytest.mark.parametrize("calibrated", [False, True])
def test_cells_that_are_filled_in_are_missing(calibrated):
    cells, values = drawn(3000, noise=1.0)
    predictor = exact(learnt(cells, values) if calibrated else None)
    found = filled_facts(predictor, tensor := SparseTensor(cells, values, MODES))
    assert len({tuple(row["labels"]) for row in found["rows"]}) == SETTINGS.sampled_cells
    observed = set(map(tuple, cells.tolist()))
    for row in found["rows"]:
        cell = tuple(int(mode.encode([label])[0]) for mode, label in zip(MODES, row["labels"], strict=True))
        assert cell not in observed
        assert row["value"] == pytest.approx(TRUTH[cell], abs=1e-4)
        ends = predictor.interval(np.array([cell]), 0.9)[0].tolist() if calibrated else None
        assert row["interval"] == pytest.approx(ends)
    assert filled_facts(predictor, tensor) == found != filled_facts(predictor, tensor, seed=1)
    assert filled_facts(predictor, SparseTensor(CELLS, TRUTH.ravel(), MODES))["rows"] == []


def test_the_history_is_kept_by_attempt_and_thinned():
    rows = [Epoch(0, "warm start", 0, k, 1 / k, None, 0.1, False, 9) for k in (1, 2)]
    rows += [Epoch(1, "refine", 0, k, 1 / k, 2 / k, 0.1, True, 9) for k in range(1, 2001)]
    first, second = history_facts(rows)
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert [one["train"] for one in first["epochs"]] == [1.0, 0.5]
    assert {(one["valid"], one["phase"]) for one in first["epochs"]} == {(None, "warm start")}
    assert SETTINGS.max_curve_points / 2 <= len(second["epochs"]) <= SETTINGS.max_curve_points
    assert all(one["valid"] == 2 * one["train"] for one in second["epochs"])
    assert history_facts([]) == []


@pytest.mark.parametrize(
    ("labels", "places"),
    [
        (("2021-02-10", "2021-02-19", "2021-02-24"), (0, 9, 14)),
        (("2021-03", "2021-01", "2021-02"), (2, 0, 1)),  # however they are sorted
        (("2021-W01", "2021-W03", "2021-W04"), (0, 2, 3)),
        (("2021-01-01T00:00", "2021-01-01T12:00", "2021-01-03T00:00"), (0, 43200, 172800)),
        (("2021-Q1", "2021-Q3", "2022-Q1"), (0, 2, 4)),
        (("1987", "1990", "1991"), (0, 3, 4)),
        (("a", "b", "c"), (0, 1, 2)),
    ],
)
def test_time_is_drawn_as_time(labels, places):
    mode = Mode("when", 3, labels, "ordered")
    cells = np.array([[i, j] for i in range(3) for j in range(i + 4)])
    found = data_facts(SparseTensor(cells, np.ones(len(cells)), (mode, Mode("what", 6))))["modes"][0]
    first = min(x for x, _ in found["curve"])
    assert [[x - first, y] for x, y in found["curve"]] == sorted([float(x), k + 4.0] for k, x in enumerate(places))
    assert dict(map(reversed, found["labels"])) == {label: first + x for label, x in zip(labels, places, strict=True)}


def test_a_column_holds_as_many_whole_numbers_as_any_other():
    values = np.repeat(np.arange(1.0, 72), 2)
    cells = np.array([[i, 0] for i in range(len(values))])
    found = data_facts(SparseTensor(cells, values, (len(values), 1)))["values"]
    assert set(found["counts"][:-1]) == {6}
    assert len(found["counts"]) <= SETTINGS.histogram_bins


def test_a_day_of_a_year_is_a_point():
    """A peak of one day is not averaged away."""
    column = torch.zeros(365, 1)
    column[100] = 1.0
    model = SimpleNamespace(linear_factors=[torch.ones(2, 1), column])
    modes = (Mode("what", 2), Mode("day", 365, order="ordered"))
    assert max(y for _, y in component_facts(model, modes)[0]["modes"][1]["curve"]) == 1.0


def test_errors_are_of_all_entries_even_if_intervals_are_of_some(monkeypatch):
    monkeypatch.setattr(facts, "SETTINGS", replace(SETTINGS, max_interval_entries=100))
    cells, values = drawn(4000, noise=1.0)
    predictor = exact(learnt(cells, values))
    found = quality_facts(predictor, MODES, cells, values, calibrated=True)
    assert found["n"] == sum(count for _, _, count in found["modes"][1]["worst"]) == 4000
    some = quality_facts(predictor, MODES, cells[::41], values[::41], calibrated=True)
    assert found["calibration"] == some["calibration"]
