"""The part of a split that every entry belongs to, for tensors whose entries are not in memory.

``standard`` and ``first:N`` equal those of :mod:`jointensor.data.split.rules`, entry by entry, as long as the memory
limit allows: one byte per entry for ``standard``, whose permutation is inverted swap by swap, and 4 bytes for
``first:N``. Beyond that a hash of each entry's position decides, and the shares hold up to chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split.rules import share_of
from jointensor.errors import ConfigError

TRAIN, VALID, TEST, LEFT_OUT = 0, 1, 2, 3
"""Parts of a split; validation entries beyond ``SplitRule.max_valid`` are left out."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class SplitRule:
    """The options of a split; see :func:`jointensor.data.split.split`."""

    rule: str = "standard"
    test: float = 0.2
    valid: float = 0.1
    seed: int = 0
    max_valid: int = 1_000_000
    """Validation entries that are kept in memory; a random sample where there are more."""


class SplitAssignment:
    """Parts of entries by position, from a file or from a hash.

    Parameters
    ----------
    rule
        Rule, shares and seed.
    entries
        Number of entries.
    scratch
        Path of a file of one byte per entry.
    memory
        Bytes that a permutation may take; with less, a hash decides.
    """

    def __init__(self, rule: SplitRule, entries: int, scratch: Path, memory: int) -> None:
        self.rule, self.entries, self.scratch = rule, entries, scratch
        self.first = _first(rule.rule, entries)
        invert = self.first is None and _can_invert()
        fits = entries * (1 if invert else 4) <= memory
        self.hashed = entries > np.iinfo(np.int32).max or not fits
        if not self.hashed:
            parts = _inverted(rule, entries, scratch) if invert else _permuted(rule, entries, self.first)
            parts.tofile(scratch)

    @property
    def method(self) -> str:
        """``permuted`` or ``hashed``, for ``metrics.json``."""
        return "hashed" if self.hashed else "permuted"

    def of(self, start: int, count: int) -> NDArray[np.uint8]:
        """Parts of ``count`` entries from position ``start`` on."""
        if not self.hashed:
            return np.fromfile(self.scratch, dtype=np.uint8, count=count, offset=start)
        return _hashed(self.rule, self.entries, self.first, start, count)


def _first(rule: str, entries: int) -> int | None:
    kind, _, argument = rule.partition(":")
    if kind == "standard" and not argument:
        return None
    if kind != "first":
        raise ConfigError(
            f"split '{rule}' needs all entries in memory; with --memory give standard or first:N, or leave out --memory"
        )
    if not argument.isdecimal() or not 0 < int(argument) <= entries:
        raise ConfigError(f"split '{rule}': give a number of entries between 1 and {entries}")
    return int(argument)


def _can_invert() -> bool:
    """Whether numba is installed and this NumPy draws its permutations as the compiled loops do."""
    if find_spec("numba") is None:
        return False
    from jointensor.kernels.numba_shuffle import agrees_with_numpy  # noqa: PLC0415 - compiled where it is used

    return agrees_with_numpy()


def _inverted(rule: SplitRule, entries: int, scratch: Path) -> NDArray[np.uint8]:
    """Parts of the standard split: written in the order of the permutation, then moved to the entries."""
    from jointensor.kernels.numba_shuffle import scatter_by_permutation  # noqa: PLC0415 - compiled where it is used

    n_test = share_of(entries, rule.test)
    n_valid = share_of(entries - n_test, rule.valid)
    parts = np.full(entries, TRAIN, dtype=np.uint8)
    parts[:n_test] = TEST
    parts[n_test : n_test + n_valid] = LEFT_OUT
    parts[n_test : n_test + min(n_valid, rule.max_valid)] = VALID
    scatter_by_permutation(parts, rule.seed, str(scratch.parent))
    return parts


def _permuted(rule: SplitRule, entries: int, first: int | None) -> NDArray[np.uint8]:
    order = np.arange(entries, dtype=np.int32)
    np.random.default_rng(rule.seed).shuffle(order)
    parts = np.full(entries, TRAIN, dtype=np.uint8)
    if first is None:
        n_test = share_of(entries, rule.test)
        parts[order[:n_test]] = TEST
        rest = order[n_test:]
    else:
        parts[first:] = TEST
        rest = order[order < first]
    n_valid = share_of(len(rest), rule.valid)
    parts[rest[:n_valid]] = LEFT_OUT
    parts[rest[: min(n_valid, rule.max_valid)]] = VALID
    return parts


def _hashed(rule: SplitRule, entries: int, first: int | None, start: int, count: int) -> NDArray[np.uint8]:
    position = np.arange(start, start + count, dtype=np.uint64)
    chance = uniform(mix(position, rule.seed))
    parts = np.full(count, TRAIN, dtype=np.uint8)
    test = rule.test if first is None else 0.0
    trained_on = entries - share_of(entries, test) if first is None else first
    kept = min(1.0, rule.max_valid / max(trained_on * rule.valid, 1.0))
    held = test + (1 - test) * rule.valid
    parts[chance < held] = LEFT_OUT
    parts[chance < test + (held - test) * kept] = VALID
    parts[chance < test] = TEST
    if first is not None:
        parts[position >= first] = TEST
    return parts


def mix(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A pseudo-random number for each number (splitmix64)."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(1)) * _GOLDEN + np.uint64(seed * 0xD1342543DE82EF95 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(hashed: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Hashes as numbers in [0, 1)."""
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
