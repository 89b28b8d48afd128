"""Small plots as text: SVG whose colours and fonts are the page's, so that they fit light and dark and print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 22, 34
"""Room for the labels of the axes."""

LONGEST = 18
"""Letters of a label that are shown; the whole of it appears under the pointer."""


def short(value: float | None) -> str:
    """A number in few letters."""
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    else:
        text = f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return text.replace("-", "−")


def told_apart(values: Sequence[float]) -> list[str]:
    """Numbers in few letters, but as many as it takes to tell them from each other."""
    texts = [short(value) for value in values]
    digits = 4
    while len(set(texts)) < len(set(values)) and digits < 12:
        texts = [f"{value:,.{digits}g}".replace("-", "−") for value in values]
        digits += 1
    return texts


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between two ends, about as many as asked for."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * k for k in (1, 2, 5) if power * k >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def cut(label: str, longest: int = LONGEST) -> str:
    """A label that is not too long."""
    return label if len(label) <= longest else label[: longest - 1] + "…"


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
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_labels: Sequence[tuple[float, str]] | None = None,
        titles: tuple[str, str] = ("", ""),
        size: tuple[int, int] = (WIDTH, HEIGHT),
    ) -> None:
        self.low, self.high = (x[0], y[0]), (_above(*x), _above(*y))
        self.size = size
        self.parts: list[str] = []
        self._axes(x_labels, titles)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies."""
        share = [(v - a) / (b - a) for v, a, b in zip((x, y), self.low, self.high, strict=True)]
        width, height = self.size[0] - LEFT - RIGHT, self.size[1] - TOP - BOTTOM
        return round(LEFT + share[0] * width, 1), round(TOP + (1 - share[1]) * height, 1)

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

    def columns(self, edges: Sequence[float], heights: Sequence[float]) -> Plot:
        """A histogram: a column between every two edges."""
        for a, b, height in zip(edges[:-1], edges[1:], heights, strict=True):
            (x0, y0), (x1, y1) = self.at(a, self.low[1]), self.at(b, height)
            if height > self.low[1]:
                self.parts.append(
                    f'<rect class="bar one" x="{x0}" y="{y1}" width="{max(x1 - x0 - 0.5, 0.5):.1f}" '
                    f'height="{y0 - y1:.1f}"/>'
                )
        return self

    def svg(self, title: str) -> str:
        """The drawing, named for those who cannot see it."""
        return _wrap("".join(self.parts), title, self.size)

    def _axes(self, x_labels: Sequence[tuple[float, str]] | None, titles: tuple[str, str]) -> None:
        bottom, right = self.size[1] - BOTTOM, self.size[0] - RIGHT
        marks = ticks(self.low[1], self.high[1])
        for value, text in zip(marks, told_apart(marks), strict=True):
            y = self.at(self.low[0], value)[1]
            self.parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}"/>')
            self.parts.append(f'<text class="end" x="{LEFT - 5}" y="{y + 3.5}">{text}</text>')
        self.parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
        along = ticks(self.low[0], self.high[0])
        labels = list(zip(along, told_apart(along), strict=True)) if x_labels is None else x_labels
        for k, (value, text) in enumerate(labels):
            x = self.at(value, self.low[1])[0]
            side = "" if x_labels is None or 0 < k < len(labels) - 1 else "end" if k else "start"
            self.parts.append(f'<text class="{side or "middle"}" x="{x}" y="{bottom + 14}">{escape(text)}</text>')
        middle = (LEFT + right) / 2
        self.parts.append(f'<text class="middle title" x="{middle}" y="{self.size[1] - 5}">{escape(titles[0])}</text>')
        if titles[1]:
            self.parts.append(f'<text class="start title" x="2" y="10">{escape(titles[1])}</text>')


def bars(rows: Sequence[tuple[str, float]], title: str, *, width: int = WIDTH, zero: float = 0.0) -> str:
    """A bar for every label, one below the other, from ``zero`` on; negative ones to the left."""
    low, high = min([zero, *(v for _, v in rows)]), max([zero, *(v for _, v in rows)])
    room, start = width - 140 - 50, 140
    scale = room / _size(high - low)
    parts = []
    for k, (label, value) in enumerate(rows):
        y = 18 * k + 4
        x = start + (min(value, zero) - low) * scale
        kind = "one" if value >= zero else "two"
        parts.append(f'<text class="end" x="{start - 6}" y="{y + 10}">{_named(label)}</text>')
        parts.append(
            f'<rect class="bar {kind}" x="{x:.1f}" y="{y}" width="{max(abs(value - zero) * scale, 1):.1f}" '
            'height="13" rx="2"/>'
        )
        end = start + (max(value, zero) - low) * scale
        parts.append(f'<text class="start" x="{end + 4:.1f}" y="{y + 10}">{short(value)}</text>')
    return _wrap("".join(parts), title, (width, 18 * len(rows) + 6))


def dots_with_spread(rows: Sequence[tuple[str, float, float]], title: str, *, width: int = 640) -> str:
    """A dot with its spread for every label, one below the other."""
    low, high = min(v - s for _, v, s in rows), max(v + s for _, v, s in rows)
    margin = 0.04 * _size(high - low)
    low, high = low - margin, high + margin
    start, end = 190, width - 16
    scale = (end - start) / _size(high - low)
    bottom = 18 * len(rows) + 6
    parts = []
    for value in ticks(low, high, 5):
        x = round(start + (value - low) * scale, 1)
        parts.append(f'<line class="grid" x1="{x}" y1="0" x2="{x}" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{x}" y="{bottom + 12}">{short(value)}</text>')
    for k, (label, value, spread) in enumerate(rows):
        y = 18 * k + 10
        x0, x, x1 = (round(start + (v - low) * scale, 1) for v in (value - spread, value, value + spread))
        parts.append(f'<text class="end" x="{start - 8}" y="{y + 4}">{_named(label, 28)}</text>')
        parts.append(f'<line class="line one" x1="{x0}" y1="{y}" x2="{x1}" y2="{y}"/>')
        parts.append(f'<circle class="dot one" cx="{x}" cy="{y}" r="4"/>')
    return _wrap("".join(parts), title, (width, bottom + 18))


def _named(label: str, longest: int = LONGEST) -> str:
    """A label cut to its room, whole under the pointer."""
    whole = cut(label, longest)
    return escape(whole) + ("" if whole == label else f"<title>{escape(label)}</title>")


def _wrap(inside: str, title: str, size: tuple[int, int]) -> str:
    return f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(title)}">{inside}</svg>'


def _above(low: float, high: float) -> float:
    return high if high > low else low + (abs(low) or 1.0)


def _size(span: float) -> float:
    return span if span > 0 else 1.0


STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#4d5b69}.end{text-anchor:end}.middle{text-anchor:middle}"
    ".grid{stroke:#dde3ea}.axis{stroke:#8794a1}.line{fill:none;stroke-width:1.8}"
    ".k0{stroke:#1a6985;fill:#1a6985}.k1{stroke:#a8431f;fill:#a8431f}.k2{stroke:#2f7d32;fill:#2f7d32}.line{fill:none}"
)
"""Of drawings that stand alone."""


def lines_as_svg(lines: dict[str, list[tuple[float, float]]], title: str) -> str:
    """Named lines in one file of their own."""
    points = [point for one in lines.values() for point in one]
    if not points:
        points = [(0.0, 0.0)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    room = 0.08 * _size(max(ys) - min(ys))
    size = (480, 280)
    plot = Plot((min(xs), max(xs)), (min(ys) - room, max(ys) + room), titles=(title, ""), size=size)
    for k, (name, one) in enumerate(lines.items()):
        if len(one) > 1:
            plot.line(one, f"k{k % 3}")
        plot.dots(one, f"k{k % 3}", 3)
        plot.parts.append(f'<text x="{LEFT + 8 + 110 * k}" y="12" class="k{k % 3}" stroke="none">{escape(name)}</text>')
    inside = f"<style>{STYLE}</style>" + "".join(plot.parts)
    return _wrap(inside, title, size).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
