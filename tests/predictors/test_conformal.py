"""Intervals: coverage on fresh entries, width where the noise differs, labels that were not seen, small samples."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.predictors import conformal
from jointensor.predictors.conformal import LEVELS as RECORDED
from jointensor.predictors.conformal import SETTINGS, Calibration, HeldOut, _below, _quantiles, calibrate

SHAPE = (30, 25, 40)
LEVELS = (0.5, 0.8, 0.9, 0.95)


def alike(rng, cells, predicted):
    """Noise of one size everywhere."""
    return rng.standard_normal(len(cells))


def by_label(rng, cells, predicted):
    """Noise of a size of its own for every label of the first mode, from 0.1 to 7 or so."""
    return np.exp(np.linspace(-2, 2, SHAPE[0]))[cells[:, 0]] * rng.standard_normal(len(cells))


def by_value(rng, cells, predicted):
    """Noise that grows with the value, as that of counts does, and is skewed."""
    return np.abs(predicted + 3) * (rng.exponential(size=len(cells)) - 1)


def drawn(noise, entries, seed=0, shape=SHAPE):
    """Entries for calibrating and as many fresh ones: cells, predictions and residuals of each."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(math.prod(shape))[: 2 * entries]
    cells = np.stack(np.unravel_index(chosen, shape), axis=1)
    predicted = rng.standard_normal(2 * entries)
    residuals = noise(rng, cells, predicted)
    return [(cells[part], predicted[part], residuals[part]) for part in (slice(entries), slice(entries, None))]


def no(cells):
    return np.zeros(len(cells), dtype=bool)


def calibrated(cells, predicted, residuals, shape=SHAPE, unseen=None, seed=0):
    left_out = HeldOut(cells, predicted, residuals, no(cells) if unseen is None else unseen)
    return calibrate(left_out, shape, seed=seed)


def inside(calibration, cells, predicted, residuals, level, unseen=None):
    """Which entries lie in their interval, and how wide these are."""
    ends = calibration.interval(cells, predicted, level, no(cells) if unseen is None else unseen)
    value = predicted + residuals
    return (ends[:, 0] <= value) & (value <= ends[:, 1]), ends[:, 1] - ends[:, 0]


@pytest.mark.parametrize("noise", [alike, by_label, by_value])
def test_the_share_inside_is_the_level(noise):
    old, fresh = drawn(noise, 8000)
    calibration = calibrated(*old)
    for level in LEVELS:
        covered, _ = inside(calibration, *fresh, level)
        # both the quantiles and the share have a standard error of √(p(1−p)/n)
        assert abs(covered.mean() - level) < 0.01 + 4 * math.sqrt(2 * level * (1 - level) / 8000)


def test_the_share_inside_is_right_on_average_where_there_are_few_entries():
    """Between the 10 % and the 90 % quantiles of n entries lie fewer than 80 % of all: their ends are entries too."""
    covered = []
    for seed in range(150):
        old, fresh = drawn(alike, 40, seed, (10, 10, 10))
        covered.append(inside(calibrated(*old, (10, 10, 10)), *fresh, 0.8)[0].mean())
    assert np.mean(covered) > 0.8 - 3 * np.std(covered) / math.sqrt(len(covered))


@pytest.mark.parametrize(("noise", "share"), [(by_label, 0.75), (by_value, 0.95)])
def test_noise_that_differs_gets_narrower_intervals_than_one_width_for_all(noise, share):
    old, fresh = drawn(noise, 8000)
    covered, width = inside(calibrated(*old), *fresh, 0.9)
    low, high = np.quantile(old[2], (0.05, 0.95))
    constant = (low <= fresh[2]) & (fresh[2] <= high)
    assert abs(covered.mean() - constant.mean()) < 0.02
    assert width.mean() < share * (high - low)


def test_noisy_labels_get_wide_intervals_and_every_label_its_share():
    old, fresh = drawn(by_label, 8000)
    covered, width = inside(calibrated(*old), *fresh, 0.9)
    labels = fresh[0][:, 0]
    assert width[labels == 29].mean() > 10 * width[labels == 0].mean()
    shares = [covered[labels == label].mean() for label in range(30)]
    assert min(shares) > 0.75  # one width for all: from 0.5 to 1


def test_noise_that_is_alike_gets_the_width_of_its_quantiles():
    old, fresh = drawn(alike, 8000)
    _, width = inside(calibrated(*old), *fresh, 0.9)
    assert width.mean() == pytest.approx(2 * 1.645, rel=0.05)


def test_skewed_noise_gets_lopsided_intervals():
    rng = np.random.default_rng(0)
    (cells, predicted, _), fresh = drawn(alike, 4000)
    calibration = calibrated(cells, predicted, rng.exponential(size=4000) - 1)
    ends = calibration.interval(fresh[0], fresh[1], 0.9, no(fresh[0])) - fresh[1][:, None]
    low, high = ends.mean(axis=0)  # the quantiles are −0.95 and 2
    assert low == pytest.approx(math.log(1 / 0.95) - 1, abs=0.1)
    assert high == pytest.approx(math.log(1 / 0.05) - 1, abs=0.3)


@pytest.mark.parametrize("spread_of_unseen", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_unseen_labels_never_get_narrower_intervals(spread_of_unseen, share):
    """With a single group of predictions, what others get is the quantiles of all entries."""
    (cells, predicted, residuals), fresh = drawn(alike, 2 * SETTINGS.min_group_entries - 1)
    unseen = np.random.default_rng(1).random(len(cells)) < share
    calibration = calibrated(cells, predicted, np.where(unseen, spread_of_unseen, 1.0) * residuals, unseen=unseen)
    for level in (0.1, *LEVELS, 0.99):
        known = calibration.interval(fresh[0], fresh[1], level, no(fresh[0]))
        cold = calibration.interval(fresh[0], fresh[1], level, ~no(fresh[0]))
        assert (cold[:, 0] <= known[:, 0]).all()
        assert (cold[:, 1] >= known[:, 1]).all()


def test_unseen_labels_get_their_share_where_enough_of_them_were_left_out():
    (cells, predicted, residuals), fresh = drawn(alike, 6000)
    unseen = np.arange(6000) % 4 == 0
    larger = np.where(unseen, 3.0, 1.0)
    calibration = calibrated(cells, predicted, larger * residuals, unseen=unseen)
    covered, _ = inside(calibration, fresh[0], fresh[1], larger * fresh[2], 0.9, unseen)
    assert abs(covered[unseen].mean() - 0.9) < 0.04
    assert abs(covered[~unseen].mean() - 0.9) < 0.04


def test_unknown_labels_have_intervals_too():
    old, _ = drawn(by_label, 2000)
    unknown = np.array([[-1, 0, 0], [0, -1, 3], [-1, -1, -1]])
    ends = calibrated(*old).interval(unknown, np.zeros(3), 0.9, np.ones(3, dtype=bool))
    assert np.isfinite(ends).all()
    assert (ends[:, 0] < 0).all()
    assert (ends[:, 1] > 0).all()


@settings(max_examples=20, deadline=None)
@given(
    entries=st.integers(2, 900), noise=st.sampled_from([alike, by_label, by_value]), seed=st.integers(0, 10**6),
    levels=st.lists(st.floats(0.001, 0.999), min_size=2, max_size=2), ties=st.booleans(),
)  # fmt: skip
def test_wider_levels_hold_the_narrower_ones(entries, noise, seed, levels, ties):
    (cells, predicted, residuals), fresh = drawn(noise, entries, seed)
    calibration = calibrated(cells, predicted, np.round(residuals) if ties else residuals)
    unseen = np.arange(entries) % 2 == 0
    narrow, wide = (calibration.interval(fresh[0], fresh[1], level, unseen) for level in sorted(levels))
    assert (narrow[:, 0] <= narrow[:, 1]).all()
    assert (wide[:, 0] <= narrow[:, 0] + 1e-12).all()
    assert (wide[:, 1] >= narrow[:, 1] - 1e-12).all()


@pytest.mark.parametrize("entries", [2, 3, 5, 10, 50])
def test_a_few_entries_will_do(entries):
    (cells, predicted, residuals), fresh = drawn(alike, entries)
    ends = calibrated(cells, predicted, residuals).interval(fresh[0], fresh[1], 0.9, no(fresh[0]))
    assert ends.shape == (entries, 2)
    assert np.isfinite(ends).all()


@pytest.mark.parametrize("entries", [5, 500, 5000])
def test_a_model_that_is_never_wrong_has_intervals_without_width(entries):
    (cells, predicted, _), fresh = drawn(alike, entries)
    ends = calibrated(cells, predicted, np.zeros(entries)).interval(fresh[0], fresh[1], 0.9, no(fresh[0]))
    np.testing.assert_allclose(ends, np.stack([fresh[1]] * 2, axis=1), atol=1e-9)


def test_errors_of_nearly_one_size_are_calibrated():
    """Their logarithms hardly differ, which no tensor of a user's may do."""
    rng = np.random.default_rng(0)
    (cells, predicted, _), _ = drawn(alike, 400)
    residuals = rng.choice([-2.0, 2.0], 400) * (1 + 1e-7 * rng.standard_normal(400))
    calibration = calibrated(cells, predicted, residuals)
    held, widths = inside(calibration, cells, predicted, residuals, 0.9)
    assert held.mean() >= 0.85
    assert widths.max() < 4.1


def test_predictions_that_are_all_alike_are_one_group():
    (cells, _, residuals), fresh = drawn(alike, 5000)
    calibration = calibrated(cells, np.full(5000, 3.0), residuals)
    covered, _ = inside(calibration, fresh[0], np.full(5000, 3.0), fresh[2], 0.9)
    assert abs(covered.mean() - 0.9) < 0.02


@pytest.mark.parametrize("factor", [1e-3, 1e4])
def test_residuals_of_another_scale_give_intervals_on_that_scale(factor):
    (cells, predicted, residuals), fresh = drawn(by_label, 3000)
    found = []
    for scale in (1.0, factor):
        ends = calibrated(cells, scale * predicted, scale * residuals).interval(
            fresh[0], scale * fresh[1], 0.9, no(fresh[0])
        )
        found.append(ends / scale)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_the_same_seed_gives_the_same_intervals_and_the_order_of_entries_hardly_matters():
    (cells, predicted, residuals), fresh = drawn(by_label, 4000)
    order = np.random.default_rng(3).permutation(4000)
    asked = fresh[0], fresh[1], 0.9, no(fresh[0])
    first, again = (calibrated(cells, predicted, residuals).interval(*asked) for _ in range(2))
    other = calibrated(cells[order], predicted[order], residuals[order]).interval(*asked)
    assert np.array_equal(first, again)
    widths = [np.diff(ends, axis=1).mean() for ends in (first, other)]
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def test_what_is_asked_alone_gets_the_answer_it_gets_in_company():
    old, fresh = drawn(by_label, 2000)
    calibration, unseen = calibrated(*old), np.arange(2000) % 3 == 0
    together = calibration.interval(fresh[0], fresh[1], 0.9, unseen)
    for k in range(0, 2000, 400):
        one = slice(k, k + 1)
        alone = calibration.interval(fresh[0][one], fresh[1][one], 0.9, unseen[one])
        np.testing.assert_allclose(alone, together[one], rtol=1e-12)
    assert calibration.interval(fresh[0][:0], fresh[1][:0], 0.9, unseen[:0]).shape == (0, 2)


@pytest.mark.parametrize("floor", [0.0, 0.7])
def test_values_that_are_often_the_same_do_not_widen_intervals_for_nothing(floor):
    """Counts, most of them the smallest one, and predictions of which many are that one exactly."""
    generator = np.random.default_rng(0)
    indices = np.column_stack([generator.integers(s, size=80_000) for s in (30, 40)] + [np.arange(80_000)])
    rate = np.exp(generator.normal(size=30) - 0.5)[indices[:, 0]]
    values = 1.0 + generator.poisson(rate)
    centre = np.where(generator.random(80_000) < floor, 1.0, 1 + rate)
    learnt, asked = slice(0, 40_000), slice(40_000, None)
    seen = np.zeros(40_000, dtype=bool)
    known = HeldOut(indices[learnt], centre[learnt], (values - centre)[learnt], seen)
    found = calibrate(known, (30, 40, 80_000), fresh=known.at(slice(20_000, None)))
    ends = found.interval(indices[asked], centre[asked], 0.9, seen)
    assert 0.89 <= np.mean((values[asked] >= ends[:, 0]) & (values[asked] <= ends[:, 1])) <= 0.925


def test_intervals_that_will_be_cut_at_the_smallest_value_hold_no_more_than_asked_for():
    """Values never lie below 1, most are 1, and are predicted to be less: whole intervals lie below it, and are cut."""
    generator = np.random.default_rng(0)
    indices = np.column_stack([generator.integers(s, size=80_000) for s in (30, 40)] + [np.arange(80_000)])
    values = np.maximum(generator.normal(0.2, 1.0, 80_000), 1.0)
    centre = np.where(values > 1, values, 0.6 + 0.3 * generator.random(80_000))
    learnt, asked = slice(0, 40_000), slice(40_000, None)
    seen = np.zeros(40_000, dtype=bool)
    both = HeldOut(indices[learnt], centre[learnt], (values - centre)[learnt], seen)
    known, fresh = both.at(slice(20_000)), both.at(slice(20_000, None))

    def held(found):
        ends = np.maximum(found.interval(indices[asked], centre[asked], 0.9, seen), 1.0)
        return np.mean((values[asked] >= ends[:, 0]) & (values[asked] <= ends[:, 1]))

    assert held(calibrate(known, (30, 40, 80_000), fresh)) > 0.92
    enough = 1 - (1 - SETTINGS.spare_misses) * 0.1
    assert held(calibrate(known, (30, 40, 80_000), fresh, bounds=(1.0, math.inf))) == pytest.approx(enough, abs=0.008)


@pytest.mark.parametrize("noises", [(0.3, 0.1), (0.1, 0.3)])
def test_the_smallest_value_is_not_missed_where_many_have_it(noises):
    """Counts, most of them 1; what answers is not as noisy as the folds were. Intervals are cut at 1."""
    generator = np.random.default_rng(0)
    indices = np.column_stack([generator.integers(s, size=80_000) for s in (300, 40)] + [np.arange(80_000)])
    rate = 0.2 * np.exp(0.5 * generator.normal(size=300))[indices[:, 0]]
    values = 1.0 + generator.poisson(rate)
    centre = 1 + rate * np.exp(np.repeat(noises, 40_000) * generator.normal(size=80_000))
    learnt, asked = slice(0, 40_000), slice(40_000, None)
    seen = np.zeros(40_000, dtype=bool)
    known = HeldOut(indices[learnt], centre[learnt], (values - centre)[learnt], seen)

    def asked_of(**bounds):
        found = calibrate(known, (300, 40, 80_000), **bounds)
        return np.maximum(found.interval(indices[asked], centre[asked], 0.9, seen), 1.0)

    cut, not_known = asked_of(bounds=(1.0, math.inf)), asked_of()
    assert np.mean((values[asked] >= cut[:, 0]) & (values[asked] <= cut[:, 1])) == pytest.approx(0.9, abs=0.01)
    assert np.mean(values[asked] < cut[:, 0]) < 0.005
    assert np.diff(cut).mean() < 0.95 * np.diff(not_known).mean()


def test_groups_of_one_entry_are_entries():
    rng = np.random.default_rng(4)
    cells = np.argwhere(rng.random((30, 20, 10)) < 0.3)
    residuals = rng.standard_normal(len(cells)) * (1 + cells[:, 0])
    alone = HeldOut(cells, rng.random(len(cells)), residuals, no(cells))
    named = alone._replace(together=rng.permutation(len(cells)))
    first, second = calibrate(alone, (30, 20, 10)), calibrate(named, (30, 20, 10))
    np.testing.assert_array_equal(first.quantiles, second.quantiles)
    np.testing.assert_array_equal(first.edges, second.edges)


def test_one_group_alone_calibrates_by_its_entries():
    rng = np.random.default_rng(0)
    cells = np.argwhere(rng.random((10, 10, 4)) < 0.5)
    held = HeldOut(cells, rng.random(len(cells)), rng.standard_normal(len(cells)), no(cells))
    one = calibrate(held._replace(together=np.zeros(len(cells), dtype=int)), (10, 10, 4))
    assert np.isfinite(one.interval(cells, held.predicted, 0.9, no(cells))).all()


def test_scales_are_fitted_to_other_groups_than_quantiles():
    """The entries of a group are in the same half: its errors do not make the scale that they are divided by."""
    rng = np.random.default_rng(0)
    cells = np.argwhere(np.broadcast_to(rng.random((40, 30, 1)) < 0.1, (40, 30, 12)))
    held = HeldOut(cells, rng.random(len(cells)), np.ones(len(cells)), no(cells), 7 * (cells[:, 0] * 30 + cells[:, 1]))
    mixed = held.some(len(cells), seed=3)
    groups = mixed.group
    assert mixed.n_groups == len(set(groups.tolist())) == groups.max() + 1 == len(cells) // 12
    halves = {}
    for row, half in zip(mixed.indices[:, :2].tolist(), (groups % 2).tolist(), strict=True):
        halves.setdefault(tuple(row), set()).add(half)
    assert all(len(one) == 1 for one in halves.values())


@pytest.mark.parametrize(("entries", "groups"), [(399, 1), (400, 2), (1000, 5), (4500, 20)])
def test_groups_of_predicted_values_are_equally_large(entries, groups):
    (cells, predicted, residuals), _ = drawn(alike, entries)
    calibration = calibrated(cells, predicted, residuals)
    edges = np.quantile(predicted, [k / groups for k in range(1, groups)])
    np.testing.assert_allclose(calibration.edges, edges, rtol=1e-12)
    assert calibration.quantiles.shape == (groups + 1, SETTINGS.n_quantiles)
    assert calibration.shape == SHAPE


def test_no_more_residuals_are_used_than_allowed(monkeypatch):
    old, _ = drawn(by_label, 900)
    assert len(calibrated(*old).edges) == 3
    monkeypatch.setattr(conformal, "SETTINGS", replace(SETTINGS, max_residuals=300))
    assert len(calibrated(*old).edges) == 0  # one group of 200 entries or more


def test_a_lower_level_is_used_for_labels_that_were_seen_only():
    """Where more entries were inside than asked for; by 0.1, here."""
    spaced = np.linspace(0, 1, SETTINGS.n_quantiles)
    rows = np.stack([spaced] * 3)
    held = np.minimum(RECORDED + 0.1, 1.0)
    calibration = Calibration(np.array([0.0]), None, rows, (5, 5), np.full(3, 0.5), held)
    cells = np.zeros((3, 2), dtype=int)
    ends = calibration.interval(cells, np.array([-1.0, 1.0, 1.0]), 0.5, np.array([False, False, True]))
    # 0.05 of the misses are covered nevertheless
    np.testing.assert_allclose(np.diff(ends, axis=1)[:, 0], [0.45, 0.45, 0.5], atol=1e-9)
    plain = replace(calibration, held=RECORDED.copy()).interval(cells, np.zeros(3), 0.5, no(cells))
    np.testing.assert_allclose(np.diff(plain, axis=1)[:, 0], 0.5, atol=1e-9)


@pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (-0.5, 1.0)])
@pytest.mark.parametrize("noise", [alike, by_label])
def test_shares_that_are_recorded_are_those_of_fresh_entries(noise, bounds):
    """Counted again, entry by entry, from intervals that do not use what was recorded."""
    old, (cells, predicted, residuals) = drawn(noise, 1500, seed=2)
    fresh = HeldOut(cells, predicted, residuals, no(cells))
    calibration = calibrate(HeldOut(*old, no(cells)), SHAPE, fresh, bounds=bounds)
    assert (calibration.scale is not None) == (noise is by_label)
    raw = replace(calibration, held=np.zeros(len(RECORDED)))  # never enough: the level itself is used
    group, values = np.searchsorted(calibration.edges, predicted), predicted + residuals
    for at in (0, 20, 100, 150, 198):
        ends = np.clip(raw.interval(cells, predicted, RECORDED[at], no(cells)), *bounds)
        within = (values >= ends[:, 0] - 1e-6) & (values <= ends[:, 1] + 1e-6)
        sizes = [np.sum(group == k) for k in range(len(calibration.edges) + 1)]
        counted = sum(within[group == k].sum() * n / (n + 1) for k, n in enumerate(sizes))
        assert calibration.held[at] == pytest.approx(counted / len(values), abs=2e-3)


def test_entries_that_were_left_out_together_do_not_size_each_other():
    """Errors of a group have one size. A new group has it from none of its labels."""
    rng = np.random.default_rng(0)
    member = np.repeat(np.arange(1000), 4)
    cells = np.column_stack([member, np.tile(np.arange(4), 1000)])
    residuals = np.exp(rng.normal(0, 1.5, 1000))[member] * rng.choice([-1.0, 1.0], 4000)
    left_out = HeldOut(cells, np.zeros(4000), residuals, no(cells))
    assert calibrate(left_out, (1000, 4)).scale is not None  # as if every entry were on its own
    together = calibrate(left_out._replace(together=member), (1000, 4))
    sizes = np.exp(rng.normal(0, 1.5, 4000)) * rng.choice([-1.0, 1.0], 4000)
    ends = together.interval(np.full((4000, 2), -1), np.zeros(4000), 0.9, no(cells))
    assert abs(np.mean((ends[:, 0] <= sizes) & (sizes <= ends[:, 1])) - 0.9) < 0.03


def test_every_group_of_predicted_values_has_its_own_share_of_misses_below():
    """The lower half of the predictions is of values that are often the smallest one."""
    rng = np.random.default_rng(0)
    cells = np.stack(np.unravel_index(rng.permutation(40_000), (40, 40, 25)), axis=1)
    predicted = rng.uniform(1.0, 3.0, 40_000)
    values = np.where((predicted < 2) & (rng.random(40_000) < 0.3), 0.5, predicted + rng.normal(0, 0.1, 40_000))
    left_out = HeldOut(cells, predicted, values - predicted, no(cells))
    below = calibrate(left_out, (40, 40, 25), bounds=(0.5, math.inf)).below
    assert below[:9].tolist() == [0.0] * 9
    assert below[11:20].tolist() == [0.5] * 9


def share_below(values, bounds=(-math.inf, math.inf), residuals=None):
    """Of entries with these values, and residuals that are all different unless they are given."""
    if residuals is None:
        residuals = np.random.default_rng(0).permutation(np.linspace(-1, 1, len(values)))
    entries = HeldOut(np.zeros((len(values), 1), int), values - residuals, residuals, np.zeros(len(values), bool))
    quantiles = np.quantile(residuals, np.linspace(0, 1, SETTINGS.n_quantiles))
    return _below(quantiles, entries, bounds)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_misses_lie_on_the_side_where_values_are_not_all_equal(scale):
    """A tail of 5 % is enough, of 1000 entries at least; rounding does not part equal values."""
    other = np.linspace(0.3, 0.7, 950) * scale
    smallest, largest = np.full(50, 0.1 * scale * (1 + 1e-8)), np.full(50, 0.9 * scale * (1 - 1e-8))
    bounds = 0.1 * scale, 0.9 * scale
    assert share_below(np.concatenate([smallest, other]), bounds) == 0.0
    assert share_below(np.concatenate([largest, other]), bounds) == 1.0
    assert share_below(np.concatenate([smallest, largest, other]), bounds) == 0.5
    assert share_below(np.concatenate([smallest, other]), (-math.inf, math.inf)) == 0.5
    assert share_below(np.concatenate([smallest[:49], other, other[:1]]), bounds) == 0.5
    assert share_below(np.concatenate([smallest, other[:949]]), bounds) == 0.5  # 999 entries
    assert share_below(np.concatenate([smallest * 1.001, other]), bounds) == 0.5  # nearly the smallest is not enough


def test_misses_lie_above_where_the_smallest_residuals_are_equal_and_the_other_way_round():
    spread = np.linspace(-0.9, 0.9, 900)
    values = np.linspace(0, 1, 1000)
    assert share_below(values, residuals=np.concatenate([np.full(100, -1.0), spread])) == 0.0
    assert share_below(values, residuals=np.concatenate([spread, np.full(100, 1.0)])) == 1.0


def test_entries_that_all_have_a_new_label_are_calibrated():
    old, fresh = drawn(alike, 4000)
    calibration = calibrated(*old, unseen=~no(old[0]))
    covered, _ = inside(calibration, *fresh, 0.9, ~no(fresh[0]))
    assert covered.mean() == pytest.approx(0.9, abs=0.03)


def test_quantiles_of_a_group_are_its_own_if_it_has_two_entries():
    rng = np.random.default_rng(0)
    scaled = rng.normal(size=203)
    group = np.r_[np.zeros(200, int), 1, 2, 2]
    rows = _quantiles(scaled, group, no(scaled), 3)
    overall = np.quantile(scaled, np.linspace(0, 1, SETTINGS.n_quantiles), method="weibull")
    np.testing.assert_array_equal(rows[1], overall)  # one entry has no quantiles
    assert rows[2][[0, -1]].tolist() == sorted(scaled[201:])
    np.testing.assert_allclose(rows[3][[40, 360]], SETTINGS.unseen_factor * overall[[40, 360]])


@pytest.mark.parametrize(("cold", "measured"), [(199, False), (200, True)])
def test_widths_of_new_labels_are_measured_where_enough_were_left_out(cold, measured):
    scaled = np.random.default_rng(0).normal(size=1000)
    unseen = np.arange(1000) < cold
    scaled[unseen] *= 4.0
    rows = _quantiles(scaled, np.zeros(1000, int), unseen, 1)
    wanted = scaled[unseen] if measured else SETTINGS.unseen_factor * scaled[~unseen]
    expected = np.quantile(wanted, [0.1, 0.9], method="weibull")
    np.testing.assert_allclose(rows[1][[40, 360]], expected)


@pytest.mark.parametrize(
    ("others", "given", "left"), [(10, 100, 40), (10, 41, 40), (10, 40, 40), (0, 50, 50), (30, 5, 5)]
)
def test_of_entries_with_a_given_value_some_are_left_out(others, given, left):
    """They never miss: at most five times the misses fall on the others."""
    total = others + given
    mask = np.random.default_rng(0).permutation(np.arange(total) < given)
    cells = np.column_stack([np.arange(total), np.zeros(total, int)])
    entries = HeldOut(cells, np.arange(total) + 0.5, np.arange(total) * 2.0, mask, np.arange(total) // 2)
    thin = entries.thinned(mask, seed=3)
    kept = thin.indices[:, 0]
    assert (np.diff(kept) > 0).all()
    assert mask[kept].sum() == left
    assert (~mask[kept]).sum() == others
    np.testing.assert_array_equal(thin.predicted, kept + 0.5)
    np.testing.assert_array_equal(thin.residuals, kept * 2.0)
    np.testing.assert_array_equal(thin.unseen, mask[kept])
    np.testing.assert_array_equal(thin.together, kept // 2)
    assert np.array_equal(entries.thinned(mask, seed=3).indices, thin.indices)
    if given == 100:
        assert not np.array_equal(entries.thinned(mask, seed=4).indices, thin.indices)
