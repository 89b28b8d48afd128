"""The table y of implicit labels (:class:`jointensor.models.blocks.Company`), solved with everything else fixed.

An entry of label u adds ⟨Σ_{j ∈ N(u)} y(j)/√n, h_e⟩, so the least-squares problem does not fall apart into rows. Its
matrix is Mᵀ C M + Λ, with M who was seen with whom and C one small matrix per u: conjugate gradients never form it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from jointensor.models.blocks import Company

CHUNK = 1 << 14
"""Entries whose outer products are formed at a time."""

STEPS = 25
CLOSE = 1e-4
"""Most steps of conjugate gradients, and the share of the residual at which they stop."""


class Entries(NamedTuple):
    """What the entries of the block look like from the table of implicit labels."""

    labels: Tensor
    """u of every entry, ``(entries,)``."""
    rows: Sequence[Tensor]
    """Labels of the other modes, ``(entries,)`` each."""
    others: Sequence[Tensor]
    """Vectors of the other modes, ``(I_m, R)`` each."""

    def h(self, part: slice) -> Tensor:
        """Σ_m v_m of some entries, ``(chunk, R)``."""
        picked = [other.index_select(0, row[part]) for row, other in zip(self.rows, self.others, strict=True)]
        return torch.stack(picked).sum(dim=0)


class Seen(NamedTuple):
    """Who was seen with whom, both ways round, in the format that multiplies fastest."""

    matrix: Tensor  # (I_a, I_b)
    turned: Tensor  # (I_b, I_a)

    @classmethod
    def of(cls, one: Company) -> Seen:
        """M and Mᵀ of a table of implicit labels."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the format a beta
            matrix = one.matrix()
            return cls(matrix.to_sparse_csr(), matrix.t().coalesce().to_sparse_csr())


def solve_company(  # noqa: PLR0913 - a least-squares problem
    one: Company, seen: Seen, entries: Entries, left: Tensor, weights: Tensor | None, ridge: Tensor, prior: Tensor
) -> Tensor:
    """Change the table to the solution; returns by how much the values of the entries change, ``(entries,)``.

    Parameters
    ----------
    one, seen
        Its table is changed in place.
    entries
        What the entries look like from here.
    left, weights
        What the block and the others leave of the values, ``(entries,)``, and the entries' weights.
    ridge, prior
        Of every component ``(R,)``, and what it draws the rows to, ``(I_b, R)``.
    """
    table = one.table.detach()
    gram, right = _normal_equations(one, entries, left, weights)  # (I_a, R, R), (I_a, R)

    def system(change: Tensor) -> Tensor:
        summed = seen.matrix @ change  # (I_a, R)
        return seen.turned @ torch.bmm(gram, summed[:, :, None]).squeeze(2) + ridge * change

    change = conjugate_gradients(system, seen.turned @ right + ridge * (prior - table))
    table.add_(change)
    shift = seen.matrix @ change  # (I_a, R)
    parts = [(entries.h(part) * shift.index_select(0, entries.labels[part])).sum(dim=1) for part in _chunks(len(left))]
    return torch.cat(parts)


def _normal_equations(one: Company, entries: Entries, left: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    rank = one.table.shape[1]
    gram, right = left.new_zeros(one.size, rank, rank), left.new_zeros(one.size, rank)
    for part in _chunks(len(left)):
        h, label = entries.h(part), entries.labels[part]
        weighed = h if weights is None else h * weights[part, None]
        gram.index_add_(0, label, weighed[:, :, None] * h[:, None, :])
        right.index_add_(0, label, weighed * left[part, None])
    return gram, right


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, count, CHUNK)]


def conjugate_gradients(system: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """x with ``system(x) = right`` for a symmetric positive system; as far as it gets where that is hopeless."""
    x, residual = torch.zeros_like(right), right.clone()
    direction = residual.clone()
    size = residual.square().sum()
    aim = CLOSE**2 * float(size)
    for _ in range(STEPS):
        if not float(size) > aim:
            break
        image = system(direction)
        step = size / (direction * image).sum()
        if not bool(torch.isfinite(step)):
            break
        x = x + step * direction
        residual = residual - step * image
        last, size = size, residual.square().sum()
        direction = residual + size / last * direction
    return x
