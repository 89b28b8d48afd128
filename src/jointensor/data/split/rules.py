"""Training, validation and test entries of a tensor in memory: seeded, disjoint, the same in every process.

``standard`` can be repeated with NumPy alone::

    p = numpy.random.default_rng(seed).permutation(n)
    test, rest = p[: n // 5], p[n // 5 :]
    valid, train = rest[: len(rest) // 10], rest[len(rest) // 10 :]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split.folds import Groups, groups_of
from jointensor.data.split.gaps import like_gaps
from jointensor.data.tensor import SparseTensor, join
from jointensor.errors import ConfigError

RULES = "standard, first:N, time:MODE, slices:MODE, group:MODE,MODE or like-gaps"
FOLD_RULES = "like-gaps, random or group:MODE,MODE"


@dataclass(frozen=True)
class Split:
    """Training, validation and test entries of one tensor."""

    train: SparseTensor
    """Entries that parameters are fitted to; at least one."""
    valid: SparseTensor
    """Entries that decide when training stops; may be empty."""
    test: SparseTensor
    """Entries for the final figures only; may be empty."""
    rule: str = "standard"
    """The rule of :func:`split` that made it."""
    seed: int = 0
    """Seed of the rule."""
    together: Groups = ()
    """Which entries are left out together where validation entries, or folds, are drawn."""

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise ConfigError(f"split '{self.rule}' leaves no training entries; lower the test share")


def split(
    tensor: SparseTensor, *, rule: str = "standard", test: float = 0.2, valid: float = 0.1, seed: int = 0
) -> Split:
    """Divide the entries of a tensor.

    Parameters
    ----------
    tensor
        All observed entries.
    rule
        ``standard``: at random. ``first:N``: the first N entries are for training, the others for
        testing. ``time:MODE``: the latest labels of a mode are for testing. ``slices:MODE``: whole
        labels, drawn at random. ``group:A,B``: entries that share their labels of these modes stay on
        one side, in validation too. ``like-gaps``: the same with groups in which cells are missing.
    test
        Share of all entries for testing; 0 for none.
    valid
        Share of the remaining entries for validation. With ``time`` and ``slices`` it is drawn at
        random, since a label without training entries says nothing about overfitting.
    seed
        Seed of the permutation.

    Examples
    --------
    >>> parts = split(SparseTensor.from_dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), valid=0.2)
    >>> len(parts.train), len(parts.valid), len(parts.test)
    (4, 1, 1)
    """
    check_share("test", test)
    check_share("valid", valid)
    if seed < 0:
        raise ConfigError(f"the split seed is {seed}; it must be 0 or more")
    kind, _, argument = rule.partition(":")
    order = np.random.default_rng(seed).permutation(len(tensor))
    if kind == "standard" and not argument:
        test_at, rest = _cut(order, test)
    elif kind == "first":
        test_at, rest = _first(order, argument)
    elif kind in ("time", "slices") and argument:
        test_at, rest = _whole_labels(tensor, order, tensor.mode(argument), test, latest=kind == "time", seed=seed)
    elif kind == "group" and argument:
        return _by_group(tensor, _modes_of(tensor, argument), test, valid, seed, rule)
    elif kind == "like-gaps" and not argument:
        return _by_group(tensor, like_gaps(tensor, seed), test, valid, seed, rule)
    else:
        raise ConfigError(f"split '{rule}' is not known; give {RULES}")
    valid_at, train_at = _cut(rest, valid)
    return Split(tensor.take(train_at), tensor.take(valid_at), tensor.take(test_at), rule, seed)


def share_of(n: int, share: float) -> int:
    """``floor(n · share)`` in decimal arithmetic: a fifth of n is exactly ``n // 5``."""
    return int(n * Fraction(str(share)))


def check_share(name: str, share: float) -> None:
    """Refuse a share outside [0, 1)."""
    if not 0 <= share < 1:
        raise ConfigError(f"the {name} share is {share:g}; it must be at least 0 and less than 1")


def _cut(order: NDArray[np.integer], share: float) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    n = share_of(len(order), share)
    return order[:n], order[n:]


def _first(order: NDArray[np.integer], argument: str) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    if not argument.isdecimal() or not 0 < int(argument) <= len(order):
        raise ConfigError(f"split 'first:{argument}': give a number of entries between 1 and {len(order)}")
    early = order < int(argument)
    return np.sort(order[~early]), order[early]


def _whole_labels(
    tensor: SparseTensor, order: NDArray[np.integer], mode: int, share: float, *, latest: bool, seed: int
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Test and other positions: whole labels, the latest or random ones, until their entries reach the share."""
    column = tensor.indices[:, mode]
    labels, counts = np.unique(column, return_counts=True)
    if latest:
        along = tensor.modes[mode]
        ranks = np.argsort(-(labels if along.labels is None else along.coordinates()[labels]), kind="stable")
    else:
        ranks = np.random.default_rng([seed, 1]).permutation(len(labels))
    wanted = share_of(len(tensor), share)
    if wanted and len(labels) < 2:
        raise ConfigError(f"mode '{tensor.modes[mode].name}' has one label with entries; it cannot be split by labels")
    taken = int(np.searchsorted(np.cumsum(counts[ranks]), wanted)) + 1 if wanted else 0
    held = np.isin(column[order], labels[ranks[: min(taken, len(labels) - 1)]])
    return np.sort(order[held]), order[~held]


def with_folds(parts: Split, folds: str, valid: float) -> Split:
    """The same with validation entries that are drawn in groups, as folds of a search will be.

    Parameters
    ----------
    parts
        Of the rule ``standard`` or ``first``; others say themselves what belongs together.
    folds
        ``random``: entry by entry. ``group:A,B``: those with the same labels of these modes. ``like-gaps``: so that
        they look most like what is not learnt from, test entries and missing cells.
    valid
        Share of the groups that validates; one at least, unless it is 0.
    """
    kind, argument = fold_rule(folds)
    if kind == "random" or parts.rule.partition(":")[0] not in ("standard", "first"):
        return parts
    entries = join(parts.train, parts.valid)
    groups = _modes_of(entries, argument) if kind == "group" else like_gaps(entries, parts.seed)
    if not groups:
        return parts
    count, member = groups_of(entries, groups)
    if valid and count < 2:
        raise ConfigError(f"folds '{folds}': all entries are in one group, none is left to validate; give other modes")
    order = np.random.default_rng([parts.seed, 2]).permutation(count)
    validates = np.isin(member, order[: max(share_of(count, valid), int(valid > 0))])  # (entries,)
    train_, valid_ = (entries.take(np.flatnonzero(one)) for one in (~validates, validates))
    return replace(parts, train=train_, valid=valid_, together=groups)


def fold_rule(folds: str) -> tuple[str, str]:
    """``like-gaps``, ``random`` or ``group``, and the modes of groups."""
    kind, _, argument = folds.partition(":")
    if (kind in ("random", "like-gaps")) == bool(argument) or kind not in ("random", "like-gaps", "group"):
        raise ConfigError(f"folds '{folds}' are not known; give {FOLD_RULES}")
    return kind, argument


def _modes_of(tensor: SparseTensor, argument: str) -> tuple[int, ...]:
    return tuple(tensor.mode(name.strip()) for name in argument.split(","))


def _by_group(tensor: SparseTensor, groups: Groups, test: float, valid: float, seed: int, rule: str) -> Split:
    count, member = groups_of(tensor, groups)
    test_groups, rest = _cut(np.random.default_rng(seed).permutation(count), test)
    valid_groups, _ = _cut(rest, valid)
    part = np.zeros(count, dtype=np.int8)  # (groups,): 0 train, 1 valid, 2 test
    part[test_groups], part[valid_groups] = 2, 1
    train_, valid_, test_ = (tensor.take(np.flatnonzero(part[member] == k)) for k in (0, 1, 2))
    return Split(train_, valid_, test_, rule, seed, groups)
