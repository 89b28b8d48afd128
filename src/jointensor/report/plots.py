"""Small plots as text: SVG whose colours and fonts are the page's, so that they fit light and dark and print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Literal

from jointensor.report.settings import SETTINGS

LEFT, RIGHT, TOP, BOTTOM = SETTINGS.margins


def short(value: float | None) -> str:
    """A number in few letters."""
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 999_999.5:
        text = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    else:
        text = f"{value:.1e}".replace(".0e", "e").replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return text.replace("-", "−")


def _four(value: float) -> str:
    """A number in four digits, as tables have them."""
    return f"{value:.4g}".replace("-", "−")


def distinct_texts(values: Sequence[float]) -> list[str]:
    """Numbers in few letters, but as many as it takes to tell them from each other."""
    texts = [short(value) for value in values]
    digits = 4
    while len(set(texts)) < len(set(values)) and digits < 12:
        texts = [f"{value:,.{digits}g}".replace("-", "−") for value in values]
        digits += 1
    return texts


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between two ends, about ``count`` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * k for k in (1, 2, 5) if power * k >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def scale_marks(low: float, high: float) -> list[float]:
    """Round numbers between two ends, at least three where there is room: a single one says nothing about a scale."""
    few, more, many = (ticks(low, high, count) for count in (4, 6, 8))
    return few if len(few) > 2 else more if len(more) > 2 else many


def powers(low: float, high: float) -> list[float]:
    """Round numbers between two positive ends of a logarithmic axis: powers of ten, and 2 and 5 times them if few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors, step in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 5), ((1,), 20)):
        found = [f * 10.0**k for k in range(first - first % step, last + 1, step) for f in factors]
        inside = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(inside) <= SETTINGS.max_log_ticks:
            return inside
    return inside


def cut(label: str, longest: int) -> str:
    """A label that is not too long: its middle is left out, since many differ at their ends only."""
    if len(label) <= longest:
        return label
    tail = (longest - 1) // 3
    return label[: longest - 1 - tail] + "…" + label[len(label) - tail :]


class Plot:
    """Axes with a scale, and what is drawn on them.

    Parameters
    ----------
    x, y
        Smallest and largest value along either axis.
    x_labels
        Positions and texts along the x axis, instead of numbers.
    titles
        Of the x and the y axis.
    log
        Whether the y axis, whose ends are positive then, is logarithmic.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_labels: Sequence[tuple[float, str]] | None = None,
        titles: tuple[str, str] = ("", ""),
        size: tuple[int, int] = SETTINGS.plot_size,
        log: bool = False,
    ) -> None:
        self.low, self.high = (x[0], y[0]), (_above(*x), _above(*y))
        self.size, self.log = size, log
        self.parts: list[str] = []
        marks = powers(self.low[1], self.high[1]) if log else scale_marks(self.low[1], self.high[1])
        texts = distinct_texts(marks)
        self.left = max(LEFT, round(SETTINGS.letter_width * max(map(len, texts), default=0)) + 7)
        self._y_axis(list(zip(marks, texts, strict=True)), titles[1])
        self._x_axis(x_labels, titles[0])

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies."""
        across = (x - self.low[0]) / (self.high[0] - self.low[0])
        low, y, high = (math.log10(v) if self.log else v for v in (self.low[1], y, self.high[1]))
        width, height = self.size[0] - self.left - RIGHT, self.size[1] - TOP - BOTTOM
        return round(self.left + across * width, 1), round(TOP + (1 - (y - low) / (high - low)) * height, 1)

    def line(self, points: Sequence[tuple[float, float]], kind: str = "one") -> Plot:
        """A line through points, in order."""
        where = " ".join("{},{}".format(*self.at(*point)) for point in points)
        self.parts.append(f'<polyline class="line {kind}" points="{where}"/>')
        return self

    def dots(self, points: Sequence[tuple[float, float]], kind: str = "one", radius: float = 2.5) -> Plot:
        """A dot for every point."""
        for x, y in (self.at(*point) for point in points):
            self.parts.append(f'<circle class="dot {kind}" cx="{x}" cy="{y}" r="{radius}"/>')
        return self

    def band(self, points: Sequence[tuple[float, float, float]], kind: str = "one") -> Plot:
        """The area between lower and upper ends, in order."""
        edge = [(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)]
        where = " ".join("{},{}".format(*self.at(*point)) for point in edge)
        self.parts.append(f'<polygon class="band {kind}" points="{where}"/>')
        return self

    def stems(self, points: Sequence[tuple[float, float, float]], kind: str = "one") -> Plot:
        """An upright line from one end to the other for every point."""
        for x, low, high in points:
            (across, bottom), (_, top) = self.at(x, low), self.at(x, high)
            self.parts.append(f'<line class="stem {kind}" x1="{across}" y1="{bottom}" x2="{across}" y2="{top}"/>')
        return self

    def columns(self, edges: Sequence[float], heights: Sequence[float]) -> Plot:
        """A histogram: a column between every two edges."""
        for a, b, height in zip(edges[:-1], edges[1:], heights, strict=True):
            if height > self.low[1]:
                (x0, y0), (x1, y1) = self.at(a, self.low[1]), self.at(b, height)
                self.parts.append(
                    f'<rect class="bar one" x="{x0}" y="{y1}" width="{max(x1 - x0 - 0.5, 0.5):.1f}" '
                    f'height="{y0 - y1:.1f}"/>'
                )
        return self

    def svg(self, title: str) -> str:
        """The drawing, with a title for screen readers."""
        return _wrap("".join(self.parts), title, self.size)

    def _y_axis(self, marks: Sequence[tuple[float, str]], title: str) -> None:
        right = self.size[0] - RIGHT
        for value, text in marks:
            y = self.at(self.low[0], value)[1]
            kind = "axis" if value == 0 and self.low[1] < 0 else "grid"
            self.parts.append(f'<line class="{kind}" x1="{self.left}" y1="{y}" x2="{right}" y2="{y}"/>')
            self.parts.append(f'<text class="end" x="{self.left - 5}" y="{y + 3.5}">{text}</text>')
        if title:
            self.parts.append(f'<text class="start title" x="2" y="12">{escape(title)}</text>')

    def _x_axis(self, labels: Sequence[tuple[float, str]] | None, title: str) -> None:
        bottom, right = self.size[1] - BOTTOM, self.size[0] - RIGHT
        kind = "grid" if self.low[1] < 0 < self.high[1] and not self.log else "axis"  # zero has the axis then
        self.parts.append(f'<line class="{kind}" x1="{self.left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
        if labels is None:
            along = scale_marks(self.low[0], self.high[0])
            labels = list(zip(along, distinct_texts(along), strict=True))
            widest = SETTINGS.letter_width * max(len(text) for _, text in labels) + 8
            while len(labels) > 2 and len(labels) * widest > right - self.left:
                labels = labels[::2]  # steps stay even
        taken: list[tuple[float, float]] = []
        for value, text in [*labels[:1], *labels[:0:-1]]:  # both ends first, then what has room between them
            x, wide = self.at(value, self.low[1])[0], SETTINGS.letter_width * len(text)
            start = min(max(x - wide / 2, self.left - 8), self.size[0] - 2 - wide)
            if all(start > b + 6 or start + wide < a - 6 for a, b in taken):
                taken.append((start, start + wide))
                at = round(start + wide / 2, 1)
                self.parts.append(f'<text class="middle" x="{at}" y="{bottom + 14}">{escape(text)}</text>')
        middle = (self.left + right) / 2
        self.parts.append(f'<text class="middle title" x="{middle}" y="{self.size[1] - 5}">{escape(title)}</text>')


def bars(
    rows: Sequence[tuple[str, float]],
    title: str,
    *,
    texts: Sequence[str] | None = None,
    width: int = SETTINGS.plot_size[0],
) -> str:
    """A bar for every label, one below the other; negative ones to the left. ``texts`` say more than the numbers."""
    low, high = min([0.0, *(v for _, v in rows)]), max([0.0, *(v for _, v in rows)])
    texts = [short(value) for _, value in rows] if texts is None else texts
    start, step = _room_for_labels([label for label, _ in rows], width)
    room = width - start - SETTINGS.letter_width * max(map(len, texts), default=0) - 6
    scale = room / _size(high - low)
    parts = []
    for k, ((label, value), text) in enumerate(zip(rows, texts, strict=True)):
        y = step * (k + 1) - 14
        x, end = (start + (v - low) * scale for v in (min(value, 0.0), max(value, 0.0)))
        parts.append(_label(label, start, y, width))
        parts.append(
            f'<rect class="bar {"one" if value >= 0 else "two"}" x="{x:.1f}" y="{y}" '
            f'width="{max(abs(value) * scale, 1):.1f}" height="13" rx="2"/>'
        )
        parts.append(f'<text class="start" x="{end + 4:.1f}" y="{y + 10}">{text}</text>')
    return _wrap("".join(parts), title, (width, step * len(rows) + 6))


def dots_with_spread(rows: Sequence[tuple[str, float, float | None]], title: str) -> str:
    """A dot with its spread for every label, one below the other; hollow where the spread is not known."""
    width = SETTINGS.wide_plot_size[0]
    low, high = min(v - (s or 0) for _, v, s in rows), max(v + (s or 0) for _, v, s in rows)
    margin = 0.04 * _size(high - low)
    low, high = low - margin, high + margin
    start, step = _room_for_labels([label for label, _, _ in rows], width)
    begin, end = start + 8, width - 56
    scale = (end - begin) / _size(high - low)
    bottom = step * len(rows) + 6
    parts = []
    marks = scale_marks(low, high)
    for value, text in zip(marks, distinct_texts(marks), strict=True):
        x = round(begin + (value - low) * scale, 1)
        parts.append(f'<line class="grid" x1="{x}" y1="0" x2="{x}" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{x}" y="{bottom + 12}">{text}</text>')
    for k, (label, value, spread) in enumerate(rows):
        y = step * (k + 1) - 8
        x0, x, x1 = (round(begin + (v - low) * scale, 1) for v in (value - (spread or 0), value, value + (spread or 0)))
        parts.append(_label(label, start, y - 6, width))
        if spread is not None:
            parts.append(f'<line class="line one" x1="{x0}" y1="{y}" x2="{x1}" y2="{y}"/>')
        parts.append(f'<circle class="dot {"hollow" if spread is None else "one"}" cx="{x}" cy="{y}" r="4"/>')
        parts.append(f'<text class="start" x="{x1 + 8:.1f}" y="{y + 4}">{_four(value)}</text>')
    return _wrap("".join(parts), title, (width, bottom + 18))


def raster(rows: Sequence[str], classes: dict[str, str], ends: Sequence[Sequence[str]], titles: tuple[str, str],
           title: str) -> str:  # fmt: skip
    """Cells as small squares, one letter each.

    Parameters
    ----------
    rows
        A text per row, from top to bottom.
    classes
        Class of the squares of every letter; others are left out.
    ends
        Labels of the first and the last row, and of the first and the last column.
    titles
        Of rows and of columns.
    title
        For screen readers.
    """
    width, (row_ends, column_ends) = SETTINGS.wide_plot_size[0], ends
    start = round(SETTINGS.letter_width * max(map(len, row_ends)) + 10, 1)
    step = min((width - start - 2) / len(rows[0]), SETTINGS.max_square)
    bottom = round(TOP + step * len(rows), 1)
    right = round(start + step * len(rows[0]), 1)
    parts = [f'<rect class="frame" x="{start}" y="{TOP}" width="{right - start:.1f}" height="{bottom - TOP:.1f}"/>']
    for k, row in enumerate(rows):
        first = 0
        for letter, run in groupby(row):  # neighbours alike are one rectangle
            count = len(list(run))
            if letter in classes:
                x, y = start + step * first, TOP + step * k
                parts.append(
                    f'<rect class="{classes[letter]}" x="{x:.1f}" y="{y:.1f}" width="{step * count:.2f}" '
                    f'height="{step:.2f}"/>'
                )
            first += count
    for y, text in ((TOP + 9, row_ends[0]), (max(bottom, TOP + 22), row_ends[1])):
        parts.append(f'<text class="end" x="{start - 5}" y="{y}">{escape(text)}</text>')
    letters = SETTINGS.letter_width * sum(map(len, column_ends))
    parts.append(f'<text class="start" x="{start}" y="{bottom + 14}">{escape(column_ends[0])}</text>')
    if right - start > letters + 10:
        parts.append(f'<text class="end" x="{right}" y="{bottom + 14}">{escape(column_ends[1])}</text>')
    parts.append(f'<text class="start title" x="2" y="12">{escape(titles[0])}</text>')
    parts.append(f'<text class="start title" x="{start}" y="{bottom + 29}">{escape(titles[1])}</text>')
    return _wrap("".join(parts), title, (width, round(max(bottom, TOP + 22) + 34)))


def _room_for_labels(labels: Sequence[str], width: int) -> tuple[float, int]:
    """Where bars begin, and the height of a row: labels stand to the left of their bars, long ones above them."""
    longest = SETTINGS.letter_width * max(map(len, labels), default=0)
    return (0, 34) if longest > SETTINGS.max_label_share * width else (round(longest + 10, 1), 18)


def _label(label: str, start: float, y: float, width: int) -> str:
    """A label beside its bar or above it, cut to its room and whole under the pointer."""
    short_label = cut(label, int(width / SETTINGS.letter_width))
    whole = escape(short_label) + ("" if short_label == label else f"<title>{escape(label)}</title>")
    if start:
        return f'<text class="end" x="{start - 6:.1f}" y="{y + 10}">{whole}</text>'
    return f'<text class="start" x="0" y="{y - 4}">{whole}</text>'


def _wrap(inside: str, title: str, size: tuple[int, int]) -> str:
    return f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(title)}">{inside}</svg>'


def _above(low: float, high: float) -> float:
    return high if high > low else low + (abs(low) or 1.0)


def _size(span: float) -> float:
    return span if span > 0 else 1.0


STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#4d5b69}.end{text-anchor:end}.middle{text-anchor:middle}"
    ".grid{stroke:#dde3ea}.axis{stroke:#8794a1}.line{fill:none;stroke-width:1.8}"
    ".k0{stroke:#1a6985;fill:#1a6985}.k1{stroke:#a8431f;fill:#a8431f}.k2{stroke:#2f7d32;fill:#2f7d32}.line{fill:none}.bar{fill:#1a6985}"
)
"""Style of drawings in files of their own."""
FILE_SIZE = (480, 280)
"""Of a drawing in a file of its own."""
XML_NAMESPACE = '<svg xmlns="http://www.w3.org/2000/svg" '


def lines_as_svg(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    *,
    kinds: Mapping[str, Literal["line", "dots"]] | None = None,
) -> str:
    """Named lines in one file of their own; each with its points, unless ``kinds`` says which of the two."""
    points = [point for one in lines.values() for point in one]
    if not points:
        points = [(0.0, 0.0)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    room = 0.08 * _size(max(ys) - min(ys))
    plot = Plot((min(xs), max(xs)), (min(ys) - room, max(ys) + room), titles=(title, ""), size=FILE_SIZE)
    for k, (name, one) in enumerate(lines.items()):
        kind = (kinds or {}).get(name)
        if len(one) > 1 and kind != "dots":
            plot.line(one, f"k{k % 3}")
        if kind != "line":
            plot.dots(one, f"k{k % 3}", 3 if kind is None else 2)
        plot.parts.append(
            f'<text x="{plot.left + 8 + 110 * k}" y="12" class="k{k % 3}" stroke="none">{escape(name)}</text>'
        )
    return _in_a_file(plot.svg(title))


def bars_as_svg(rows: Sequence[tuple[str, float]], title: str) -> str:
    """A bar for every label, in a file of its own."""
    return _in_a_file(bars(rows, title, width=FILE_SIZE[0]))


def _in_a_file(svg: str) -> str:
    """A drawing with the style that a page would give it."""
    start, _, inside = svg.partition(">")
    return f"{start.replace('<svg ', XML_NAMESPACE, 1)}><style>{STYLE}</style>{inside}"
