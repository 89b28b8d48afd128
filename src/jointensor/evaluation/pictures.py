"""PNG pictures by matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jointensor.atomic import write_whole
from jointensor.errors import MissingPackageError

DOTS_PER_INCH = 110

BLUE, RED, GREY = "#1f6f8b", "#c0392b", "#9aa7b4"


def save_picture(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Let ``draw`` fill a figure of so many inches, and write it.

    Raises
    ------
    MissingPackageError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingPackageError("drawing needs matplotlib: pip install jointensor[plot]") from None
    figure = Figure(figsize=size, layout="constrained")
    draw(figure)
    write_whole(path, lambda draft: figure.savefig(draft, dpi=DOTS_PER_INCH, format="png"))
