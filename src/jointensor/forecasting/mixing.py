"""Weights of the members of a forecast, none negative, with the lowest squared error on rolling origins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from jointensor.forecasting.rows import Array

EXCESS_PENALTY = 0.2
"""Share of a member's squared error beyond that of the best one that counts against its weight: a few weeks are seen,
so that a weight for a member that is far behind is mostly chance."""

NEIGHBOUR_WEIGHT = 0.5
"""Weight of the errors of the groups of steps ahead next to one."""


def bucket_starts(horizon: int) -> NDArray[np.int64]:
    """Steps ahead at which groups with weights of their own begin: 1, 2, 3, 5, 9, 17 …"""
    starts = [1, 2, 3]
    while starts[-1] * 2 - 1 <= horizon:
        starts.append(starts[-1] * 2 - 1)
    return np.array([one for one in starts if one <= horizon], dtype=np.int64)


def bucket_of(ahead: NDArray[np.integer], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Group of steps ahead; what is farther than any belongs to the last group."""
    return np.searchsorted(starts, ahead, side="right") - 1


def second_moments(errors: Array, group: NDArray[np.int64], groups: int) -> Array:
    """Mean products of the members' errors ``(rows, members)`` in every group, ``(groups, members, members)``.

    A group without rows has those of the nearest one with some.
    """
    found = [errors[group == k].T @ errors[group == k] / max((group == k).sum(), 1) for k in range(groups)]
    there = np.unique(group)
    return np.array([found[there[np.argmin(np.abs(there - k))]] for k in range(groups)])


def fit_weights(moments: Array) -> Array:
    """Weights of every group that sum to 1, ``(groups, members)``, from :func:`second_moments`.

    A mixture is used where it is ahead of the best single member on the group itself.
    """
    found = []
    for k, own in enumerate(moments):
        near = [moments[j] for j in (k - 1, k + 1) if 0 <= j < len(moments)]
        mixed = _lowest(own + NEIGHBOUR_WEIGHT * sum(near, np.zeros_like(own)))
        single = np.eye(len(own))[int(np.argmin(np.diag(own)))]
        found.append(mixed if mixed @ own @ mixed < single @ own @ single else single)
    return np.array(found)


def _lowest(second: Array) -> Array:
    """Weights w >= 0 that sum to 1 with the lowest w'Sw + c'w, where c is the penalty for being behind the best."""
    sizes = np.diag(second)
    scale = max(float(sizes.min()), 1e-300)
    penalty = EXCESS_PENALTY * (sizes / scale - 1)
    heavy = 1e4 * max(float(sizes.max()) / scale, 1.0)  # times (sum of w)^2, a constant
    ones = np.ones(len(sizes))
    # c'w is w'(c1' + 1c')w/2 where w sums to 1
    quadratic = second / scale + (np.outer(penalty, ones) + np.outer(ones, penalty)) / 2 + heavy * np.outer(ones, ones)
    values, vectors = np.linalg.eigh(quadratic)
    root = np.sqrt(np.maximum(values, 1e-9))[:, None] * vectors.T
    found, _ = nnls(
        np.vstack([root, 1e3 * np.sqrt(heavy) * ones]), np.append(np.zeros(len(sizes)), 1e3 * np.sqrt(heavy))
    )
    return found / found.sum() if found.sum() > 0 else np.eye(len(sizes))[int(np.argmin(sizes))]
