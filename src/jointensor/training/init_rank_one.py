"""Initial CP components: the rank-one term that validates best, then the next one on the residuals.

CP fitted from a random start often ends with two components on one and a third one lost. A rank-one term
has far fewer wrong valleys, is cheap to try several times, and validation entries tell a component
from a single large value, or from labels with few entries: a component explains unseen entries about as
well as seen ones. In very sparse tensors nearly all random starts are lost; there, others begin in the directions
in which fibers agree.

Two entries that differ in one mode only have, in expectation over everything else, the product of the components' rows
of their two labels. So the leading eigenvectors of the sum of such products, X_(n) X_(n)ᵀ without its diagonal,
span the components' rows of mode n; far fewer entries are enough for that than for a random start to find them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jointensor.data.store import Entries
from jointensor.random_state import Generators

RANDOM_STARTS = 16
"""Random starts per component, run side by side."""

SWEEPS = 10
"""Exact updates of every mode per start."""

ROW_SHRINKAGE = 3.0
"""Shrinkage of a row, in entries."""

MIN_GENERALISATION, SURE_GENERALISATION = 0.8, 0.95
"""Ratio of explained validation variance to explained training variance: below the first, a component is refused; from
the second on, no other starts are tried. Planted components reach 0.95 and more; components that are fitted to a
handful of ratings per label stay below 0.8."""

MAX_ENTRIES = 200_000
"""Entries that components are fitted to; more would not change an initialisation."""

MAX_FIBER_ENTRIES, EXTRA_DIRECTIONS, MAX_DIRECTIONS = 1_000_000, 4, 16
"""Entries whose fibers are compared; directions beyond the number of components, and most directions in all."""

POWER_ITERATIONS = 12
"""Multiplications by the matrix; the leading directions dominate by then."""

MIN_SHARED_ENTRIES = 1000
"""Entries in shared fibers below which there are no directions."""


def rank_one_components(
    train: Entries,
    valid: Entries,
    shape: tuple[int, ...],
    rank: int,
    generators: Generators,
    general: float = MIN_GENERALISATION,
) -> list[Tensor]:
    """Up to ``rank`` components, as one matrix ``(I_n, found)`` per mode.

    A component that explains validation entries (training entries, where there are none) much worse than
    training entries, less than ``general`` times as much, ends the search.
    """
    whole, train = train, at_most(train, MAX_ENTRIES, generators)
    valid = at_most(valid, MAX_ENTRIES, generators) if len(valid) else train
    spaces: list[Tensor | None] = []
    found: list[list[Tensor]] = []
    for _ in range(rank):
        best = _best(train, valid, [_within(size, None, generators) for size in shape])
        if not best.share >= SURE_GENERALISATION:  # lost, perhaps
            spaces = spaces or _directions(whole, shape, rank, generators)
            other = _best(train, valid, [_within(*one, generators) for one in zip(shape, spaces, strict=True)])
            best = other if other.gain > best.gain else best
        if not best.gain > 0 or best.share < general:
            break
        found.append(best.factors)
        train, valid = (_minus(one, best.factors) for one in (train, valid))
    return [torch.cat([factors[n] for factors in found], dim=1) for n in range(len(shape))] if found else []


def _minus(entries: Entries, factors: list[Tensor]) -> Entries:
    """Residuals after one more component, factors ``(I_n, 1)`` each."""
    return Entries(entries.indices, entries.values - _products(factors, entries.indices).squeeze(1))


class Component(NamedTuple):
    """A rank-one term; the better one explains more of the validation entries."""

    gain: float
    """Share of the squared validation values that it explains."""
    share: float
    """The same, as a share of what it explains of the training entries."""
    factors: list[Tensor]  # N × (I_n, 1)


def _best(train: Entries, valid: Entries, starts: list[Tensor]) -> Component:
    """The best of the components that several starts lead to."""
    tries = _fit(train, starts)
    explained = _explained(valid, tries)  # (tries,)
    best = int(explained.argmax())
    factors = [table[:, best : best + 1] for table in tries]
    gain, seen = float(explained[best]), float(_explained(train, factors))
    return Component(gain, gain / seen if seen > 0 else 0.0, factors)


def _directions(sample: Entries, shape: tuple[int, ...], rank: int, generators: Generators) -> list[Tensor | None]:
    """Directions in which the fibers along every mode agree."""
    some, width = at_most(sample, MAX_FIBER_ENTRIES, generators), min(rank + EXTRA_DIRECTIONS, MAX_DIRECTIONS)
    return [leading_directions(some.indices, some.values, shape, n, width, generators) for n in range(len(shape))]


def _within(size: int, space: Tensor | None, generators: Generators) -> Tensor:
    """Random starts ``(I_n, tries)`` in a space, or anywhere where there is none."""
    if space is None:
        return torch.randn(size, RANDOM_STARTS, device=generators.device, generator=generators.local)
    return (
        size**0.5
        * space
        @ torch.randn(space.shape[1], RANDOM_STARTS, device=generators.device, generator=generators.local)
    )


def _explained(sample: Entries, factors: list[Tensor]) -> Tensor:
    """Share of the squared values that each column explains, ``(columns,)``; minus infinity where it is not finite."""
    errors = ((sample.values[:, None] - _products(factors, sample.indices)) ** 2).sum(dim=0)  # (columns,)
    share = 1 - errors / (sample.values**2).sum().clamp_min(1e-30)
    return share.nan_to_num(nan=float("-inf"), neginf=float("-inf"))


def _fit(sample: Entries, tables: list[Tensor]) -> list[Tensor]:
    """Ridge least squares of rank one, mode by mode, for several starts ``(I_n, tries)`` at once."""
    for _ in range(SWEEPS):
        for n, table in enumerate(tables):
            others = _products(tables, sample.indices, skip=n)  # (entries, tries)
            scale = others.square().mean(dim=0).sqrt().clamp_min(1e-12)
            others = others / scale
            column = sample.indices[:, n]
            top = torch.zeros_like(table).index_add_(0, column, others * sample.values[:, None])
            bottom = torch.zeros_like(table).index_add_(0, column, others.square())
            tables[n] = top / (bottom + ROW_SHRINKAGE) / scale
    return _balanced(tables)


def _products(tables: list[Tensor], indices: Tensor, skip: int = -1) -> Tensor:
    """Products over modes, ``(entries, columns)``."""
    rows = [table.index_select(0, indices[:, n]) for n, table in enumerate(tables) if n != skip]
    product = rows[0]
    for row in rows[1:]:
        product = product * row
    return product


def _balanced(tables: list[Tensor]) -> list[Tensor]:
    """The same products from factors of equal size."""
    sizes = torch.stack([table.square().mean(dim=0).sqrt().clamp_min(1e-30) for table in tables])  # (modes, columns)
    common = sizes.log().mean(dim=0).exp()  # (columns,)
    return [table / size * common for table, size in zip(tables, sizes, strict=True)]


def at_most(sample: Entries, entries: int, generators: Generators) -> Entries:
    """At most ``entries`` of a sample, chosen at random where there are more."""
    if len(sample) <= entries:
        return sample
    chosen = torch.randperm(len(sample), device=generators.device, generator=generators.local)[:entries]
    return Entries(sample.indices[chosen], sample.values[chosen])


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
