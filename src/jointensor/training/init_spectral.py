"""Directions in which the fibers of a tensor agree: where rank-one fits of CP components start.

Two entries that differ in one mode only have, in expectation over everything else, the product of the components' rows
of their two labels. So the leading eigenvectors of the sum of such products, X_(n) X_(n)ᵀ without its diagonal,
span the components' rows of mode n; far fewer entries are enough for that than for a random start to find them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jointensor.random_state import Generators

POWER_ITERATIONS = 12
"""Multiplications by the matrix; the leading directions dominate by then."""

MIN_SHARED_ENTRIES = 1000
"""Entries in shared fibers below which there are no directions."""


def leading_directions(
    indices: Tensor, values: Tensor, shape: tuple[int, ...], mode: int, width: int, generators: Generators
) -> Tensor | None:
    """Orthonormal columns ``(I_n, width)`` at most, the strongest first; ``None`` where hardly any fiber is shared."""
    fiber, shared = _fibers(indices, shape, mode)
    rows, fiber, values = indices[shared, mode], fiber[shared], values[shared]
    if len(values) < MIN_SHARED_ENTRIES:
        return None
    size, count = shape[mode], int(fiber.max()) + 1
    diagonal = values.new_zeros(size).index_add_(0, rows, values.square())[:, None]
    found = torch.linalg.qr(torch.randn(size, min(width, size), device=generators.device, generator=generators.local)).Q
    for _ in range(POWER_ITERATIONS):
        sums = values.new_zeros(count, found.shape[1]).index_add_(0, fiber, values[:, None] * found[rows])
        grown = torch.zeros_like(found).index_add_(0, rows, values[:, None] * sums[fiber])
        found = torch.linalg.qr(grown - diagonal * found).Q
    return found


def _fibers(indices: Tensor, shape: tuple[int, ...], mode: int) -> tuple[Tensor, Tensor]:
    """Which fiber along a mode every entry is in, ``(entries,)``; and which entries are not alone in theirs."""
    fiber = torch.zeros_like(indices[:, 0])
    counts = fiber.new_tensor([len(fiber)])
    for m, size in enumerate(shape):
        if m != mode:  # one mode after the other: the number of all combinations may be beyond 64 bits
            _, fiber, counts = torch.unique(fiber * size + indices[:, m], return_inverse=True, return_counts=True)
    return fiber, counts[fiber] > 1
