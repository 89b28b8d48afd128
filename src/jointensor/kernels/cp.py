"""Values of CP: the reference in plain torch."""

from __future__ import annotations

from torch import Tensor


def multiply_modes(rows: Tensor) -> Tensor:
    """Elementwise product of the rows of all modes, ``(batch, modes, width)`` → ``(batch, width)``.

    One after the other: the gradient of ``prod`` looks for zeros, and a GPU has to wait for the answer.
    """
    first, *others = rows.unbind(dim=1)
    for other in others:
        first = first * other
    return first


def cp_values(stacked: Tensor, places: Tensor) -> Tensor:
    """Σ_r Π_n stacked(places_n, r) of the entries: ``(rows, R)`` and ``(batch, modes)`` → ``(batch,)``."""
    # index_select: its backward is far cheaper than that of nn.Embedding or fancy indexing
    rows = stacked.index_select(0, places.flatten()).view(*places.shape, stacked.shape[1])  # (batch, modes, R)
    return multiply_modes(rows).sum(dim=1)
