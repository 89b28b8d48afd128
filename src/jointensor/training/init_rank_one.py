"""Initial CP components: the rank-one term that validates best, then the next one on the residuals.

CP fitted from a random start often ends with two components on one and a third lost. A rank-one term
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

TRIES = 16
"""Random starts per component, run side by side."""

SWEEPS = 10
"""Exact updates of every mode per start."""

RIDGE = 3.0
"""Shrinkage of a row, in entries."""

GENERAL, CERTAIN = 0.8, 0.95
"""Least share of the explained training variance that a component explains of the validation variance. Planted
components reach 0.95 and more; what is fitted to a handful of ratings per label stays below 0.8."""

MOST = 200_000
"""Entries that are looked at; more would not change a first guess."""

IN_FIBERS, MORE, WIDEST = 1_000_000, 4, 16
"""Entries whose fibers are compared; directions beyond the number of components, and most of them."""


@dataclass(frozen=True)
class Sample:
    """Some entries and what is left of their values."""

    indices: Tensor  # (entries, modes)
    left: Tensor  # (entries,)

    def minus(self, factors: list[Tensor]) -> Sample:
        """What is left after one more component, factors ``(I_n, 1)`` each."""
        return Sample(self.indices, self.left - _products(factors, self.indices).squeeze(1))


def rank_one_components(
    train: Sample, valid: Sample, shape: tuple[int, ...], rank: int, generators: Generators, general: float = GENERAL
) -> list[Tensor]:
    """Up to ``rank`` components, as one matrix ``(I_n, found)`` per mode.

    A component that explains validation entries (training entries, where there are none) much worse than
    training entries, less than ``general`` times as much, ends the search.
    """
    whole, train = train, at_most(train, MOST, generators)
    valid = at_most(valid, MOST, generators) if len(valid.left) else train
    spaces: list[Tensor | None] = []
    found: list[list[Tensor]] = []
    for _ in range(rank):
        best = _best(train, valid, [_within(size, None, generators) for size in shape])
        if not best.share >= CERTAIN:  # lost, perhaps
            spaces = spaces or _directions(whole, shape, rank, generators)
            other = _best(train, valid, [_within(*one, generators) for one in zip(shape, spaces, strict=True)])
            best = other if other.gain > best.gain else best
        if not best.gain > 0 or best.share < general:
            break
        found.append(best.factors)
        train, valid = train.minus(best.factors), valid.minus(best.factors)
    return [torch.cat([factors[n] for factors in found], dim=1) for n in range(len(shape))] if found else []


class Guess(NamedTuple):
    """A component; the better one explains more of the validation entries."""

    gain: float
    """Share of the squared validation values that it explains."""
    share: float
    """The same, as a share of what it explains of the training entries."""
    factors: list[Tensor]  # N × (I_n, 1)


def _best(train: Sample, valid: Sample, starts: list[Tensor]) -> Guess:
    """What the best of several starts leads to."""
    tries = _fit(train, starts)
    explained = _explained(valid, tries)  # (tries,)
    best = int(explained.argmax())
    factors = [table[:, best : best + 1] for table in tries]
    gain, seen = float(explained[best]), float(_explained(train, factors))
    return Guess(gain, gain / seen if seen > 0 else 0.0, factors)


def _directions(sample: Sample, shape: tuple[int, ...], rank: int, generators: Generators) -> list[Tensor | None]:
    """In which fibers along every mode agree."""
    some, width = at_most(sample, IN_FIBERS, generators), min(rank + MORE, WIDEST)
    return [leading_directions(some.indices, some.left, shape, n, width, generators) for n in range(len(shape))]


def _within(size: int, space: Tensor | None, generators: Generators) -> Tensor:
    """Random starts ``(I_n, tries)`` in a space, or anywhere where there is none."""
    if space is None:
        return torch.randn(size, TRIES, device=generators.device, generator=generators.local)
    return size**0.5 * space @ torch.randn(space.shape[1], TRIES, device=generators.device, generator=generators.local)


def _explained(sample: Sample, factors: list[Tensor]) -> Tensor:
    """Share of the squared values that each column explains, ``(columns,)``; minus infinity where it is not finite."""
    errors = ((sample.left[:, None] - _products(factors, sample.indices)) ** 2).sum(dim=0)  # (columns,)
    share = 1 - errors / (sample.left**2).sum().clamp_min(1e-30)
    return share.nan_to_num(nan=float("-inf"), neginf=float("-inf"))


def _fit(sample: Sample, tables: list[Tensor]) -> list[Tensor]:
    """Ridge least squares of rank one, mode by mode, for several starts ``(I_n, tries)`` at once."""
    for _ in range(SWEEPS):
        for n, table in enumerate(tables):
            others = _products(tables, sample.indices, skip=n)  # (entries, tries)
            scale = others.square().mean(dim=0).sqrt().clamp_min(1e-12)
            others = others / scale
            column = sample.indices[:, n]
            top = torch.zeros_like(table).index_add_(0, column, others * sample.left[:, None])
            bottom = torch.zeros_like(table).index_add_(0, column, others.square())
            tables[n] = top / (bottom + RIDGE) / scale
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
    if len(sample.left) <= entries:
        return sample
    chosen = torch.randperm(len(sample.left), device=generators.device, generator=generators.local)[:entries]
    return Sample(sample.indices[chosen], sample.left[chosen])
