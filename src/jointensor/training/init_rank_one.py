"""Initial CP components: the rank-one term that validates best, then the next one on the residuals.

CP fitted from a random start often ends with two components on one and a third one lost. A rank-one term
has far fewer wrong valleys, is cheap to try several times, and validation entries tell a component
from a single large value, or from labels with few entries: a component explains unseen entries about as
well as seen ones. In very sparse tensors nearly all random starts are lost; there, others begin in the directions
in which fibers agree (:mod:`jointensor.training.init_spectral`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from jointensor.random_state import Generators
from jointensor.training.init_spectral import leading_directions

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


@dataclass(frozen=True)
class Sample:
    """Entries with the residuals of their values."""

    indices: Tensor  # (entries, modes)
    residuals: Tensor  # (entries,)

    def minus(self, factors: list[Tensor]) -> Sample:
        """Residuals after one more component, factors ``(I_n, 1)`` each."""
        return Sample(self.indices, self.residuals - _products(factors, self.indices).squeeze(1))


def rank_one_components(
    train: Sample,
    valid: Sample,
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
    valid = at_most(valid, MAX_ENTRIES, generators) if len(valid.residuals) else train
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
        train, valid = train.minus(best.factors), valid.minus(best.factors)
    return [torch.cat([factors[n] for factors in found], dim=1) for n in range(len(shape))] if found else []


class Component(NamedTuple):
    """A rank-one term; the better one explains more of the validation entries."""

    gain: float
    """Share of the squared validation values that it explains."""
    share: float
    """The same, as a share of what it explains of the training entries."""
    factors: list[Tensor]  # N × (I_n, 1)


def _best(train: Sample, valid: Sample, starts: list[Tensor]) -> Component:
    """The best of the components that several starts lead to."""
    tries = _fit(train, starts)
    explained = _explained(valid, tries)  # (tries,)
    best = int(explained.argmax())
    factors = [table[:, best : best + 1] for table in tries]
    gain, seen = float(explained[best]), float(_explained(train, factors))
    return Component(gain, gain / seen if seen > 0 else 0.0, factors)


def _directions(sample: Sample, shape: tuple[int, ...], rank: int, generators: Generators) -> list[Tensor | None]:
    """Directions in which the fibers along every mode agree."""
    some, width = at_most(sample, MAX_FIBER_ENTRIES, generators), min(rank + EXTRA_DIRECTIONS, MAX_DIRECTIONS)
    return [leading_directions(some.indices, some.residuals, shape, n, width, generators) for n in range(len(shape))]


def _within(size: int, space: Tensor | None, generators: Generators) -> Tensor:
    """Random starts ``(I_n, tries)`` in a space, or anywhere where there is none."""
    if space is None:
        return torch.randn(size, RANDOM_STARTS, device=generators.device, generator=generators.local)
    return (
        size**0.5
        * space
        @ torch.randn(space.shape[1], RANDOM_STARTS, device=generators.device, generator=generators.local)
    )


def _explained(sample: Sample, factors: list[Tensor]) -> Tensor:
    """Share of the squared values that each column explains, ``(columns,)``; minus infinity where it is not finite."""
    errors = ((sample.residuals[:, None] - _products(factors, sample.indices)) ** 2).sum(dim=0)  # (columns,)
    share = 1 - errors / (sample.residuals**2).sum().clamp_min(1e-30)
    return share.nan_to_num(nan=float("-inf"), neginf=float("-inf"))


def _fit(sample: Sample, tables: list[Tensor]) -> list[Tensor]:
    """Ridge least squares of rank one, mode by mode, for several starts ``(I_n, tries)`` at once."""
    for _ in range(SWEEPS):
        for n, table in enumerate(tables):
            others = _products(tables, sample.indices, skip=n)  # (entries, tries)
            scale = others.square().mean(dim=0).sqrt().clamp_min(1e-12)
            others = others / scale
            column = sample.indices[:, n]
            top = torch.zeros_like(table).index_add_(0, column, others * sample.residuals[:, None])
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


def at_most(sample: Sample, entries: int, generators: Generators) -> Sample:
    """At most ``entries`` of a sample, chosen at random where there are more."""
    if len(sample.residuals) <= entries:
        return sample
    chosen = torch.randperm(len(sample.residuals), device=generators.device, generator=generators.local)[:entries]
    return Sample(sample.indices[chosen], sample.residuals[chosen])
