"""Compare factors with a known truth: CP components come in any order, sign and scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from jointensor.errors import DataError


@dataclass(frozen=True)
class Match:
    """Which component found is which component of the truth."""

    order: NDArray[np.int64]
    """``order[r]`` is the component found that matches component r of the truth."""
    congruence: NDArray[np.float64]
    """Per component of the truth: product over modes of the absolute cosines; 1 is identical."""


def match_factors(found: Sequence[ArrayLike], truth: Sequence[ArrayLike]) -> Match:
    """Best one-to-one matching of components, by the Hungarian method on their congruence.

    Parameters
    ----------
    found, truth
        One factor matrix ``(I_n, R)`` per mode; ``found`` may have more components than the truth.

    Examples
    --------
    >>> truth = [np.eye(3)[:, :2], np.eye(4)[:, :2]]
    >>> found = [-5 * truth[0][:, ::-1], 2 * truth[1][:, ::-1]]
    >>> match_factors(found, truth).order.tolist()
    [1, 0]
    """
    if len(found) != len(truth):
        raise DataError(f"{len(found)} factor matrices found, {len(truth)} in the truth")
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(found, truth, strict=True)]
    for n, (a, b) in enumerate(pairs):
        if a.ndim != 2 or a.shape[0] != b.shape[0] or a.shape[1] < b.shape[1]:
            raise DataError(f"mode {n}: factors of shape {a.shape} cannot be matched with {b.shape}")
    cosines = [np.abs(_unit(b).T @ _unit(a)) for a, b in pairs]  # N × (R truth, R found)
    congruence = np.prod(cosines, axis=0)
    rows, order = linear_sum_assignment(-congruence)
    return Match(order, congruence[rows, order])


def _unit(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(factor, axis=0)
    return factor / np.where(norms > 0, norms, 1.0)
