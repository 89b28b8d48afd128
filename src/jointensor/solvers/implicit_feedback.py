"""The table y of implicit feedback (:class:`jointensor.models.blocks.fm.ImplicitFeedback`), all else fixed.

An entry of label u adds ⟨Σ_{j ∈ N(u)} y(j)/√n, h_e⟩, so the least-squares problem does not fall apart into rows. Its
matrix is Mᵀ C M + Λ, with M the weights of pairs that occur together and C one small matrix per u; conjugate gradients
never form it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from jointensor.models.blocks.fm import ImplicitFeedback

MAX_STEPS = 25
"""Of conjugate gradients: sweeps come back to the table, so it need not be exact."""

RESIDUAL_TOLERANCE = 1e-4
"""Share of the first residual at which they stop."""


class Seen(NamedTuple):
    """Weights of pairs of labels that occur together, and their transpose, in the format that multiplies fastest."""

    matrix: Tensor  # (I_a, I_b)
    turned: Tensor  # (I_b, I_a)

    @classmethod
    def of(cls, one: ImplicitFeedback) -> Seen:
        """M and Mᵀ of a table of implicit labels."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the format a beta
            matrix = one.matrix()
            return cls(matrix.to_sparse_csr(), matrix.t().coalesce().to_sparse_csr())


def solve_implicit_feedback(
    one: ImplicitFeedback, seen: Seen, systems: tuple[Tensor, Tensor], ridge: Tensor, prior: Tensor
) -> Tensor:
    """Change the table to the solution; returns by how much z changes, ``(I_a, R)``.

    Parameters
    ----------
    one, seen
        Its table is changed in place.
    systems
        Σ h hᵀ and Σ h y over the entries of every label of mode a, y the residuals of everything else,
        ``(I_a, R, R)`` and ``(I_a, R)``.
    ridge, prior
        Of every component ``(R,)``, and the prior mean of the rows, ``(I_b, R)``.
    """
    table, (gram, right) = one.table.detach(), systems

    def system(change: Tensor) -> Tensor:
        summed = seen.matrix @ change  # (I_a, R)
        return seen.turned @ torch.bmm(gram, summed[:, :, None]).squeeze(2) + ridge * change

    change = conjugate_gradients(system, seen.turned @ right + ridge * (prior - table))
    table.add_(change)
    return seen.matrix @ change


def conjugate_gradients(system: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """x with ``system(x) = right`` for a symmetric positive system; an approximation where it is singular."""
    x, residual = torch.zeros_like(right), right.clone()
    direction = residual.clone()
    size = residual.square().sum()
    tolerance = RESIDUAL_TOLERANCE**2 * float(size)
    for _ in range(MAX_STEPS):
        if not float(size) > tolerance:
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
