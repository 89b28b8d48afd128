"""Drawings read back as XML: where things lie, what is written, and that nothing breaks them."""

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.report import plots as draw
from jointensor.report.plots import (
    Plot,
    bars,
    cut,
    dots_with_spread,
    short,
)
from jointensor.report.settings import SETTINGS

WIDTH, HEIGHT = SETTINGS.plot_size
LEFT, RIGHT, TOP, BOTTOM = SETTINGS.margins
EVIL = """<b>x</b> & "y" 'z' ]]>"""
LONG = EVIL + 5 * " and so on"

numbers = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


def read(svg):
    """The root of a drawing, after a look at everything that a browser could not make sense of."""
    root = ET.fromstring(svg)
    assert {one.tag for one in root.iter()} <= {"svg", "text", "title", "line", "polyline", "circle", "rect"}
    for one in root.iter():
        for key, value in one.attrib.items():
            if key in ("x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "width", "height", "viewBox", "points"):
                assert all(math.isfinite(float(word)) for word in value.replace(",", " ").split()), svg
    assert not any(word in "".join(root.itertext()) for word in ("nan", "inf"))
    return root


def texts(root):
    return [one.text for one in root.iter("text") if one.text]


def boxes(root):
    """Left and right end, and kind, of every rectangle."""
    rects = [one.attrib for one in root.iter("rect")]
    return [(float(r["x"]), float(r["x"]) + float(r["width"]), r["class"].split()[-1]) for r in rects]


@settings(deadline=None)
@given(numbers, numbers, st.integers(1, 12))
def test_ticks_are_round_evenly_spaced_and_inside(a, b, count):
    low, high = sorted((a, b))
    found = draw.ticks(low, high, count)
    if low == high:
        assert found == [low]
        return
    span, noise = high - low, 1e-12 * max(abs(low), abs(high))
    assert len(found) <= count + 1
    assert all(low - 1e-6 * span - noise <= tick <= high + 1e-6 * span + noise for tick in found)
    steps = [b - a for a, b in pairwise(found)]
    for step in steps:
        assert step == pytest.approx(steps[0], rel=1e-6, abs=noise)
    if steps and noise < 1e-6 * span:
        mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0] * (1 + 1e-6)))
        assert min(abs(mantissa - k) for k in (1, 2, 5)) < 1e-4
        assert found[0] / steps[0] == pytest.approx(round(found[0] / steps[0]), abs=1e-4)


def test_ticks_by_hand():
    assert draw.ticks(0, 1) == pytest.approx([0, 0.5, 1])
    assert draw.ticks(-3, 17) == pytest.approx([0, 5, 10, 15])
    assert draw.ticks(0.021, 0.089) == pytest.approx([0.04, 0.06, 0.08])
    assert draw.ticks(2, 2) == [2]


@settings(deadline=None)
@given(numbers, numbers, numbers, numbers)
def test_corners_are_mapped_to_corners(a, b, c, d):
    (low, high), (below, above) = sorted((a, b)), sorted((c, d))
    plot = Plot((low, high), (below, above))
    assert plot.left >= LEFT
    assert plot.at(low, below) == (plot.left, HEIGHT - BOTTOM)
    if low < high and below < above:
        assert plot.at(high, above) == (WIDTH - RIGHT, TOP)
        assert plot.at(low / 2 + high / 2, below / 2 + above / 2) == pytest.approx(
            ((plot.left + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2), abs=0.2
        )
    read(plot.svg("corners"))


def test_a_small_plot_keeps_to_its_size():
    plot = Plot((0, 10), (5, 6), size=(200, 100))
    assert plot.at(0, 5) == (LEFT, 100 - BOTTOM)
    assert plot.at(10, 6) == (200 - RIGHT, TOP)
    assert read(plot.svg("small")).get("viewBox") == "0 0 200 100"


def test_text_stays_text_wherever_it_is_written():
    plot = Plot((0, 1), (0, 1), x_labels=[(0, EVIL), (0.5, EVIL), (1, EVIL)], titles=(EVIL, EVIL))
    root = read(plot.svg(EVIL))
    assert texts(root).count(EVIL) == 3  # of the labels along the axis, one is as much as there is room for
    assert root.get("aria-label") == EVIL
    for svg, longest in (
        (bars([(EVIL, 1.0), (LONG, -1.0)], EVIL, width=200), int(200 / SETTINGS.letter_width)),
        (dots_with_spread([(EVIL, 1.0, 0.1), (LONG, 2.0, None)], EVIL), int(400 / SETTINGS.letter_width)),
    ):
        root = read(svg)
        assert root.get("aria-label") == EVIL
        assert {cut(EVIL, longest), cut(LONG, longest)} <= set(texts(root))
        assert LONG in [one.text for one in root.iter("title")]  # whole under the pointer


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=6), st.booleans())
def test_no_numbers_break_a_drawing(values, constant):
    values = [values[0]] * len(values) if constant else values
    low, high = min(values), max(values)
    plot = Plot((low, high), (low, high)).line([(v, v) for v in values]).dots([(v, v) for v in values])
    root = read(plot.columns(sorted(values), values[1:]).svg("all of it"))
    for dot in root.iter("circle"):
        assert LEFT <= float(dot.get("cx")) <= WIDTH - RIGHT
        assert TOP <= float(dot.get("cy")) <= HEIGHT - BOTTOM
    for svg in (
        bars([(str(v), v) for v in values], "bars"),
        dots_with_spread([(str(v), v, abs(v) / 3) for v in values], "dots"),
    ):
        root = read(svg)
        wide = float(root.get("viewBox").split()[2])
        assert all(0 <= a <= b <= wide for a, b, _ in boxes(root))
        assert all(0 <= float(dot.get("cx")) <= wide for dot in root.iter("circle"))


def test_columns_are_as_high_as_their_counts():
    plot = Plot((0, 3), (0, 8)).columns([0, 1, 2, 3], [2, 0, 8])
    rects = [one.attrib for one in read(plot.svg("histogram")).iter("rect")]
    assert len(rects) == 2  # nothing for nothing
    tall = HEIGHT - TOP - BOTTOM
    assert [float(r["height"]) for r in rects] == pytest.approx([tall / 4, tall], abs=0.1)
    assert [float(r["y"]) + float(r["height"]) for r in rects] == pytest.approx([HEIGHT - BOTTOM] * 2, abs=0.1)
    assert float(rects[0]["x"]) == LEFT
    assert float(rects[1]["x"]) + float(rects[1]["width"]) == pytest.approx(WIDTH - RIGHT, abs=1)


def test_negative_bars_go_left():
    a, b, c, none = boxes(read(bars([("a", 2.0), ("b", -1.0), ("c", 1.0), ("none", 0.0)], "bars")))
    assert b[1] == pytest.approx(a[0], abs=0.2) == c[0] == none[0]  # where zero is
    assert b[0] < b[1]
    assert a[1] - a[0] == pytest.approx(2 * (c[1] - c[0]), abs=0.2)
    assert b[1] - b[0] == pytest.approx(c[1] - c[0], abs=0.2)
    assert (a[2], b[2], c[2]) == ("one", "two", "one")
    only = boxes(read(bars([("a", -3.0), ("b", -1.5)], "bars")))
    assert only[0][1] == pytest.approx(only[1][1], abs=0.2)
    assert only[0][0] < only[1][0]


def test_a_dot_lies_in_the_middle_of_its_spread():
    root = read(dots_with_spread([("a", 1.0, 0.5), ("b", 3.0, 0.0)], "dots"))
    first, second = (float(one.get("cx")) for one in root.iter("circle"))
    (x0, x1), (y0, y1) = (
        (float(r.get("x1")), float(r.get("x2"))) for r in root.iter("line") if r.get("class") != "grid"
    )
    assert (x0 + x1) / 2 == pytest.approx(first, abs=0.1)
    assert x1 - x0 == pytest.approx((second - first) / 2, abs=0.3)
    assert y0 == second == y1


@settings(deadline=None)
@given(numbers)
def test_a_short_number_is_about_the_number(value):
    said = float(short(value).replace("−", "-").replace(",", ""))
    assert said == pytest.approx(value, rel=0.051)
    assert len(short(value)) <= 8


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (-0.25, "−0.25"), (12345.6, "12,346"), (2.5e7, "2.5e7"), (2e-5, "2e−5"),
     (234567.0, "234,567"), (1e6, "1e6"),
     (999.6, "1,000"), (-2e-5, "−2e−5"),
     (2e-12, "2e−12")],
)  # fmt: skip
def test_short_numbers_by_hand(value, text):
    assert short(value) == text


@pytest.mark.parametrize("low", [0.0, 1000.1])
def test_ticks_that_differ_are_written_differently(low):
    said = texts(read(Plot((low, low + 0.8), (0, 1), titles=("", "y")).svg("near")))
    across = said[3:-1]  # after 0, 0.5 and 1 of the y axis
    assert len(across) == len(set(across)) > 2


def test_long_labels_stand_above_their_bars_and_short_ones_leave_room_for_them():
    names = ["pct_inpatient_beds_used_avg", "pct_icu_beds_used_avg"]
    for svg in (bars([(n, 1.0) for n in names], "bars"), dots_with_spread([(n, 1.0, 0.1) for n in names], "dots")):
        labels = [one for one in read(svg).iter("text") if one.text in names]
        assert [(one.text, one.get("x")) for one in labels] == [(name, "0") for name in names]
    (long,) = boxes(read(bars([(names[0], 1.0)], "bars")))
    (short_,) = boxes(read(bars([("A1", 1.0)], "bars")))
    assert long[0] == 0
    assert short_[0] < 30
    assert short_[1] > 250


def test_the_ends_of_a_label_that_is_cut_are_kept():
    assert cut("suspected_covid_per_100_beds", 20) == "suspected_cov…0_beds"
    assert cut("as it is", 8) == "as it is"


def test_bars_say_what_they_are_told_to():
    assert texts(read(bars([("a", 2.0)], "bars", texts=["2 (3,724)"]))) == ["a", "2 (3,724)"]


def test_a_dot_whose_spread_nobody_knows_is_hollow():
    root = read(dots_with_spread([("a", 1.0, None), ("b", 2.0, 0.0), ("c", 3.0, 0.1)], "dots"))
    assert [dot.get("class") for dot in root.iter("circle")] == ["dot hollow", "dot one", "dot one"]
    assert len([line for line in root.iter("line") if line.get("class") != "grid"]) == 2


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.floats(1.5, 1e9))
def test_a_logarithmic_axis_has_a_few_round_marks(low, times):
    found = draw.powers(low, low * times)
    assert len(found) <= SETTINGS.max_log_ticks
    assert all(low * (1 - 1e-6) <= value <= low * times * (1 + 1e-6) for value in found)
    assert times < 10 or found
    plot = Plot((0, 1), (low, low * times), log=True)
    assert plot.at(0, low * math.sqrt(times))[1] == pytest.approx((TOP + HEIGHT - BOTTOM) / 2, abs=0.2)
    read(plot.columns([0, 0.5, 1], [0, low * times]).svg("logarithmic"))  # nothing has no logarithm


@pytest.mark.parametrize("ends", [(-0.03, 0.19), (0.786, 0.8318), (-0.35, 0.45), (1, 11)])
def test_a_scale_has_three_marks(ends):
    assert len(draw.scale_marks(*ends)) >= 3


def test_large_numbers_along_an_axis_have_room():
    plot = Plot((0, 1), (0, 400_000))
    assert "300,000" in texts(read(plot.svg("large")))
    assert plot.left - 5 > SETTINGS.letter_width * len("300,000") - 1


@pytest.mark.parametrize("width", [240, 320])
def test_labels_along_an_axis_do_not_touch(width):
    days = [(0, "2021-01-01"), (0.5, "2021-06-30"), (1, "2021-12-31")]
    root = read(Plot((0, 1), (0, 1), x_labels=days, size=(width, 140)).svg("days"))
    spans = sorted(
        (float(one.get("x")) - 0.5 * SETTINGS.letter_width * 10, float(one.get("x")) + 0.5 * SETTINGS.letter_width * 10)
        for one in root.iter("text") if one.text and one.text.startswith("2021")
    )  # fmt: skip
    assert len(spans) == (3 if width == 320 else 2)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert spans[-1][1] <= width


@pytest.mark.parametrize("high", [1410, 13567, 3549, 999_999, 0.0351])
def test_numbers_along_an_axis_are_evenly_spaced(high):
    root = read(Plot((1 if high > 1 else 0, high), (0, 1)).svg("numbers"))
    row = [one for one in root.iter("text") if one.get("y") == str(HEIGHT - BOTTOM + 14)]
    along = sorted(float(one.text.replace(",", "")) for one in row)
    assert len(along) >= 2
    steps = [b - a for a, b in pairwise(along)]
    assert steps == pytest.approx([steps[0]] * len(steps))
