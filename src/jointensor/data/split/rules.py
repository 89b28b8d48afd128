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

from jointensor.data.split.folds import FOLDS, Groups, Tail, groups_of, steps_from_end, tail_of
from jointensor.data.split.gaps import MISSING_OR_TESTED, Asked, pattern_of_gaps, pattern_of_queries
from jointensor.data.split.patterns import Pattern
from jointensor.data.tensor import SparseTensor, join
from jointensor.errors import ConfigError

RULES = "standard, first:N, time:MODE[,horizon=H,origins=K], slices:MODE, group:MODE,MODE or like-gaps"
FOLD_RULES = "like-gaps, random, group:MODE,MODE, slices:MODE or time:MODE"


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
    pattern: Pattern | None = None
    """How the cells lie that ``together`` was found from; ``None`` where it was given."""

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
        testing. ``time:MODE``: the latest labels of a mode are for testing;
        ``time:MODE,horizon=H,origins=K``: the last H·K of them, to be forecast H at a time. ``slices:MODE``: whole
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
    elif (rolling := rolling_rule(rule)) is not None:
        test_at, rest = _last_labels(tensor, order, rolling)
    elif kind in ("time", "slices") and argument:
        test_at, rest = _whole_labels(tensor, order, tensor.mode(argument), test, latest=kind == "time", seed=seed)
    elif kind == "group" and argument:
        return _by_group(tensor, _modes_of(tensor, argument), test, valid, seed, rule)
    elif kind == "like-gaps" and not argument:
        pattern = pattern_of_gaps(tensor, seed)
        return replace(_by_group(tensor, pattern.groups, test, valid, seed, rule), pattern=pattern)
    else:
        raise ConfigError(f"split '{rule}' is not known; give {RULES}")
    valid_at, train_at = _cut(rest, valid)
    return Split(tensor.take(train_at), tensor.take(valid_at), tensor.take(test_at), rule, seed)


@dataclass(frozen=True)
class RollingRule:
    """What is forecast to test a model: the last labels, a few at a time."""

    by: str
    """Ordered mode, or a calendar mode and a clock mode with ``+`` between."""
    horizon: int
    """Labels at a time."""
    origins: int
    """How many times."""

    def modes(self, tensor: SparseTensor) -> tuple[int, ...]:
        """Positions of the modes."""
        return tuple(tensor.mode(name.strip()) for name in self.by.split("+"))


def rolling_rule(rule: str) -> RollingRule | None:
    """The numbers of ``time:MODE,horizon=H,origins=K``; ``None`` of any other rule."""
    kind, _, argument = rule.partition(":")
    by, *options = argument.split(",")
    if kind != "time" or not options:
        return None
    given = dict(one.strip().partition("=")[::2] for one in options)
    numbers = [given.pop(name, "") for name in ("horizon", "origins")]
    if given or not by or not all(one.isdecimal() and int(one) > 0 for one in numbers):
        raise ConfigError(f"split '{rule}': write time:MODE,horizon=H,origins=K with whole numbers from 1 on")
    return RollingRule(by, *map(int, numbers))


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


def _last_labels(
    tensor: SparseTensor, order: NDArray[np.integer], rolling: RollingRule
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Test and other positions: entries of the last labels are for testing."""
    place = np.zeros(len(tensor), dtype=np.int64)  # of entries along the mode, or along two of them
    for n in rolling.modes(tensor):
        coordinates, ranks = np.unique(tensor.modes[n].coordinates(), return_inverse=True)
        place = place * len(coordinates) + ranks[tensor.indices[:, n]]
    labels = np.unique(place)
    wanted = rolling.horizon * rolling.origins
    if wanted >= len(labels):
        raise ConfigError(
            f"horizon {rolling.horizon} and {rolling.origins} origins test {wanted} labels, and {rolling.by} has "
            f"{len(labels)} with entries; give fewer"
        )
    held = place[order] >= labels[-wanted]
    return np.sort(order[held]), order[~held]


def with_folds(parts: Split, folds: str, valid: float, asked: Asked | None = None) -> Split:
    """The same with validation entries that are drawn in groups, as folds of a search will be.

    Parameters
    ----------
    parts
        Of a rule that does not say itself what validates, see :func:`draws_folds`.
    folds
        ``random``: entry by entry. ``group:A,B``: those with the same labels of these modes. ``slices:MODE``: whole
        labels. ``time:MODE``: the last labels. ``like-gaps``: so that they look most like what is not learnt from,
        test entries and missing cells; or like the cells of ``asked``.
    valid
        Share of the groups that validates; one at least, unless it is 0.
    asked
        Cells that will be asked for, if they are known.
    """
    kind, argument = fold_rule(folds)
    if kind == "random" or not draws_folds(parts.rule, given=kind != "like-gaps" or asked is not None):
        return parts
    entries, pattern = join(parts.train, parts.valid), None
    if kind == "like-gaps":
        seed = parts.seed
        pattern = pattern_of_gaps(entries, seed) if asked is None else pattern_of_queries(entries, asked, seed)
        if asked is None and len(parts.test):
            pattern = replace(pattern, cells=MISSING_OR_TESTED)
        groups = pattern.groups
    else:
        groups = _tail(entries, argument) if kind == "time" else _modes_of(entries, argument)
    if not groups:
        return replace(parts, pattern=pattern)
    train_, valid_ = _last(entries, groups, valid) if tail_of(groups) else _drawn(entries, groups, valid, parts, folds)
    return replace(parts, train=train_, valid=valid_, together=groups, pattern=pattern)


def draws_folds(rule: str, *, given: bool) -> bool:
    """Whether validation entries of a split are drawn as folds say.

    Groups say which ones they are. The splits ``time`` and ``slices`` draw them one by one unless folds are ``given``.
    """
    return rule.partition(":")[0] in ("standard", "first", *(("time", "slices") if given else ()))


def fold_rule(folds: str) -> tuple[str, str]:
    """``like-gaps``, ``random``, ``group``, ``slices`` or ``time``, and the modes of the last three."""
    kind, _, argument = folds.partition(":")
    plain, of_modes = kind in ("random", "like-gaps"), kind in ("group", "slices", "time")
    one = kind == "group" or "," not in argument
    if not (plain and not argument) and not (of_modes and argument and one):
        raise ConfigError(f"folds '{folds}' are not known; give {FOLD_RULES}")
    return kind, argument


def _tail(entries: SparseTensor, argument: str) -> Groups:
    """The last labels of a mode, as many as folds can leave out one after the other."""
    (n,) = _modes_of(entries, argument)
    mode, labels = entries.modes[n], len(np.unique(entries.indices[:, n]))
    if mode.order != "ordered":
        raise ConfigError(
            f"folds 'time:{argument}': the mode has no order with an end; say --order {mode.name}=ordered if it has"
        )
    if labels <= FOLDS:
        raise ConfigError(
            f"folds 'time:{argument}': {labels} of its labels have entries, {FOLDS + 1} are needed; give other folds"
        )
    return (Tail(n, labels).fitting(labels),)


def _last(entries: SparseTensor, groups: Groups, valid: float) -> tuple[SparseTensor, SparseTensor]:
    """Training and validation entries: those of the labels that fold 0 will leave out validate."""
    tail = tail_of(groups)
    assert tail is not None
    validates = steps_from_end(entries, tail.mode) < (tail.size if valid else 0)  # (entries,)
    return entries.take(np.flatnonzero(~validates)), entries.take(np.flatnonzero(validates))


def _drawn(
    entries: SparseTensor, groups: Groups, valid: float, parts: Split, folds: str
) -> tuple[SparseTensor, SparseTensor]:
    """Training and validation entries: some of the groups, drawn at random, validate."""
    count, member = groups_of(entries, groups)
    if valid and count < 2:
        raise ConfigError(f"folds '{folds}': all entries are in one group, none is left to validate; give other modes")
    order = np.random.default_rng([parts.seed, 2]).permutation(count)
    validates = np.isin(member, order[: max(share_of(count, valid), int(valid > 0))])  # (entries,)
    return entries.take(np.flatnonzero(~validates)), entries.take(np.flatnonzero(validates))


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
