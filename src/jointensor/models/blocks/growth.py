"""Rows of labels that a fitted model has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointensor.kernels.rows import ModeView, RowEntries, solve_rows

NEW_ROW_RIDGE = 0.05
"""Shrinkage of a new row to the mean of the known ones, as a share of its entries."""

NEW_ROW_ENTRIES = 5.0
"""The same as a number of entries, whatever the row has: it decides where a label has few."""


@dataclass(frozen=True)
class NewEntries:
    """Entries of which every one has a new label."""

    indices: Tensor  # (entries, modes)
    starts: tuple[int, ...]
    """The first new label of every mode."""
    noise: float = 0.0
    """Variance of the values around g, where it is known."""


def solve_new_rows(
    tables: Sequence[Tensor], modes: Sequence[int], columns: Tensor, new: NewEntries, targets: Tensor, *, sums: bool
) -> None:
    """Solve for the rows of new labels in one table ``(I_k, R)`` after the other, in place.

    ``columns``: the row of every table that the entries look up, ``(entries, tables)``.
    """
    for k, mode in enumerate(modes):
        first = new.starts[mode]
        chosen = new.indices[:, mode] >= first
        if not chosen.any():
            continue
        shifted = columns[chosen].clone()
        shifted[:, k] -= first
        others = [m for m in range(len(tables)) if m != k]
        table = tables[k][first:]
        view = ModeView.of(shifted, k, others, len(table))
        prior = table.clone() if len(tables) == 1 else tables[k][:first].mean(dim=0).expand_as(table).clone()
        fixed = [tables[m] for m in others]
        wanted = targets[chosen]
        if sums:  # pairs of the other modes do not depend on these rows
            rows = torch.stack([tables[m][columns[chosen][:, m]] for m in others])  # (others, entries, R)
            wanted = wanted - sum_of_pairs(rows)
        # mean square of the products of the other rows: a ridge means the same whatever their scale
        scale = 1.0 if not fixed else float(torch.stack([other.square().mean() for other in fixed]).prod())
        ridge = NEW_ROW_RIDGE * view.counts.to(table.dtype) * scale + NEW_ROW_ENTRIES * scale
        solve_rows(RowEntries(view, fixed, wanted, sums=sums), ridge, table, evaluate=False, prior=prior)


def sum_of_pairs(rows: Tensor) -> Tensor:
    """Σ_{n<m} ⟨v_n, v_m⟩ of every entry, ``(modes, entries, R)`` → ``(entries,)``."""
    return 0.5 * (rows.sum(dim=0).square() - rows.square().sum(dim=0)).sum(dim=1)
