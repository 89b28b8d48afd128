"""Multilinear components that can be read: normalised, sorted by weight, sign-fixed, with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jointensor.data.modes import Mode
from jointensor.errors import DataError
from jointensor.evaluation.pictures import BLUE, save_picture


@dataclass(frozen=True)
class Components:
    """CP components in a form that does not depend on how they were found."""

    weights: NDArray[np.float64]
    """Size of each component, largest first; shape ``(R,)``."""
    factors: tuple[NDArray[np.float64], ...]
    """One ``(I_n, R)`` matrix per mode with columns of length one. In every mode but the first the
    entry of largest size is positive; the first mode carries the sign."""
    modes: tuple[Mode, ...]

    def top(self, component: int, mode: int, count: int = 5) -> list[tuple[str, float]]:
        """Labels with the largest entries of a component, by absolute value."""
        column = self.factors[mode][:, component]
        order = np.argsort(-np.abs(column), kind="stable")[:count]
        return [(self.modes[mode].label(int(i)), float(column[i])) for i in order]

    def to_dict(self, count: int = 5) -> list[dict[str, Any]]:
        """Plain data: per component its weight and the top labels of every mode."""
        return [
            {
                "weight": float(weight),
                "top": {mode.name: self.top(r, n, count) for n, mode in enumerate(self.modes)},
            }
            for r, weight in enumerate(self.weights)
        ]


def read_components(factors: Sequence[ArrayLike], modes: Sequence[Mode]) -> Components:
    """Normalise the factor matrices A_n of a CP block."""
    if not len(factors):
        raise DataError("this model has no multilinear components (R = 0)")
    tables = [np.asarray(factor, dtype=np.float64).copy() for factor in factors]
    norms = np.stack([np.linalg.norm(table, axis=0) for table in tables])  # (modes, R)
    weights = norms.prod(axis=0)  # (R,)
    for table, norm in zip(tables, norms, strict=True):
        table /= np.where(norm > 0, norm, 1.0)
    for table in tables[1:]:
        largest = np.abs(table).argmax(axis=0)
        sign = np.where(table[largest, np.arange(table.shape[1])] < 0, -1.0, 1.0)  # (R,)
        table *= sign
        tables[0] *= sign
    order = np.argsort(-weights, kind="stable")
    return Components(weights[order], tuple(table[:, order] for table in tables), tuple(modes))


MAX_DRAWN = 20
"""Components in a picture: laying out 330 rows of panels takes an hour, and PNG has no room for them."""


def draw_components(components: Components, path: Path, count: int = 10) -> None:
    """Draw the :data:`MAX_DRAWN` largest components: ordered modes as lines, others as bars of their top labels."""
    rows, columns = min(len(components.weights), MAX_DRAWN), len(components.modes)

    def draw(figure: Any) -> None:
        panels = figure.subplots(rows, columns, squeeze=False)
        for r in range(rows):
            for n, mode in enumerate(components.modes):
                _draw_panel(panels[r, n], components, r, n, count)
                if r == 0:
                    panels[r, n].set_title(_plain(mode.name))
            panels[r, 0].set_ylabel(f"component {r + 1}\nweight {components.weights[r]:.3g}")

    save_picture(path, (3.6 * columns, 2.0 * rows + 0.4), draw)


def _draw_panel(panel: Any, components: Components, component: int, mode: int, count: int) -> None:
    panel.axhline(0, color="#b8c2cc", linewidth=0.8)
    panel.tick_params(labelsize=7)
    if components.modes[mode].order != "none":
        panel.plot(components.factors[mode][:, component], color=BLUE, linewidth=1.2)
        places = np.unique(np.linspace(0, components.modes[mode].size - 1, 4).astype(int))
        panel.set_xticks(places, [_plain(components.modes[mode].label(int(i))[:10]) for i in places])
        return
    top = components.top(component, mode, count)
    panel.bar(range(len(top)), [value for _, value in top], color=BLUE)
    panel.set_xticks(range(len(top)), [_plain(label[:12]) for label, _ in top], rotation=45, ha="right")


def _plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")
