"""Which side of the split every entry is on, where entries are not in memory.

``standard`` and ``first:N`` are those of :mod:`jointensor.data.split`, entry by entry, for as long as there is memory
for them: a byte per entry for ``standard``, whose permutation is undone rather than held, and 4 bytes for ``first:N``.
Beyond that a hash of each entry's position decides, and the shares are kept up to chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import share_of
from jointensor.errors import ConfigError

TRAIN, VALID, TEST, LEFT_OUT = 0, 1, 2, 3
"""Sides; validation entries that are more than are kept are left out."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class SplitRule:
    """How entries are split."""

    rule: str = "standard"
    test: float = 0.2
    valid: float = 0.1
    seed: int = 0
    most_valid: int = 1_000_000
    """Validation entries that are kept, a sample of them."""


class Sides:
    """Sides of entries by their position, from a file or from a hash.

    Parameters
    ----------
    how
        The rule.
    entries
        How many there are.
    scratch
        A file for one byte per entry.
    memory
        Bytes that a permutation may take.
    """

    def __init__(self, how: SplitRule, entries: int, scratch: Path, memory: int) -> None:
        self.how, self.entries, self.scratch = how, entries, scratch
        self.first = _first(how.rule, entries)
        self.hashed = entries > np.iinfo(np.int32).max
        undone = self.first is None and _can_undo()
        if not self.hashed and entries * (1 if undone else 4) <= memory:
            side = _undone(how, entries, scratch) if undone else _permuted(how, entries, self.first)
            side.tofile(scratch)
        else:
            self.hashed = True

    @property
    def record(self) -> str:
        """What ``metrics.json`` says of it."""
        return "hashed" if self.hashed else "permuted"

    def of(self, start: int, count: int) -> NDArray[np.uint8]:
        """Sides of ``count`` entries from position ``start`` on."""
        if not self.hashed:
            return np.fromfile(self.scratch, dtype=np.uint8, count=count, offset=start)
        return _hashed(self.how, self.entries, self.first, start, count)


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


def _can_undo() -> bool:
    """Whether the compiled loops are there, and NumPy draws as they do."""
    if find_spec("numba") is None:
        return False
    from jointensor.kernels.numba_shuffle import agrees_with_numpy  # noqa: PLC0415 - compiled where it is used

    return agrees_with_numpy()


def _undone(how: SplitRule, entries: int, scratch: Path) -> NDArray[np.uint8]:
    """Sides of the standard split: written at the places of the permutation, and carried back to the entries."""
    from jointensor.kernels.numba_shuffle import carry_back  # noqa: PLC0415 - compiled where it is used

    held = share_of(entries, how.test)
    stop = share_of(entries - held, how.valid)
    side = np.full(entries, TRAIN, dtype=np.uint8)
    side[:held] = TEST
    side[held : held + stop] = LEFT_OUT
    side[held : held + min(stop, how.most_valid)] = VALID
    carry_back(side, how.seed, str(scratch.parent))
    return side


def _permuted(how: SplitRule, entries: int, first: int | None) -> NDArray[np.uint8]:
    order = np.arange(entries, dtype=np.int32)
    np.random.default_rng(how.seed).shuffle(order)
    side = np.full(entries, TRAIN, dtype=np.uint8)
    if first is None:
        held = share_of(entries, how.test)
        side[order[:held]] = TEST
        rest = order[held:]
    else:
        side[first:] = TEST
        rest = order[order < first]
    stop = share_of(len(rest), how.valid)
    side[rest[:stop]] = LEFT_OUT
    side[rest[: min(stop, how.most_valid)]] = VALID
    return side


def _hashed(how: SplitRule, entries: int, first: int | None, start: int, count: int) -> NDArray[np.uint8]:
    position = np.arange(start, start + count, dtype=np.uint64)
    chance = uniform(mix(position, how.seed))
    side = np.full(count, TRAIN, dtype=np.uint8)
    test = how.test if first is None else 0.0
    learnt = entries - share_of(entries, test) if first is None else first
    kept = min(1.0, how.most_valid / max(learnt * how.valid, 1.0))
    stop = test + (1 - test) * how.valid
    side[chance < stop] = LEFT_OUT
    side[chance < test + (stop - test) * kept] = VALID
    side[chance < test] = TEST
    if first is not None:
        side[position >= first] = TEST
    return side


def mix(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Numbers that look random, one for each number (splitmix64)."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(1)) * _GOLDEN + np.uint64(seed * 0xD1342543DE82EF95 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(hashed: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Hashes as numbers from 0 up to 1."""
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
